//! Measures the worst case: the slowest single call while a log grows to 1,000,000 records, denies, and shrinks again.
//!
//! The clock is injected, so a window passes at once. The machine may interrupt a call. Therefore every call runs twice, on two
//! keys, and its shorter time counts.

use std::collections::HashMap;

use redis::{Connection, Value, cmd};

use crate::{
    measure::{Pipeline, key, pair},
    scripts::Scripts,
    server::Server,
};

const RECORDS: u64 = 1_000_000;
/// Microseconds between two charges.
const INTERVAL: u64 = 10;
const WINDOW: u64 = 3_600_000_000;
/// The slow log ignores shorter calls, in microseconds.
const SLOW: u64 = 50;

/// The slowest call of each phase, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct WorstCase {
    pub growing: u64,
    pub denying: u64,
    /// A hundred records leave before each charge.
    pub shrinking: u64,
    /// Half a million records leave at once, then nearly all others, then the rest.
    pub at_once: u64,
}

impl WorstCase {
    pub fn measure(server: &Server, pipeline: &mut Pipeline, scripts: &Scripts) -> Self {
        let mut connection = server.connection();
        let start = pipeline.now_micros();
        let [first, second] = [0, 1].map(|run| {
            let mut log = Log { pipeline, scripts, key: key(0xd << 32, run), start };
            log.measure(&mut connection)
        });
        let [growing, denying, shrinking, at_once] =
            std::array::from_fn(|phase| slowest(&first[phase], &second[phase]));
        Self { growing, denying, shrinking, at_once }
    }

    pub fn overall(&self) -> u64 {
        self.growing.max(self.denying).max(self.shrinking).max(self.at_once)
    }
}

/// Returns the time of the slowest call, where the shorter time of two runs counts. If no call was slow in both runs, returns
/// the threshold.
fn slowest(first: &SlowCalls, second: &SlowCalls) -> u64 {
    let both = first.iter().filter_map(|(call, micros)| Some(*second.get(call)?.min(micros)));
    both.max().unwrap_or(SLOW)
}

struct Log<'a> {
    pipeline: &'a mut Pipeline,
    scripts: &'a Scripts,
    key: String,
    start: u64,
}

/// The microseconds of each slow call, by its arguments.
pub type SlowCalls = HashMap<Vec<Vec<u8>>, u64>;

impl Log<'_> {
    fn measure(&mut self, connection: &mut Connection) -> [SlowCalls; 4] {
        let start = self.start;
        // The costs differ, so a record is not where equal costs would place it.
        let cost = |record: u64| if record < RECORDS / 2 { 1 } else { 50 };
        let growing = slow_calls(connection, || {
            for record in 0..RECORDS {
                self.charge(u32::MAX, cost(record), start + record * INTERVAL);
            }
            self.pipeline.flush(|_| {});
        });

        let used = (RECORDS / 2) as u32 * 51;
        let full = start + RECORDS * INTERVAL;
        let denying = slow_calls(connection, || {
            for denial in 1..=1_000 {
                self.charge(used, used / 1_000 * denial, full);
            }
            self.pipeline.flush(|_| {});
        });

        let leaves = |record: u64| start + record * INTERVAL + WINDOW;
        let shrinking = slow_calls(connection, || {
            for charge in 1..=2_500 {
                self.charge(u32::MAX, 1, leaves(100 * charge));
            }
            self.pipeline.flush(|_| {});
        });
        let at_once = slow_calls(connection, || {
            for instant in [leaves(750_000), leaves(RECORDS - 1), leaves(RECORDS) + WINDOW] {
                self.charge(u32::MAX, 1, instant);
            }
            self.pipeline.flush(|_| {});
        });
        [growing, denying, shrinking, at_once]
    }

    fn charge(&mut self, quota: u32, cost: u32, at: u64) {
        let arguments = pair(quota, cost, WINDOW, 0);
        let hash = self.scripts.check_injected.as_bytes();
        let at = at.to_string();
        let key = self.key.as_bytes();
        self.pipeline.queue(&[b"EVALSHA", hash, b"1", key, &arguments, b"", b"", at.as_bytes()]);
        self.pipeline.flush_if_full();
    }
}

/// Returns the calls of scripts that are slow.
pub fn slow_calls(connection: &mut Connection, calls: impl FnOnce()) -> SlowCalls {
    for (option, value) in [("slowlog-log-slower-than", SLOW), ("slowlog-max-len", 100_000)] {
        cmd("CONFIG").arg("SET").arg(option).arg(value).exec(connection).unwrap();
    }
    cmd("SLOWLOG").arg("RESET").exec(connection).unwrap();
    calls();
    cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "-1"]).exec(connection).unwrap();
    let log: Vec<Vec<Value>> = cmd("SLOWLOG").arg(&["GET", "-1"]).query(connection).expect("the slow log");
    let call = |entry: &Vec<Value>| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(entry.get(3)?.clone()).ok()?;
        let micros = redis::from_redis_value(entry.get(2)?.clone()).ok()?;
        // The command, the hash, the number of keys and the key come before the arguments.
        (words.first()? == b"EVALSHA").then(|| (words[4..].to_vec(), micros))
    };
    log.iter().filter_map(call).collect()
}
