//! The calls of one design in one scenario, on an injected clock.

use crate::{
    callgrind::Counting,
    measure::{Pipeline, key, pairs, verdict},
    rows::{Row, Verdict},
    scripts::Design,
};

/// The window of every pair, in microseconds. Its length does not matter.
pub const WINDOW: u64 = 3_600_000_000;
/// The instant of the first calls: the begin of a window.
pub const BEGIN: u64 = 472_222 * WINDOW;
/// The calls that are counted for each figure.
pub const CALLS: u64 = 1_000;

/// The number of larger charges that fill a window.
const MAX_LARGER: u64 = 140;

/// The calls of one design in one scenario.
pub struct Cell<'a> {
    pub row: &'a Row,
    pub design: Design,
    pub space: u64,
    pub hash: &'a str,
    /// Whether the keys of a scenario of denials are full already.
    pub is_full: bool,
}

impl Cell<'_> {
    /// Prepares the keys, and returns the instructions per call.
    pub fn count(&self, counting: &mut Counting) -> Result<f64, String> {
        let Row { verdict, quota, cost, keys, purpose, .. } = *self.row;
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
                let instants = (0..calls).map(|call| BEGIN + call * larger * step);
                self.call(pipeline, keys, &arguments, "", instants, |_| true)?;
                // A peek enters nothing.
                (BEGIN + calls * larger * step, if purpose == "p" { 0 } else { step })
            }
            Verdict::AdmittedByEmpty => (BEGIN, 1),
            Verdict::Denied => {
                if !self.is_full {
                    self.fill(pipeline)?;
                }
                (BEGIN + WINDOW / 2, 1)
            }
        };
        let keys = if verdict == Verdict::AdmittedByEmpty { CALLS as usize } else { keys };
        let is_expected = |admitted: bool| admitted == (verdict != Verdict::Denied);
        counting.count()?;
        let instants = (0..CALLS).map(|call| at + call * step);
        self.call(&mut counting.pipeline, keys, &arguments, purpose, instants, is_expected)?;
        Ok(counting.count()? / CALLS as f64)
    }

    /// Uses up the quota of every key, before the middle of a window.
    fn fill(&self, pipeline: &mut Pipeline) -> Result<(), String> {
        let Row { quota, keys, .. } = *self.row;
        let full = BEGIN + WINDOW / 2;
        // Overages, so every one is admitted.
        let mut charge = |cost: u32, at: u64| {
            let instants = (0..keys as u64).map(|_| at);
            self.call(pipeline, keys, &self.arguments(quota, cost), "o", instants, |_| true)
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
            Design::Fixed => charge(quota, full),
            Design::HashBuckets => {
                let units = (quota.div_ceil(60) + 1).to_string();
                let fields: Vec<String> =
                    (0..60).map(|ago| (full / (WINDOW / 60) - ago).to_string()).collect();
                for number in 0..keys {
                    let key = key(self.space << 8, number);
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
        pairs(quota, cost, vec![WINDOW; self.row.policies], self.design.precision(WINDOW))
    }

    /// Calls the script at each instant, on one key after the other. Returns an error if a verdict is not as expected.
    fn call(
        &self,
        pipeline: &mut Pipeline,
        keys: usize,
        arguments: &[u8],
        purpose: &str,
        instants: impl Iterator<Item = u64>,
        is_expected: impl Fn(bool) -> bool,
    ) -> Result<(), String> {
        let mut unexpected = 0;
        let policies = self.row.policies;
        let count = policies.to_string();
        for (call, at) in instants.enumerate() {
            // Each policy has a space of its own.
            let names: Vec<String> =
                (0..policies).map(|policy| key((self.space << 8) + policy as u64, call % keys)).collect();
            let at = at.to_string();
            let mut words = vec![b"EVALSHA", self.hash.as_bytes(), count.as_bytes()];
            words.extend(names.iter().map(String::as_bytes));
            // Without shadow pairs. The instant is the last argument.
            words.extend([arguments, purpose.as_bytes(), b"", at.as_bytes()]);
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
