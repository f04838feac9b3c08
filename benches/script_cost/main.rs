//! What a check costs the server: microseconds of a call and bytes of a key, beside a token bucket and the usual designs,
//! and then what the script is held to.
//!
//! ```text
//! cargo bench --bench script_cost
//! ```
//!
//! It starts Redis servers of its own, and takes two to five minutes. Designs take turns, round by round. A round is cut into
//! short pieces and told by their first quartile, for a busy machine makes some of them longer and none shorter; of the
//! rounds the median is told. Trust the ratios, each the median of the ratios in one round, and not the microseconds. Times
//! are the server's own (`INFO commandstats`), with many calls in one write.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, clippy::expect_used)]

mod apart;
mod bytes;
mod cells;
mod fill;
mod largest;
mod measure;
mod refunds;
mod scripts;
#[path = "../../tests/support/server.rs"]
mod server;
mod targets;

use std::time::Instant;

use apart::Idle;
use cells::{
    ADMITTED_10_000, ADMITTED_10_000_BY_100, ADMITTED_100, DENIED_10_000_BY_100, DENIED_100, MANY_ADMITTED,
    MANY_DENIED, Measured,
};
use largest::Worst;
use measure::Wire;
use refunds::Refunds;
use scripts::{
    Design::{self, Gcra, Log, SortedSet},
    Texts,
};
use server::{Engine, Server};
use targets::Target;

/// With one key, and with ten thousand.
const ROUNDS: usize = 7;
const ROUNDS_OF_MANY: usize = 3;

fn main() {
    let start = Instant::now();
    let server = Server::start(Engine::Redis);
    let mut wire = Wire::at(&server);
    let texts = Texts::load(&server, &mut wire);
    let window = fill::long_window(wire.now_micros());

    println!(
        "server microseconds of a call; a dash where it makes no sense, NaN where the machine was too busy; a window \
         is longer than is said where a design is too slow to fill it"
    );
    print!("{:44}", "");
    for design in Design::ALL {
        print!("{:>12}", design.name());
    }
    println!();
    let cells = cells::one_key(window);
    let one = Measured::of(&mut wire, &texts, &cells, ROUNDS, 0);
    one.print(&cells);
    wire.ask(&[b"FLUSHALL"]);
    let cells = cells::many_keys(window);
    let many = Measured::of(&mut wire, &texts, &cells, ROUNDS_OF_MANY, 0x1000);
    many.print(&cells);
    wire.ask(&[b"FLUSHALL"]);

    let of_a_record = bytes::print(&mut wire, &texts, window);
    wire.ask(&[b"FLUSHALL"]);
    let three = apart::three_against_one(&mut wire, &texts);
    let idle = Idle::measure(&mut wire, &texts);
    let refunds = Refunds::measure(&mut wire, &texts, window);
    wire.ask(&[b"FLUSHALL"]);
    let worst = Worst::measure(&server, &mut wire, &texts);
    let replicated = apart::replicated_by_denials();

    let in_one = |of, to| one.ratio(of, to).expect("a cell that makes sense");
    let in_many = |of, to| many.ratio(of, to).expect("a cell that makes sense");
    let against_gcra = |cell| in_one((cell, Log), (cell, Gcra));
    let many_against_gcra = |cell| in_many((cell, Log), (cell, Gcra));
    let against_set = |cell| in_one((cell, Log), (cell, SortedSet));
    let denial_of_100 = one.micros(DENIED_10_000_BY_100, Log).expect("a cell that makes sense");
    let log = |of, to| in_one((of, Log), (to, Log));
    targets::print(&[
        Target::new("log against GCRA, admitted, quota 100", against_gcra(ADMITTED_100), "x", 1.6, 1.2),
        Target::new("log against GCRA, admitted, quota 10,000", against_gcra(ADMITTED_10_000), "x", 1.6, 1.2),
        Target::new(
            "log against GCRA, admitted, 10,000 keys",
            many_against_gcra(MANY_ADMITTED),
            "x",
            1.6,
            1.2,
        ),
        Target::new("log against GCRA, denied, quota 100", against_gcra(DENIED_100), "x", 1.5, 1.2),
        Target::new("log against GCRA, denied, 10,000 keys", many_against_gcra(MANY_DENIED), "x", 1.5, 1.2),
        Target::new("log against sorted set, cost 1, quota 100", against_set(ADMITTED_100), "x", 0.65, 0.45),
        Target::new(
            "log against sorted set, cost 1, quota 10,000",
            against_set(ADMITTED_10_000),
            "x",
            0.65,
            0.45,
        ),
        Target::new(
            "log against sorted set, cost 100, quota 10,000",
            against_set(ADMITTED_10_000_BY_100),
            "x",
            0.04,
            0.022,
        ),
        Target::new(
            "log, cost 100 against cost 1, as many records",
            log(ADMITTED_10_000_BY_100, ADMITTED_100),
            "x",
            1.15,
            1.0,
        ),
        Target::new(
            "log, quota 10,000 against quota 100, cost 1",
            log(ADMITTED_10_000, ADMITTED_100),
            "x",
            1.15,
            1.0,
        ),
        Target::new("log, a denial of cost 100 behind 10,000 ones", denial_of_100, "us", 25.0, 7.0),
        Target::new("log, bytes of a record, of 10,000", of_a_record, "bytes", 18.0, 12.0),
        Target::new(
            "log, a refund to the newest of 10,000 records, in part",
            refunds.newest,
            "us",
            10.0,
            6.0,
        ),
        Target::new("log, the same, of all its units", refunds.newest_whole, "us", 10.0, 6.0),
        Target::new("log, a refund to the oldest, in part", refunds.oldest, "us", 500.0, 100.0),
        Target::new("log, the same, of all its units", refunds.oldest_whole, "us", 500.0, 100.0),
        Target::to_know("log, a refund to the one in the middle", refunds.middle, "us"),
        Target::new(
            "log, the worst single call, to 1,000,000 records and back",
            worst.overall() as f64 / 1e3,
            "ms",
            2.0,
            0.5,
        ),
        Target::to_know("    while it grows", worst.growing as f64 / 1e3, "ms"),
        Target::to_know("    of 1,000 denials at its full size", worst.denying as f64 / 1e3, "ms"),
        Target::to_know(
            "    while a hundred records leave with a charge",
            worst.shrinking as f64 / 1e3,
            "ms",
        ),
        Target::to_know("    half a million and more at once", worst.at_once as f64 / 1e3, "ms"),
        Target::new("log, three policies in one check against one", three, "x", 2.6, 2.0),
        Target::new(
            "bytes replicated by 1,000 denials of every algorithm",
            replicated as f64,
            "bytes",
            0.0,
            0.0,
        ),
        Target::to_know(
            "buckets, a charge to a key idle for 12 of 24 hours, against a live one",
            idle.admitted / idle.live_admitted,
            "x",
        ),
        Target::to_know("    in microseconds", idle.admitted, "us"),
        Target::to_know("    a peek, against one of a live key", idle.peeked / idle.live_peeked, "x"),
    ]);
    println!(
        "\n{ROUNDS} rounds with one key, {ROUNDS_OF_MANY} with 10,000; it took {} s",
        start.elapsed().as_secs()
    );
}
