//! Measures what a check costs the server: microseconds per call and bytes per key, beside GCRA and common designs.
//!
//! ```text
//! cargo bench --bench script_cost
//! cargo bench --bench script_cost -- instructions
//! cargo bench --bench script_cost -- instructions --before ../before/lua
//! cargo bench --bench script_cost -- parts
//! cargo bench --bench script_cost -- server-time
//! ```
//!
//! The benchmark starts its own Redis servers. Without an argument, it measures times, takes two to five minutes, and ends with the
//! targets of the scripts.
//!
//! With `instructions`, it counts the instructions of the server in each script call, and needs valgrind. Other processes of the machine
//! do not change these figures: two servers differ by less than 2 %, and times by up to 25 %. It takes about ten minutes. With `--before`, it takes 17,
//! also measures the check script of another folder, and prints the ratio of both. The folder may be that of another revision:
//! `git worktree add --detach ../before REVISION`. The arguments and the stored layout of both must be the same.
//!
//! With `parts`, it counts the instructions of the commands of a log and of a GCRA, and what the rest of each check takes. It needs
//! valgrind, and takes a minute.
//!
//! With `server-time`, it measures the longest time of one call on the server, at the largest number of records. It takes about a minute,
//! and fails if a call takes longer than `lua/README.md` allows.
//!
//! `TEST_REDIS_SERVER` selects the program of the server, such as `target/engines/valkey-server`.
//!
//! Times are the server's own (`INFO commandstats`), with many calls per write. The designs take turns in each round. The figure of
//! a round is the first quartile of short samples, because a busy machine makes some samples longer and none shorter. The figure of
//! all rounds is their median. The ratios are more reliable than the microseconds: each is the median of the ratios within a round.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod assemble;
mod callgrind;
mod cell;
mod deep_refunds;
mod fill;
mod idle_key;
mod instructions;
mod measure;
mod memory;
mod multi_policy;
mod one_value;
mod parts;
mod refund;
mod replication;
mod rows;
mod scenario;
mod scripts;
#[path = "../../tests/support/server.rs"]
mod server;
mod server_time;
mod targets;
mod worst_case;

use std::{path::Path, process::ExitCode, time::Instant};

use deep_refunds::DeepRefunds;
use idle_key::IdleKey;
use measure::Pipeline;
use one_value::OneValue;
use refund::Refunds;
use scenario::{
    ADMITTED_10_000, ADMITTED_10_000_COST_100, ADMITTED_100, DENIED_10_000_COST_100, DENIED_100,
    MANY_ADMITTED, MANY_DENIED, Measured,
};
use scripts::{
    Design::{self, Gcra, Log, SortedSet, Tokens},
    Scripts,
};
use server::{Engine, Server};
use targets::Target;
use worst_case::WorstCase;

const ROUNDS: usize = 7;
const ROUNDS_OF_MANY_KEYS: usize = 3;

fn main() -> ExitCode {
    // `cargo bench` adds an argument.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            print_times();
            Ok(())
        }
        ["instructions"] => instructions::print(None),
        ["instructions", "--before", folder] => instructions::print(Some(Path::new(folder))),
        ["parts"] => parts::print(),
        ["server-time"] => server_time::print(),
        _ => Err("usage: cargo bench --bench script_cost [-- instructions [--before FOLDER] | -- parts | -- server-time]"
            .to_owned()),
    };
    if let Err(error) = result {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn print_times() {
    let start = Instant::now();
    let server = Server::start(Engine::Redis);
    let mut pipeline = Pipeline::connect(&server);
    let scripts = Scripts::load(&server, &mut pipeline);
    let window = fill::long_window(pipeline.now_micros());

    println!(
        "server microseconds per call (-: not measured; NaN: the machine was too busy; a window is longer for a \
         design that is too slow to fill it)"
    );
    print!("{:48}", "");
    for design in Design::ALL {
        print!("{:>12}", design.name());
    }
    println!();
    let scenarios = scenario::one_key(window);
    let one_key = Measured::of(&mut pipeline, &scripts, &scenarios, ROUNDS, 0);
    one_key.print(&scenarios);
    pipeline.ask(&[b"FLUSHALL"]);
    let scenarios = scenario::many_keys(window);
    let many_keys = Measured::of(&mut pipeline, &scripts, &scenarios, ROUNDS_OF_MANY_KEYS, 0x1000);
    many_keys.print(&scenarios);
    pipeline.ask(&[b"FLUSHALL"]);

    let bytes_per_record = memory::print(&mut pipeline, &scripts, window);
    pipeline.ask(&[b"FLUSHALL"]);
    let three_policies = multi_policy::three_to_one(&mut pipeline, &scripts);
    let one_value = OneValue::measure(&mut pipeline, &scripts);
    let idle_key = IdleKey::measure(&mut pipeline, &scripts);
    let refunds = Refunds::measure(&mut pipeline, &scripts, window);
    pipeline.ask(&[b"FLUSHALL"]);
    let mut connection = server.connection();
    let deep = DeepRefunds::measure(&mut connection, &mut pipeline, &scripts, 10_000);
    let deepest = DeepRefunds::measure(&mut connection, &mut pipeline, &scripts, 1 << 20);
    pipeline.ask(&[b"FLUSHALL"]);
    let worst_case = WorstCase::measure(&server, &mut pipeline, &scripts);
    let replicated = replication::bytes_of_denials();

    let ratio = |measured: &Measured, of, to| measured.ratio(of, to).expect("a scenario that is measured");
    let to_gcra = |scenario| ratio(&one_key, (scenario, Log), (scenario, Gcra));
    let tokens_to_gcra = |scenario| ratio(&one_key, (scenario, Tokens), (scenario, Gcra));
    let many_to_gcra = |scenario| ratio(&many_keys, (scenario, Log), (scenario, Gcra));
    let to_sorted_set = |scenario| ratio(&one_key, (scenario, Log), (scenario, SortedSet));
    let to_100 = |scenario| ratio(&one_key, (scenario, Log), (ADMITTED_100, Log));
    let denied_cost_100 = one_key.micros(DENIED_10_000_COST_100, Log).expect("a scenario that is measured");
    let millis = |micros: u64| micros as f64 / 1e3;
    targets::print(&[
        Target::new("log / GCRA, admitted, quota 100", to_gcra(ADMITTED_100), "x", 1.6, 1.2),
        Target::new("log / GCRA, admitted, quota 10,000", to_gcra(ADMITTED_10_000), "x", 1.6, 1.2),
        Target::new("log / GCRA, admitted, 10,000 keys", many_to_gcra(MANY_ADMITTED), "x", 1.6, 1.2),
        Target::new("log / GCRA, denied, quota 100", to_gcra(DENIED_100), "x", 1.5, 1.2),
        Target::new("log / GCRA, denied, 10,000 keys", many_to_gcra(MANY_DENIED), "x", 1.5, 1.2),
        Target::new("log / sorted set, cost 1, quota 100", to_sorted_set(ADMITTED_100), "x", 0.65, 0.45),
        Target::new(
            "log / sorted set, cost 1, quota 10,000",
            to_sorted_set(ADMITTED_10_000),
            "x",
            0.65,
            0.45,
        ),
        Target::new(
            "log / sorted set, cost 100, quota 10,000",
            to_sorted_set(ADMITTED_10_000_COST_100),
            "x",
            0.04,
            0.022,
        ),
        Target::new(
            "log, cost 100 / cost 1, equal records",
            to_100(ADMITTED_10_000_COST_100),
            "x",
            1.15,
            1.0,
        ),
        Target::new("log, quota 10,000 / quota 100, cost 1", to_100(ADMITTED_10_000), "x", 1.15, 1.0),
        Target::new("log, denied, cost 100, 10,000 records of cost 1", denied_cost_100, "us", 25.0, 7.0),
        Target::new("log, bytes per record, 10,000 records", bytes_per_record, "bytes", 18.0, 12.0),
        Target::new("log, refund to the newest of 10,000 records, partial", refunds.newest, "us", 10.0, 6.0),
        Target::new("log, refund to the newest, whole", refunds.newest_whole, "us", 10.0, 6.0),
        Target::new("log, refund to the oldest, partial", refunds.oldest, "us", 500.0, 100.0),
        Target::new("log, refund to the oldest, whole", refunds.oldest_whole, "us", 500.0, 100.0),
        Target::for_information("token bucket, refund", refunds.tokens, "us"),
        Target::for_information(
            "token bucket / GCRA, admitted, quota 100",
            tokens_to_gcra(ADMITTED_100),
            "x",
        ),
        Target::for_information("token bucket / GCRA, denied, quota 100", tokens_to_gcra(DENIED_100), "x"),
        Target::new("calendar period / fixed window, admitted", one_value.calendar_period, "x", 1.1, 1.0),
        Target::new("gate that does not block / fixed window, admitted", one_value.gate, "x", 0.9, 0.75),
        Target::new("in flight, renewal of one unit", one_value.renewal, "us", 15.0, 8.0),
        Target::new("log, refund to the middle", deep.middle, "us", 60.0, 48.0),
        Target::new("log, refund to the middle of 2^20 records", deepest.middle, "us", 300.0, 174.0),
        Target::new(
            "log, slowest of 10,000 refunds, 2^20 records",
            millis(deepest.slowest),
            "ms",
            1.0,
            0.538,
        ),
        Target::new("log after refunds / before, charge, 10,000 records", deep.charge, "x", 1.5, 1.2),
        Target::new("log after refunds / before, charge, 2^20 records", deepest.charge, "x", 2.0, 1.2),
        Target::new(
            "log after refunds / before, denial with a search, 10,000 records",
            deep.denial,
            "x",
            3.5,
            2.0,
        ),
        Target::new(
            "log after refunds, denial with a search, 2^20 records",
            deepest.denial_micros,
            "us",
            120.0,
            46.0,
        ),
        Target::new("log after refunds, bytes per record, 10,000 records", deep.bytes, "bytes", 15.5, 12.0),
        Target::new("log, worst case, 1,000,000 records", millis(worst_case.overall()), "ms", 2.0, 0.5),
        Target::for_information("    while it grows", millis(worst_case.growing), "ms"),
        Target::for_information("    1,000 denials at full size", millis(worst_case.denying), "ms"),
        Target::for_information("    100 records leave per charge", millis(worst_case.shrinking), "ms"),
        Target::for_information(
            "    500,000 records and more leave at once",
            millis(worst_case.at_once),
            "ms",
        ),
        Target::new("log, multi-policy check, three policies / one", three_policies, "x", 2.6, 2.0),
        Target::new("bytes replicated, 1,000 denials per algorithm", replicated as f64, "bytes", 0.0, 0.0),
        Target::for_information(
            "buckets, idle key / live key, charge after 12 of 24 hours",
            idle_key.idle_charge / idle_key.live_charge,
            "x",
        ),
        Target::for_information("    microseconds", idle_key.idle_charge, "us"),
        Target::for_information(
            "    peek, idle key / live key",
            idle_key.idle_peek / idle_key.live_peek,
            "x",
        ),
    ]);
    println!(
        "\nrounds: {ROUNDS} with one key, {ROUNDS_OF_MANY_KEYS} with 10,000 keys; duration: {} s",
        start.elapsed().as_secs()
    );
}
