//! Measures the longest time of one call on the server, at the largest number of records: checks, refunds, resets and merged calls.
//!
//! The clock is injected, so a window passes at once. The machine may interrupt a call. Therefore the same history runs seven times.
//! The shortest time of each call counts, and a figure is the longest of these.

use std::{iter::repeat_n, path::Path};

use redis::{Connection, Value, cmd};

use crate::{
    assemble::{self, with_injected_clock},
    measure::{Pipeline, key, pair, pairs},
    server::{Engine, Server},
};

const RECORDS: u64 = (1 << 20) - 1;
const WINDOW: u64 = 3_600_000_000;
const ROUNDS: usize = 7;
/// The numbers of pairs in a check, and the longest time of a check with them, in microseconds.
const MAX_CALL: [(usize, u64); 3] = [(1, 500), (4, 1_200), (8, 2_000)];
/// The same of a refund. The client sends at most four pairs in one call.
const MAX_REFUND: [(usize, u64); 2] = [(1, 500), (4, 1_000)];
/// The longest time of a merged call, in microseconds.
const MAX_MERGED: u64 = 2_000;
/// The refunds that leave tags in all parts of a log.
const REFUNDS: u64 = 10_000;
/// The record to refund: it raises the blocks up to number 65,535, whose 16 bits are all set, so it changes the most tags.
const REFUNDED: u64 = 8 * 65_535 - 3;

/// The records of a log: their instants after the first one, in microseconds, and their costs.
type Shape = fn(u64, u64) -> (u64, u32);

/// All but ten records are from the begin of the window, one each microsecond. The last ten have most of the units. So neither an instant
/// nor a sum is where even charges would place it.
const SKEWED: Shape = |record, records| {
    if record + 10 < records { (record, 1) } else { (WINDOW - records + record, 1_000_000) }
};
/// All records but one are of the same instant.
const SAME_INSTANT: Shape = |record, _| (if record == 0 { 0 } else { WINDOW / 2 }, 1);

/// The records are a microsecond apart. Each has units to refund.
const EVEN: Shape = |record, _| (record, 3);

struct Bench {
    pipeline: Pipeline,
    connection: Connection,
    check: String,
    merged: String,
    refund: String,
    reset: String,
    start: u64,
}

/// A call that is measured: what it is, the script and its arguments.
struct Call<'a> {
    name: &'a str,
    script: &'a str,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

/// Prints the figures. Returns an error if one of them is too large.
pub fn print() -> Result<(), String> {
    let server = Server::start(Engine::Redis);
    let mut pipeline = Pipeline::connect(&server);
    let mut connection = server.connection();
    for (option, value) in [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "8")] {
        cmd("CONFIG").arg(&["SET", option, value]).exec(&mut connection).unwrap();
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut load = |script: Result<String, String>| -> Result<String, String> {
        Ok(pipeline.ask(&[b"SCRIPT", b"LOAD", with_injected_clock(&script?)?.as_bytes()]))
    };
    let check = load(assemble::script(&folder, "check.lua"))?;
    let merged = load(assemble::script(&folder, "merged.lua"))?;
    let refund = load(assemble::script(&folder, "refund.lua"))?;
    let reset = load(assemble::script(&folder, "reset.lua"))?;
    let start = pipeline.now_micros();
    Bench { pipeline, connection, check, merged, refund, reset, start }.measure()
}

impl Bench {
    fn measure(&mut self) -> Result<(), String> {
        let mut too_long = 0;
        let mut report = |name: &str, micros: u64, most: u64| {
            let note = if micros > most { "  TOO LONG" } else { "" };
            too_long += u32::from(micros > most);
            println!("{name:76}{micros:>8} us{note}");
        };
        println!(
            "the longest time of a check on the server: 1, 4 and 8 pairs of a log with {RECORDS} records each"
        );
        self.fill(SKEWED, RECORDS);
        let half = self.start + RECORDS / 2 + WINDOW;
        let units = RECORDS / 2 - 10 + 10_000_000;
        let (full, middle) = (units as u32, (RECORDS / 4) as u32);
        let nearly_all = self.start + RECORDS + WINDOW + WINDOW / 100;
        for (name, quota, cost, purpose, at) in [
            ("check: most records leave at once, charge", u32::MAX, 1, "", nearly_all),
            ("check: most records leave at once, reserve", u32::MAX, 1, "r", nearly_all),
            ("check: half of the records leave at once, charge", u32::MAX, 1, "", half),
            ("check: half of the records leave at once, denial with a search", full, middle, "", half),
            ("check: denial with a search", u32::MAX, u32::MAX - 11_000_000, "", self.start + WINDOW - 1),
            ("check: all records leave at once, charge", u32::MAX, 1, "", self.start + 3 * WINDOW),
        ] {
            let script = self.check.clone();
            for (count, most) in MAX_CALL {
                let micros =
                    self.slowest(|bench| bench.of_pairs(name, &script, (count, quota, cost), purpose, at));
                report(name, micros, most);
            }
        }
        let (reset, none) = (self.reset.clone(), u64::MAX.to_le_bytes().to_vec());
        let at = self.start.to_string().into_bytes();
        let micros = self.slowest(|_| Call {
            name: "reset",
            script: &reset,
            keys: keys(8),
            arguments: vec![none.clone(), at.clone()],
        });
        report("reset of 8 pairs", micros, MAX_CALL[1].1);
        self.fill(SAME_INSTANT, RECORDS);
        let (script, at) = (self.check.clone(), self.start + WINDOW / 2);
        let name = "check: all records are of this instant, reserve";
        for (count, most) in MAX_CALL {
            let micros = self.slowest(|bench| bench.of_pairs(name, &script, (count, u32::MAX, 1), "r", at));
            report(name, micros, most);
        }

        println!(
            "refunds in the middle of a log of {RECORDS} records, and the log after {REFUNDS} refunds in all of its parts"
        );
        self.fill(EVEN, RECORDS);
        let name = "refund, first one of the log";
        self.report_refunds(name, &mut report);
        let (source, script) = (source(), self.refund.clone());
        let at = (self.start + RECORDS).to_string();
        for refund in 0..REFUNDS {
            let arguments = self.refund_of(1, refund * 7_919 % RECORDS);
            let words = [b"EVALSHA", script.as_bytes(), b"1", source.as_bytes(), &arguments, at.as_bytes()];
            self.pipeline.queue(&words);
            self.pipeline.flush_if_full();
        }
        self.pipeline.flush(|_| {});
        self.report_refunds("refund, after others", &mut report);
        let used = (3 * RECORDS - REFUNDS) as u32;
        for (name, quota, cost, at) in [
            (
                "check after refunds: half of the records leave at once, charge",
                u32::MAX,
                1,
                WINDOW + RECORDS / 2,
            ),
            (
                "check after refunds: half leave at once, denial with a search",
                used / 2,
                used / 4,
                WINDOW + RECORDS / 2,
            ),
            ("check after refunds: denial with a search", used, used / 3, WINDOW - 1),
        ] {
            let (script, at) = (self.check.clone(), self.start + at);
            for (count, most) in MAX_CALL {
                let micros =
                    self.slowest(|bench| bench.of_pairs(name, &script, (count, quota, cost), "", at));
                report(name, micros, most);
            }
        }

        println!(
            "merged calls of checks of one pair, half of the records leave at once, denials with a search"
        );
        for (records, checks) in [(128, 50), (1_024, 30), (4_096, 22), (65_536, 15), (RECORDS, 6)] {
            self.fill(SKEWED, records);
            let at = self.start + records / 2 + WINDOW;
            let (units, middle) = ((records / 2 - 10 + 10_000_000) as u32, (records / 4) as u32);
            let script = self.merged.clone();
            let run = [&[1, 1][..], &pair(units, middle, WINDOW, 0)].concat();
            let micros = self.slowest(|_| Call {
                name: "merged",
                script: &script,
                keys: keys(checks),
                arguments: vec![run.repeat(checks), Vec::new(), at.to_string().into_bytes()],
            });
            report(&format!("{checks} checks, {records} records each"), micros, MAX_MERGED);
        }
        if too_long > 0 { Err(format!("{too_long} calls take too long")) } else { Ok(()) }
    }

    fn report_refunds(&mut self, name: &str, report: &mut impl FnMut(&str, u64, u64)) {
        let script = self.refund.clone();
        for (count, most) in MAX_REFUND {
            let arguments =
                vec![self.refund_of(count, REFUNDED), (self.start + RECORDS).to_string().into_bytes()];
            let micros = self.slowest(|_| Call {
                name,
                script: &script,
                keys: keys(count),
                arguments: arguments.clone(),
            });
            report(name, micros, most);
        }
    }

    /// Returns the arguments of a refund of one unit to this record of the log and of its copies.
    fn refund_of(&mut self, pairs: usize, record: u64) -> Vec<u8> {
        let tail: Vec<u8> = cmd("LINDEX").arg(source()).arg(-1).query(&mut self.connection).unwrap();
        let (generation, at) = (&tail[..7], (self.start + record).to_le_bytes());
        let ordinal = [0; 3];
        let receipt = [generation, &at[..7], &ordinal].concat();
        let pair = [&1_u32.to_le_bytes()[..], &WINDOW.to_le_bytes()[..6], &[0; 6], &receipt].concat();
        [u64::MAX.to_le_bytes().to_vec(), pair.repeat(pairs)].concat()
    }

    fn of_pairs<'a>(
        &self,
        name: &'a str,
        script: &'a str,
        (count, quota, cost): (usize, u32, u32),
        purpose: &str,
        at: u64,
    ) -> Call<'a> {
        let arguments = pairs(quota, cost, repeat_n(WINDOW, count), 0);
        let at = at.to_string().into_bytes();
        Call { name, script, keys: keys(count), arguments: vec![arguments, purpose.into(), Vec::new(), at] }
    }

    /// Writes a log of this shape under the key of which the others are copies.
    fn fill(&mut self, shape: Shape, records: u64) {
        let (source, start) = (source(), self.start);
        self.pipeline.ask(&[b"UNLINK", source.as_bytes()]);
        for record in 0..records {
            let (after, cost) = shape(record, records);
            let (arguments, at) = (pair(u32::MAX, cost, WINDOW, 0), (start + after).to_string());
            let words: [&[u8]; 8] = [
                b"EVALSHA",
                self.check.as_bytes(),
                b"1",
                source.as_bytes(),
                &arguments,
                b"o",
                b"",
                at.as_bytes(),
            ];
            self.pipeline.queue(&words);
            self.pipeline.flush_if_full();
        }
        self.pipeline.flush(|_| {});
        cmd("PERSIST").arg(&source).exec(&mut self.connection).unwrap();
    }

    /// Returns the shortest time of a call in seven rounds, each on new copies of the log.
    fn slowest<'a>(&mut self, call: impl Fn(&Self) -> Call<'a>) -> u64 {
        let call = call(self);
        let rounds = (0..ROUNDS).map(|_| {
            for key in &call.keys {
                cmd("COPY").arg(source()).arg(key).arg("REPLACE").exec(&mut self.connection).unwrap();
            }
            cmd("SLOWLOG").arg("RESET").exec(&mut self.connection).unwrap();
            let mut evalsha = cmd("EVALSHA");
            evalsha.arg(call.script).arg(call.keys.len()).arg(&call.keys);
            for argument in &call.arguments {
                evalsha.arg(argument);
            }
            evalsha.exec(&mut self.connection).unwrap_or_else(|error| panic!("{}: {error}", call.name));
            micros_of_script(&mut self.connection)
        });
        rounds.min().unwrap_or_default()
    }
}

/// Returns the key of the log that is copied.
fn source() -> String {
    key(0x9 << 32, 0)
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| key(0x8 << 32, number)).collect()
}

fn micros_of_script(connection: &mut Connection) -> u64 {
    let log: Vec<Vec<Value>> = cmd("SLOWLOG").arg(&["GET", "-1"]).query(connection).expect("the slow log");
    let micros = |entry: &Vec<Value>| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(entry.get(3)?.clone()).ok()?;
        (words.first()? == b"EVALSHA").then(|| redis::from_redis_value(entry.get(2)?.clone()).ok())?
    };
    log.iter().find_map(micros).expect("a script in the slow log")
}
