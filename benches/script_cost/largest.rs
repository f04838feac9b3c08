//! The worst single call while a log grows to a million records, is asked, and shrinks again.
//!
//! The clock is told, so that a window passes at once. The machine may take the processor away in the middle of a call: the
//! same calls are made twice, and of each the shorter time counts.

use std::collections::HashMap;

use redis::{Connection, Value, cmd};

use crate::{
    measure::{Wire, key, pair},
    scripts::Texts,
    server::Server,
};

const RECORDS: u64 = 1_000_000;
/// From one charge to the next, in microseconds.
const APART: u64 = 10;
const WINDOW: u64 = 3_600_000_000;
/// Calls that are shorter are not looked at.
const LOOKED_AT: u64 = 50;

/// The longest call of each phase, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Worst {
    pub growing: u64,
    pub denying: u64,
    /// A hundred records leave with every charge.
    pub shrinking: u64,
    /// Half a million leave at once, then nearly all others, then the rest.
    pub at_once: u64,
}

impl Worst {
    pub fn measure(server: &Server, wire: &mut Wire, texts: &Texts) -> Self {
        let mut connection = server.connection();
        for (option, value) in [("slowlog-log-slower-than", LOOKED_AT), ("slowlog-max-len", 100_000)] {
            cmd("CONFIG").arg("SET").arg(option).arg(value).exec(&mut connection).unwrap();
        }
        let start = wire.now_micros();
        let [first, second] = [0, 1].map(|run| {
            let mut log = Log { wire, texts, key: key(0xd << 32, run), start };
            log.measure(&mut connection)
        });
        cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "-1"]).exec(&mut connection).unwrap();
        let [growing, denying, shrinking, at_once] =
            std::array::from_fn(|phase| worst_of_both(&first[phase], &second[phase]));
        Self { growing, denying, shrinking, at_once }
    }

    pub fn overall(&self) -> u64 {
        self.growing.max(self.denying).max(self.shrinking).max(self.at_once)
    }
}

/// The longest call, each taken as the shorter one of the two that did the same; what was not looked at counts as much as is
/// looked at.
fn worst_of_both(first: &Slow, second: &Slow) -> u64 {
    let both = first.iter().filter_map(|(call, micros)| Some(*second.get(call)?.min(micros)));
    both.max().unwrap_or(LOOKED_AT)
}

struct Log<'a> {
    wire: &'a mut Wire,
    texts: &'a Texts,
    key: String,
    start: u64,
}

/// Calls that were looked at, by their arguments, and their microseconds.
type Slow = HashMap<Vec<Vec<u8>>, u64>;

impl Log<'_> {
    fn measure(&mut self, connection: &mut Connection) -> [Slow; 4] {
        let start = self.start;
        // The later half costs more, so that a record is not where equal costs would have it.
        let cost = |record: u64| if record < RECORDS / 2 { 1 } else { 50 };
        let growing = slow(connection, || {
            for record in 0..RECORDS {
                self.charge(u32::MAX, cost(record), start + record * APART);
            }
            self.wire.send(|_| {});
        });

        let used = (RECORDS / 2) as u32 * 51;
        let full = start + RECORDS * APART;
        let denying = slow(connection, || {
            for denial in 1..=1_000 {
                self.charge(used, used / 1_000 * denial, full);
            }
            self.wire.send(|_| {});
        });

        let leaves = |record: u64| start + record * APART + WINDOW;
        let shrinking = slow(connection, || {
            for charge in 1..=2_500 {
                self.charge(u32::MAX, 1, leaves(100 * charge));
            }
            self.wire.send(|_| {});
        });
        let at_once = slow(connection, || {
            for instant in [leaves(750_000), leaves(RECORDS - 1), leaves(RECORDS) + WINDOW] {
                self.charge(u32::MAX, 1, instant);
            }
            self.wire.send(|_| {});
        });
        [growing, denying, shrinking, at_once]
    }

    fn charge(&mut self, quota: u32, cost: u32, at: u64) {
        let arguments = pair(quota, cost, WINDOW, 0);
        let hash = self.texts.check_injected.as_bytes();
        let at = at.to_string();
        self.wire.queue(&[b"EVALSHA", hash, b"1", self.key.as_bytes(), &arguments, b"", at.as_bytes()]);
        self.wire.send_if_much();
    }
}

fn slow(connection: &mut Connection, calls: impl FnOnce()) -> Slow {
    cmd("SLOWLOG").arg("RESET").exec(connection).unwrap();
    calls();
    let log: Vec<Vec<Value>> = cmd("SLOWLOG").arg(&["GET", "-1"]).query(connection).expect("the slow log");
    let call = |entry: &Vec<Value>| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(entry.get(3)?.clone()).ok()?;
        let micros = redis::from_redis_value(entry.get(2)?.clone()).ok()?;
        // Behind the command, the hash, the number of keys and the key.
        (words.first()? == b"EVALSHA").then(|| (words[4..].to_vec(), micros))
    };
    log.iter().filter_map(call).collect()
}
