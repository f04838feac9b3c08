//! What a check costs the server: microseconds of a call and bytes of a key, beside a token bucket and the usual designs.
//!
//! ```text
//! cargo bench --bench script_cost
//! ```
//!
//! It starts a Redis of its own. Every cell is measured in interleaved rounds, and the median is told: trust the ratios, not
//! the microseconds. Times are the server's own (`INFO commandstats`), at 64 calls in one write.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/support/server.rs"]
mod server;

use redis::{Connection, Value, cmd, pipe};
use server::{Engine, Server};

const ROUNDS: usize = 5;
const CALLS: usize = 12_800;
const DEPTH: usize = 64;

struct Script {
    name: &'static str,
    text: &'static str,
}

const SCRIPTS: [Script; 5] = [
    Script { name: "return 1", text: "return 1" },
    Script { name: "GCRA", text: include_str!("gcra.lua") },
    Script {
        name: "sliding log (ours)",
        text: concat!(
            include_str!("../../lua/clock.lua"),
            include_str!("../../lua/records.lua"),
            include_str!("../../lua/calendar.lua"),
            include_str!("../../lua/log.lua"),
            include_str!("../../lua/check.lua"),
        ),
    },
    Script { name: "sorted set, a member a unit", text: include_str!("sorted_set.lua") },
    Script { name: "hash of 60 buckets", text: include_str!("hash_buckets.lua") },
];
const EMPTY: usize = 0;
const GCRA: usize = 1;
const OURS: usize = 2;
const SORTED_SET: usize = 3;

struct Cell {
    name: &'static str,
    admitted: bool,
    quota: u32,
    cost: u32,
    /// Shorter than a policy may have, where a server answers more than a quota in a millisecond.
    window_micros: u64,
    keys: usize,
}

const CELLS: [Cell; 9] = [
    Cell { name: "admitted, quota 100", admitted: true, quota: 100, cost: 1, window_micros: 150, keys: 1 },
    Cell {
        name: "admitted, quota 10,000",
        admitted: true,
        quota: 10_000,
        cost: 1,
        window_micros: 50_000,
        keys: 1,
    },
    Cell {
        name: "admitted, quota 10,000, cost 100",
        admitted: true,
        quota: 10_000,
        cost: 100,
        window_micros: 150,
        keys: 1,
    },
    Cell {
        name: "admitted, 10,000 keys",
        admitted: true,
        quota: 100,
        cost: 1,
        window_micros: 10_000_000,
        keys: 10_000,
    },
    Cell {
        name: "admitted, 10,000 keys, cost 100",
        admitted: true,
        quota: 10_000,
        cost: 100,
        window_micros: 10_000_000,
        keys: 10_000,
    },
    Cell {
        name: "denied, quota 100",
        admitted: false,
        quota: 100,
        cost: 1,
        window_micros: 600_000_000,
        keys: 1,
    },
    Cell {
        name: "denied, quota 10,000",
        admitted: false,
        quota: 10_000,
        cost: 1,
        window_micros: 600_000_000,
        keys: 1,
    },
    Cell {
        name: "denied, cost 100, 10,000 ones",
        admitted: false,
        quota: 10_000,
        cost: 100,
        window_micros: 600_000_000,
        keys: 1,
    },
    Cell {
        name: "denied, 10,000 keys",
        admitted: false,
        quota: 1,
        cost: 1,
        window_micros: 600_000_000,
        keys: 10_000,
    },
];

fn main() {
    let server = Server::start(Engine::Redis);
    let mut connection = server.connection();
    let hashes: Vec<String> = SCRIPTS
        .iter()
        .map(|script| {
            cmd("SCRIPT").arg("LOAD").arg(script.text).query(&mut connection).expect("a script that loads")
        })
        .collect();

    println!(
        "server microseconds a call, median of {ROUNDS} rounds of {CALLS} calls; in brackets, times GCRA"
    );
    print!("{:34}", "");
    for script in &SCRIPTS {
        print!("{:>28}", script.name);
    }
    println!();
    for (number, cell) in CELLS.iter().enumerate() {
        let mut times = vec![Vec::new(); SCRIPTS.len()];
        for round in 0..ROUNDS {
            for (script, hash) in hashes.iter().enumerate() {
                let prefix = format!("{number}:{script}");
                if round == 0 && !cell.admitted {
                    fill(&mut connection, hash, &prefix, cell);
                }
                times[script].push(run(&mut connection, hash, &prefix, cell, CALLS, script != EMPTY));
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        print!("{:34}", cell.name);
        for median in &medians {
            print!("{:>28}", format!("{median:.2} ({:.2})", median / medians[GCRA]));
        }
        println!();
    }

    println!("\nbytes, MEMORY USAGE");
    print!("{:34}", "");
    for script in &SCRIPTS[GCRA..] {
        print!("{:>28}", script.name);
    }
    println!();
    for (name, records, cost) in [
        ("1 record", 1, 1),
        ("100 records", 100, 1),
        ("10,000 records", 10_000, 1),
        ("100 records, cost 100", 100, 100),
    ] {
        print!("{name:34}");
        for (script, hash) in hashes.iter().enumerate().skip(GCRA) {
            let cell =
                Cell { name, admitted: true, quota: 1_000_000, cost, window_micros: 600_000_000, keys: 1 };
            let prefix = format!("bytes {name}:{script}");
            run(&mut connection, hash, &prefix, &cell, records, true);
            let key = key(&prefix, 0);
            let bytes: u64 =
                cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query(&mut connection).unwrap();
            print!("{:>28}", format!("{bytes} ({:.1} a record)", bytes as f64 / records as f64));
        }
        println!();
    }

    println!("\nours against the sorted set: {}", against_sorted_set(&mut connection, &hashes));
    println!(
        "three policies in one check against one: {:.2}",
        three_against_one(&mut connection, &hashes[OURS])
    );
}

/// Fills every key up to its quota, with charges of one unit.
fn fill(connection: &mut Connection, hash: &str, prefix: &str, cell: &Cell) {
    let ones = Cell { cost: 1, admitted: true, ..*cell };
    run(connection, hash, prefix, &ones, cell.quota as usize * cell.keys, false);
}

/// Calls the script so often, and tells the server's microseconds of one call.
fn run(
    connection: &mut Connection,
    hash: &str,
    prefix: &str,
    cell: &Cell,
    calls: usize,
    verify: bool,
) -> f64 {
    let arguments = arguments(cell);
    let mut as_wanted = 0;
    cmd("CONFIG").arg("RESETSTAT").exec(connection).unwrap();
    for start in (0..calls).step_by(DEPTH) {
        let mut together = pipe();
        for call in start..calls.min(start + DEPTH) {
            together.cmd("EVALSHA").arg(hash).arg(1).arg(key(prefix, call % cell.keys)).arg(&arguments);
        }
        let replies: Vec<Value> = together.query(connection).expect("a script that runs");
        let verdict =
            |reply: &Value| matches!(reply, Value::BulkString(bytes) if (bytes[8] == 0) == cell.admitted);
        as_wanted += replies.iter().filter(|reply| verdict(reply)).count();
    }
    // A busy machine may refuse a few of the shortest window's.
    assert!(!verify || as_wanted * 100 >= calls * 98, "{}: only {as_wanted} of {calls} as wanted", cell.name);
    let statistics: String = cmd("INFO").arg("commandstats").query(connection).unwrap();
    let line = statistics.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("calls were made");
    let microseconds = line.split("usec_per_call=").nth(1).unwrap().split(',').next().unwrap();
    microseconds.parse().unwrap()
}

fn arguments(cell: &Cell) -> Vec<u8> {
    [&cell.quota.to_le_bytes()[..], &cell.cost.to_le_bytes(), &cell.window_micros.to_le_bytes()[..6], &[0; 6]]
        .concat()
}

fn key(prefix: &str, number: usize) -> String {
    format!("{{{prefix}}}:{number}")
}

fn against_sorted_set(connection: &mut Connection, hashes: &[String]) -> String {
    let ratio = |connection: &mut Connection, cell: &Cell| {
        let rounds = (0..ROUNDS).map(|_| {
            let ours = run(connection, &hashes[OURS], &format!("ss {}", cell.name), cell, CALLS, true);
            ours / run(connection, &hashes[SORTED_SET], &format!("ss set {}", cell.name), cell, CALLS, false)
        });
        median(rounds.collect())
    };
    format!("cost 1 {:.3}, cost 100 {:.3}", ratio(connection, &CELLS[1]), ratio(connection, &CELLS[2]))
}

fn three_against_one(connection: &mut Connection, hash: &str) -> f64 {
    let cell = Cell { name: "", admitted: true, quota: 1_000_000, cost: 1, window_micros: 50_000, keys: 1 };
    let rounds = (0..ROUNDS).map(|_| {
        let one = run(connection, hash, "one", &cell, CALLS, true);
        cmd("CONFIG").arg("RESETSTAT").exec(connection).unwrap();
        for _ in 0..CALLS / DEPTH {
            let mut together = pipe();
            for _ in 0..DEPTH {
                let keys: Vec<String> = (0..3).map(|policy| key("three", policy)).collect();
                together.cmd("EVALSHA").arg(hash).arg(3).arg(keys).arg(arguments(&cell).repeat(3));
            }
            let _: Vec<Value> = together.query(connection).unwrap();
        }
        let statistics: String = cmd("INFO").arg("commandstats").query(connection).unwrap();
        let line = statistics.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let three: f64 =
            line.split("usec_per_call=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        three / one
    });
    median(rounds.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
