//! The worst single call while a log grows to a million records, is asked, and shrinks again.
//!
//! The clock is told, so that a window passes at once. The machine may take the processor away in the middle of a call: the
//! same is done twice, and the smaller maximum counts.

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
    pub fn measure(server: &Server, wire: &mut Wire, texts: &Texts) -> [Self; 2] {
        let mut connection = server.connection();
        for (option, value) in [("slowlog-log-slower-than", LOOKED_AT), ("slowlog-max-len", 100_000)] {
            cmd("CONFIG").arg("SET").arg(option).arg(value).exec(&mut connection).unwrap();
        }
        let runs = [0, 1].map(|run| Log { wire, texts, key: key(0xd << 32, run) }.measure(&mut connection));
        cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "-1"]).exec(&mut connection).unwrap();
        runs
    }

    pub fn overall(&self) -> u64 {
        self.growing.max(self.denying).max(self.shrinking).max(self.at_once)
    }

    pub fn smaller([a, b]: [Self; 2]) -> Self {
        Self {
            growing: a.growing.min(b.growing),
            denying: a.denying.min(b.denying),
            shrinking: a.shrinking.min(b.shrinking),
            at_once: a.at_once.min(b.at_once),
        }
    }
}

struct Log<'a> {
    wire: &'a mut Wire,
    texts: &'a Texts,
    key: String,
}

impl Log<'_> {
    fn measure(&mut self, connection: &mut Connection) -> Worst {
        let start = self.wire.now_micros();
        // The later half costs more, so that a record is not where equal costs would have it.
        let cost = |record: u64| if record < RECORDS / 2 { 1 } else { 50 };
        let growing = worst(connection, || {
            for record in 0..RECORDS {
                self.charge(u32::MAX, cost(record), start + record * APART);
            }
            self.wire.send(|_| {});
        });

        let used = (RECORDS / 2) as u32 * 51;
        let full = start + RECORDS * APART;
        let denying = worst(connection, || {
            for denial in 1..=1_000 {
                self.charge(used, used / 1_000 * denial, full);
            }
            self.wire.send(|_| {});
        });

        let leaves = |record: u64| start + record * APART + WINDOW;
        let shrinking = worst(connection, || {
            for charge in 1..=2_500 {
                self.charge(u32::MAX, 1, leaves(100 * charge));
            }
            self.wire.send(|_| {});
        });
        let at_once = worst(connection, || {
            for instant in [leaves(750_000), leaves(RECORDS - 1), leaves(RECORDS) + WINDOW] {
                self.charge(u32::MAX, 1, instant);
            }
            self.wire.send(|_| {});
        });
        Worst { growing, denying, shrinking, at_once }
    }

    fn charge(&mut self, quota: u32, cost: u32, at: u64) {
        let arguments = pair(quota, cost, WINDOW, 0);
        let hash = self.texts.check_injected.as_bytes();
        let at = at.to_string();
        self.wire.queue(&[b"EVALSHA", hash, b"1", self.key.as_bytes(), &arguments, b"", at.as_bytes()]);
        self.wire.send_if_much();
    }
}

/// The longest of the calls that are made, in microseconds; what was not looked at counts as much as is looked at.
fn worst(connection: &mut Connection, calls: impl FnOnce()) -> u64 {
    cmd("SLOWLOG").arg("RESET").exec(connection).unwrap();
    calls();
    let log: Vec<Vec<Value>> = cmd("SLOWLOG").arg(&["GET", "-1"]).query(connection).expect("the slow log");
    let durations = log.iter().filter_map(|entry| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(entry.get(3)?.clone()).ok()?;
        let micros = redis::from_redis_value::<u64>(entry.get(2)?.clone()).ok()?;
        (words.first()? == b"EVALSHA").then_some(micros)
    });
    durations.max().unwrap_or(LOOKED_AT)
}
