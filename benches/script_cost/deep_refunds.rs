//! Measures refunds in the middle of a log, and what the tags that they leave cost later calls.

use redis::{Connection, cmd};

use crate::{
    measure::{Pipeline, key, median, pair, ratio, undisturbed, verdict},
    scripts::Scripts,
    worst_case::{SlowCalls, slow_calls},
};

/// Microseconds between two charges.
const INTERVAL: u64 = 10;
const WINDOW: u64 = 3_600_000_000;
const ROUNDS: u64 = 5;
const CALLS: u64 = 1_000;
/// The refunds at random places of which the slowest is reported.
const REFUNDS: u64 = 10_000;

/// A log with deep refunds, and the same log without.
#[derive(Debug)]
pub struct DeepRefunds {
    /// Microseconds per refund in the middle.
    pub middle: f64,
    /// Microseconds of the slowest of 10,000 refunds: each runs on three logs, and its shortest time counts.
    pub slowest: u64,
    /// A charge for which one record leaves, with refunds to without.
    pub charge: f64,
    /// A denial that must find a record, with refunds to without, and its microseconds.
    pub denial: f64,
    pub denial_micros: f64,
    /// Bytes for each record, with refunds.
    pub bytes: f64,
}

impl DeepRefunds {
    pub fn measure(
        connection: &mut Connection,
        pipeline: &mut Pipeline,
        scripts: &Scripts,
        records: u64,
    ) -> Self {
        // Without and with refunds.
        let names = [0, 1].map(|number| key((0xe << 32) + records, number));
        let begin = pipeline.now_micros();
        let mut log = Log { pipeline, scripts, records, begin, receipts: Vec::new() };
        log.fill(&names[0]);
        let copy = |connection: &mut Connection| {
            cmd("COPY").arg(&names).arg("REPLACE").exec(connection).expect("a copy of the log");
        };
        copy(connection);
        let near_middle = (0..CALLS).map(|call| records * 45 / 100 + call * 7_919 % (records / 10));
        let middle = log.refund(&names[1], near_middle);

        let histories = [(), (), ()].map(|()| {
            copy(connection);
            slow_calls(connection, || {
                log.refund(&names[1], (0..REFUNDS).map(|call| call * 7_919 % records));
            })
        });
        let slowest = slowest_of_three(&histories);

        // The rounds of both logs take turns.
        let bytes: u64 =
            cmd("MEMORY").arg(&["USAGE", &names[1], "SAMPLES", "0"]).query(connection).expect("the memory");
        let [mut denials, mut charges] = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        for round in 0..ROUNDS {
            for (log_number, name) in names.iter().enumerate() {
                denials[log_number].push(log.deny(name));
                charges[log_number].push(log.charge(name, round * CALLS));
            }
        }
        Self {
            middle,
            slowest,
            charge: ratio(&charges[1], &charges[0]),
            denial: ratio(&denials[1], &denials[0]),
            denial_micros: median(denials[1].clone()),
            bytes: bytes as f64 / records as f64,
        }
    }
}

/// Returns the time of the slowest call, where the shortest time of three histories counts. A call that was not slow in each of
/// them was disturbed.
fn slowest_of_three([first, second, third]: &[SlowCalls; 3]) -> u64 {
    let in_all =
        first.iter().filter_map(|(call, micros)| Some(*micros.min(second.get(call)?).min(third.get(call)?)));
    in_all.max().unwrap_or_default()
}

struct Log<'a> {
    pipeline: &'a mut Pipeline,
    scripts: &'a Scripts,
    records: u64,
    /// The instant of the first charge, in microseconds.
    begin: u64,
    receipts: Vec<Vec<u8>>,
}

impl Log<'_> {
    /// Charges 2 to 4 units for each record, and keeps the receipts.
    fn fill(&mut self, name: &str) {
        for record in 0..self.records {
            self.queue_check(name, u32::MAX, 2 + (record % 3) as u32, b"r", self.begin + record * INTERVAL);
            if record % 512 == 511 || record + 1 == self.records {
                let receipts = &mut self.receipts;
                self.pipeline.flush(|reply| receipts.push(reply[37..54].to_vec()));
            }
        }
    }

    /// Refunds one unit to each of these charges. Returns the microseconds per call.
    fn refund(&mut self, name: &str, charges: impl Iterator<Item = u64>) -> f64 {
        self.pipeline.samples();
        self.pipeline.queue_mark();
        for (call, charge) in charges.enumerate() {
            let window = &WINDOW.to_le_bytes()[..6];
            let receipt = &self.receipts[charge as usize];
            // Without a deadline.
            let deadline = u64::MAX.to_le_bytes();
            let arguments = [&deadline[..], &1_u32.to_le_bytes(), window, &[0; 6], receipt].concat();
            let hash = self.scripts.refund.as_bytes();
            self.pipeline.queue(&[b"EVALSHA", hash, b"1", name.as_bytes(), &arguments]);
            if call % 20 == 19 {
                self.pipeline.queue_mark();
            }
            self.pipeline.flush_if_full();
        }
        self.pipeline.flush(|_| {});
        undisturbed(self.pipeline.samples())
    }

    /// Denies checks of different costs. Returns the microseconds per call.
    fn deny(&mut self, name: &str) -> f64 {
        let full = self.begin + self.records * INTERVAL;
        let mut used = 0;
        self.queue_check(name, u32::MAX, 0, b"p", full);
        self.pipeline.flush(|reply| used = u32::MAX - verdict(reply).1);
        self.pipeline.samples();
        self.pipeline.queue_mark();
        for call in 0..CALLS {
            let cost = 1 + (u64::from(used) * (call * 7_919 % CALLS) / CALLS) as u32;
            self.queue_check(name, used, cost, b"", full);
            if call % 20 == 19 {
                self.pipeline.queue_mark();
            }
            if call % 200 == 199 {
                self.pipeline.flush(|reply| assert!(!verdict(reply).0, "an admission"));
            }
        }
        undisturbed(self.pipeline.samples())
    }

    /// Charges while one record leaves for each charge, after this many have left. Returns the microseconds per call.
    fn charge(&mut self, name: &str, left: u64) -> f64 {
        self.pipeline.samples();
        self.pipeline.queue_mark();
        for call in left..left + CALLS {
            self.queue_check(name, u32::MAX, 3, b"", self.begin + WINDOW + call * INTERVAL);
            if call % 20 == 19 {
                self.pipeline.queue_mark();
            }
            self.pipeline.flush_if_full();
        }
        self.pipeline.flush(|_| {});
        undisturbed(self.pipeline.samples())
    }

    fn queue_check(&mut self, name: &str, quota: u32, cost: u32, purpose: &[u8], at: u64) {
        let (arguments, at) = (pair(quota, cost, WINDOW, 0), at.to_string());
        let hash = self.scripts.check_injected.as_bytes();
        let words: [&[u8]; 8] =
            [b"EVALSHA", hash, b"1", name.as_bytes(), &arguments, purpose, b"", at.as_bytes()];
        self.pipeline.queue(&words);
    }
}
