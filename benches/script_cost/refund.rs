//! Measures refunds to the newest and the oldest of 10,000 charges of a log, and to those of a token bucket.

use crate::{
    measure::{Pipeline, key, median, pair, undisturbed, verdict},
    scripts::{Design, Scripts},
};

const RECORDS: usize = 10_000;
const ROUNDS: u64 = 5;

/// Microseconds per call. A whole refund returns all units of a charge.
#[derive(Debug)]
pub struct Refunds {
    pub newest: f64,
    pub newest_whole: f64,
    pub oldest: f64,
    pub oldest_whole: f64,
    /// To any charge of a token bucket.
    pub tokens: f64,
}

impl Refunds {
    pub fn measure(pipeline: &mut Pipeline, scripts: &Scripts, window: u64) -> Self {
        let mut space = 0xc << 32;
        let mut of = |design, times: usize, whole: bool, charge: &dyn Fn(usize, usize) -> usize| {
            let rounds = (0..ROUNDS).map(|_| {
                space += 1;
                let charges = Charges { design, space, window };
                let units = if whole { 1 } else { times as u32 + 1 };
                let records = if whole { RECORDS + times } else { RECORDS };
                let receipts = charges.reserve(pipeline, scripts, units, records);
                let refunded = (0..times).map(|time| &receipts[charge(time, records)]);
                charges.refund(pipeline, scripts, refunded)
            });
            median(rounds.collect())
        };
        Self {
            newest: of(Design::Log, 1_000, false, &|_, records| records - 1),
            newest_whole: of(Design::Log, 1_000, true, &|time, records| records - 1 - time),
            oldest: of(Design::Log, 1_000, false, &|_, _| 0),
            oldest_whole: of(Design::Log, 1_000, true, &|time, _| time),
            tokens: of(Design::Tokens, 1_000, false, &|_, _| 0),
        }
    }
}

/// The charges of one key.
struct Charges {
    design: Design,
    space: u64,
    window: u64,
}

impl Charges {
    /// Reserves these units for each record, and returns the receipts.
    fn reserve(
        &self,
        pipeline: &mut Pipeline,
        scripts: &Scripts,
        units: u32,
        records: usize,
    ) -> Vec<Vec<u8>> {
        let key = key(self.space, 0);
        let hash = scripts.of(self.design).as_bytes();
        let arguments = pair(u32::MAX, units, self.window, self.design.typed_parameter(self.window));
        let mut receipts = Vec::new();
        while receipts.len() < records {
            for _ in 0..500 {
                pipeline.queue(&[b"EVALSHA", hash, b"1", key.as_bytes(), &arguments, b"r"]);
            }
            pipeline.flush(|reply| receipts.push(reply[37..].to_vec()));
        }
        receipts
    }

    /// Refunds one unit to each charge.
    fn refund<'a>(
        &self,
        pipeline: &mut Pipeline,
        scripts: &Scripts,
        receipts: impl ExactSizeIterator<Item = &'a Vec<u8>>,
    ) -> f64 {
        let key = key(self.space, 0);
        let (refunded, before) = (receipts.len() as u32, self.remaining(pipeline, scripts));
        let calls_per_sample = refunded.div_ceil(20) as usize;
        pipeline.samples();
        pipeline.queue_mark();
        for (number, receipt) in receipts.enumerate() {
            let window = &self.window.to_le_bytes()[..6];
            let typed_parameter = &self.design.typed_parameter(self.window).to_le_bytes()[..6];
            // Without a deadline.
            let deadline = u64::MAX.to_le_bytes();
            let units = &1_u32.to_le_bytes()[..];
            let arguments = [&deadline[..], units, window, typed_parameter, receipt].concat();
            pipeline.queue(&[b"EVALSHA", scripts.refund.as_bytes(), b"1", key.as_bytes(), &arguments]);
            if (number + 1) % calls_per_sample == 0 {
                pipeline.queue_mark();
            }
            pipeline.flush_if_full();
        }
        pipeline.flush(|_| {});
        let figure = undisturbed(pipeline.samples());
        let returned = self.remaining(pipeline, scripts) - before;
        assert!(returned >= refunded, "{returned} of {refunded} units are refunded: {:?}", self.design);
        figure
    }

    /// Returns the remaining units.
    fn remaining(&self, pipeline: &mut Pipeline, scripts: &Scripts) -> u32 {
        let key = key(self.space, 0);
        let arguments = pair(u32::MAX, 0, self.window, self.design.typed_parameter(self.window));
        let mut remaining = 0;
        pipeline.queue(&[b"EVALSHA", scripts.of(self.design).as_bytes(), b"1", key.as_bytes(), &arguments]);
        pipeline.flush(|reply| remaining = verdict(reply).1);
        remaining
    }
}
