//! The calls of one design in one scenario, on an injected clock.

use crate::{
    callgrind::Counting,
    measure::{Pipeline, calendar_fields, key, median, pairs, verdict},
    rows::{Row, Verdict},
    scripts::Design,
};

/// The window of every pair, in microseconds. Its length does not matter.
pub const WINDOW: u64 = 3_600_000_000;
/// The instant of the first calls: the begin of a window.
pub const BEGIN: u64 = 472_222 * WINDOW;
/// The samples of a figure, which is their median: an event such as the growth of a table is in one of them. The calls before them are
/// as many as those of a sample. The garbage collection of Lua then has its pace.
const SAMPLES: u64 = 5;

/// The number of larger charges that fill a window.
const MAX_LARGER: u64 = 140;

/// The calls of one design in one scenario.
pub struct Cell<'a> {
    pub row: &'a Row,
    pub design: Design,
    /// The script, with an injected clock.
    pub script: &'a str,
}

impl Cell<'_> {
    /// Deletes all keys, prepares those of the scenario, and returns the instructions per call.
    pub fn count(&self, counting: &mut Counting) -> Result<f64, String> {
        let Row { verdict, quota, cost, keys, purpose, .. } = *self.row;
        counting.pipeline.ask(&[b"FLUSHALL"]);
        let hash = counting.load(self.script);
        let arguments = self.arguments(quota, cost);
        let pipeline = &mut counting.pipeline;
        // The instant of the first call, and the time from one call to the next.
        let (at, step) = match verdict {
            Verdict::Admitted => {
                let charges = self.row.charges_in_use();
                // Only these two designs store single charges. For the others, larger ones lead to the same state.
                let is_of_charges = matches!(self.design, Design::Log | Design::SortedSet) || keys > 1;
                let larger = if is_of_charges { 1 } else { charges.div_ceil(MAX_LARGER) };
                let arguments = self.arguments(quota, cost * larger as u32);
                // A window has passed, and all charges in use have a place of their own.
                let (step, calls) = (WINDOW / charges, (charges + charges / 50).div_ceil(larger) + 8);
                let calls_of_keys =
                    (0..calls).map(|call| (call as usize % keys, BEGIN + call * larger * step));
                self.call(pipeline, &hash, &arguments, "", calls_of_keys, |_| true)?;
                // A peek enters nothing.
                (BEGIN + calls * larger * step, if purpose == "p" { 0 } else { step })
            }
            Verdict::AdmittedByEmpty => (BEGIN, 1),
            Verdict::Denied => {
                self.fill(pipeline, &hash)?;
                (BEGIN + WINDOW / 2, 1)
            }
        };
        let calls_of_sample = self.calls_of_sample();
        let new_keys = ((1 + SAMPLES) * calls_of_sample) as usize;
        let keys = if verdict == Verdict::AdmittedByEmpty { new_keys } else { keys };
        let is_expected = |admitted: bool| admitted == (verdict != Verdict::Denied);
        counting.restart_interpreter();
        counting.load(self.script);
        let mut samples = Vec::new();
        for sample in 0..=SAMPLES {
            let calls = sample * calls_of_sample..(sample + 1) * calls_of_sample;
            let calls_of_keys = calls.map(|call| (call as usize % keys, at + call * step));
            counting.count()?;
            self.call(&mut counting.pipeline, &hash, &arguments, purpose, calls_of_keys, is_expected)?;
            samples.push(counting.count()? / calls_of_sample as f64);
        }
        Ok(median(samples.split_off(1)))
    }

    /// Returns the number of calls in a sample. Some designs are slow, and only for comparison.
    fn calls_of_sample(&self) -> u64 {
        if matches!(self.design, Design::SortedSet | Design::HashBuckets) { 20 } else { 200 }
    }

    /// Uses up the quota of every key, before the middle of a window.
    fn fill(&self, pipeline: &mut Pipeline, hash: &str) -> Result<(), String> {
        let Row { quota, keys, .. } = *self.row;
        let full = BEGIN + WINDOW / 2;
        // Overages, so every one is admitted.
        let mut charge = |cost: u32, at: u64| {
            let every_key = (0..keys).map(|number| (number, at));
            self.call(pipeline, hash, &self.arguments(quota, cost), "o", every_key, |_| true)
        };
        match self.design {
            Design::Nothing => Ok(()),
            Design::Gcra => charge(quota, full - 1),
            Design::Log | Design::SortedSet => {
                let charges = if keys == 1 { quota } else { 10 };
                let mut instants = (0..u64::from(charges)).map(|charge| full - u64::from(charges) + charge);
                instants.try_for_each(|at| charge(quota / charges, at))
            }
            Design::Buckets => {
                let buckets = if keys == 1 { 60 } else { 10 };
                let mut ago = (0..u64::from(buckets)).rev();
                ago.try_for_each(|ago| charge(quota.div_ceil(buckets), full - ago * WINDOW / 60))
            }
            Design::Counter => {
                charge(quota, full - WINDOW)?;
                charge(quota / 10 * 7, full)
            }
            Design::Fixed | Design::Tokens | Design::Calendar => charge(quota, full),
            Design::HashBuckets => {
                let units = (quota.div_ceil(60) + 1).to_string();
                let fields: Vec<String> =
                    (0..60).map(|ago| (full / (WINDOW / 60) - ago).to_string()).collect();
                for number in 0..keys {
                    let key = key(0, number);
                    let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
                    fields.iter().for_each(|field| words.extend([field.as_bytes(), units.as_bytes()]));
                    pipeline.queue(&words);
                }
                pipeline.flush(|_| {});
                Ok(())
            }
        }
    }

    fn arguments(&self, quota: u32, cost: u32) -> Vec<u8> {
        pairs(quota, cost, vec![WINDOW; self.row.policies], self.design.typed_parameter(WINDOW))
    }

    /// Returns the same arguments, with the periods around an instant: those of the fixed windows.
    fn arguments_at(&self, arguments: &[u8], at: u64) -> Vec<u8> {
        let mut arguments = arguments.to_vec();
        if self.design == Design::Calendar {
            let minutes = WINDOW / 60_000_000;
            let (window, typed_parameter) = calendar_fields(at / WINDOW * minutes, [minutes; 2]);
            for pair in 0..self.row.policies {
                let fields = &mut arguments[16 + 20 * pair..28 + 20 * pair];
                fields[..6].copy_from_slice(&window.to_le_bytes()[..6]);
                fields[6..].copy_from_slice(&typed_parameter.to_le_bytes()[..6]);
            }
        }
        arguments
    }

    /// Calls the script, each time on the key of a number and at an instant. Returns an error if a verdict is not as expected.
    fn call(
        &self,
        pipeline: &mut Pipeline,
        hash: &str,
        arguments: &[u8],
        purpose: &str,
        calls: impl Iterator<Item = (usize, u64)>,
        is_expected: impl Fn(bool) -> bool,
    ) -> Result<(), String> {
        let mut unexpected = 0;
        let policies = self.row.policies;
        let count = policies.to_string();
        for (call, (number, at)) in calls.enumerate() {
            // Each policy has a space of its own.
            let names: Vec<String> = (0..policies).map(|policy| key(policy as u64, number)).collect();
            let arguments = self.arguments_at(arguments, at);
            let at = at.to_string();
            let mut words = vec![b"EVALSHA", hash.as_bytes(), count.as_bytes()];
            words.extend(names.iter().map(String::as_bytes));
            words.push(&arguments);
            if !purpose.is_empty() {
                words.push(purpose.as_bytes());
            }
            words.push(at.as_bytes());
            pipeline.queue(&words);
            if call % 64 == 63 {
                pipeline.flush(|reply| unexpected += u32::from(!is_expected(verdict(reply).0)));
            }
        }
        pipeline.flush(|reply| unexpected += u32::from(!is_expected(verdict(reply).0)));
        let text =
            || format!("{unexpected} unexpected verdicts: {}, {}", self.row.name(), self.design.name());
        if unexpected == 0 { Ok(()) } else { Err(text()) }
    }
}
