//! An independent implementation of the documented storage layout. It fills logs that are too large to fill by checks, and
//! it detects an unintended change of the layout.

use std::time::Duration;

use redis::{Connection, pipe};
use tower_sliding_window::{
    Algorithm, Policy, RedisBackend, Wait,
    backend::{Backend, Purpose, Receipt, Refund},
};

use super::{
    admin::Admin,
    rig::{HOUR, alice, check, every_type, limiter, peek, policy, remaining, reserve, with_manual_clock},
};
use crate::support::server::{Engine, Server};

/// A generation for written records. Lua cannot represent its 56 bits as a number.
pub const GENERATION: u64 = (1 << 56) - 1;

/// The size of the tail of a log whose only record is that of the last charge.
pub const SHORT_SIZE: usize = 23;

/// The size of the value of a token bucket without receipts.
pub const PLAIN_TOKENS_SIZE: usize = 28;

/// The largest prime below 2^32. No flipped bit changes a sum by a multiple of it.
const CHECK_MODULUS: u64 = 4_294_967_291;

/// A log of charges or of buckets.
pub struct Log<'a> {
    /// A number of 56 bits.
    pub generation: u64,
    pub last: u64,
    /// The total of the units before the oldest record, modulo 2^40.
    pub before: u64,
    /// The length of a bucket; 0 for a log of charges.
    pub precision: u64,
    /// The instant and the units of each record. The instant of a bucket is its end.
    pub records: &'a [(u64, u64)],
}

/// Returns the instant of the record of a charge at this instant: in buckets, the end of its bucket.
pub fn record_of(at: u64, precision: u64) -> u64 {
    at.checked_div(precision).map_or(at, |bucket| (bucket + 1) * precision)
}

/// Writes a log whose records have not expired.
pub fn write_log(connection: &mut Connection, key: &str, log: &Log<'_>) {
    let Log { generation, last, before, precision, records } = log;
    let mut total = *before;
    let mut stored = Vec::new();
    for (at, units) in *records {
        // The total of the units before this record.
        stored.push([&at.to_le_bytes()[..7], &u64::to_le_bytes(total)[..5]].concat());
        total = (total + units) % (1 << 40);
    }
    let (oldest, newest) = (records[0].0, records[records.len() - 1].0);
    let header = [
        &generation.to_le_bytes()[..7],
        &last.to_le_bytes()[..7],
        &newest.to_le_bytes()[..7],
        // The oldest record is in the header.
        &oldest.to_le_bytes()[..7],
        &before.to_le_bytes()[..5],
        // The total of all units.
        &total.to_le_bytes()[..5],
        // No records in front, and no refunded record.
        &[0],
        &(records.len() as u64).to_le_bytes()[..3],
    ];

    let mut entries: Vec<Vec<u8>> = stored[1..].chunks(8).map(<[Vec<u8>]>::concat).collect();
    let tail = entries.pop().unwrap_or_default();
    let only_units = total.wrapping_sub(*before) % (1 << 40);
    entries.push(if records.len() == 1 && newest == record_of(*last, *precision) {
        // The only record is that of the last charge.
        let check = ((last + only_units) % CHECK_MODULUS + 1).to_le_bytes();
        let (last, units) = (last.to_le_bytes(), only_units.to_le_bytes());
        [&generation.to_le_bytes()[..7], &last[..7], &units[..5], &check[..4]].concat()
    } else {
        [header.concat(), tail].concat()
    });
    pipe().del(key).exec(connection).unwrap();
    for chunk in entries.chunks(4096) {
        pipe().rpush(key, chunk).exec(connection).unwrap();
    }
    pipe().pexpire(key, 7_200_000).exec(connection).unwrap();
}

/// Writes a log of charges of cost 1 at these instants, none of them expired.
pub fn write_charges_of_one(connection: &mut Connection, key: &str, instants: &[u64]) {
    let records: Vec<(u64, u64)> = instants.iter().map(|at| (*at, 1)).collect();
    let last = instants[instants.len() - 1];
    let log = Log { generation: GENERATION, last, before: 0, precision: 0, records: &records };
    write_log(connection, key, &log);
}

/// The stored value of a sliding counter or a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// A number of 56 bits.
    pub generation: u64,
    pub last: u64,
    /// The usage of the calendar window of the last charge.
    pub current: u64,
    /// The usage of the previous calendar window; 0 for a fixed window.
    pub previous: u64,
}

pub fn write_windows(connection: &mut Connection, key: &str, windows: &Windows) {
    pipe().del(key).pset_ex(key, windows_value(windows), 7_200_000).exec(connection).unwrap();
}

fn windows_value(windows: &Windows) -> Vec<u8> {
    let Windows { generation, last, current, previous } = windows;
    [
        &generation.to_le_bytes()[..7],
        &last.to_le_bytes()[..7],
        &current.to_le_bytes()[..5],
        &previous.to_le_bytes()[..5],
    ]
    .concat()
}

/// Returns the number of records of the log at a key.
pub fn records(admin: &mut Admin, key: &str) -> u64 {
    let tail: Vec<u8> = admin.query(&["LINDEX", key, "-1"]);
    if tail.len() == SHORT_SIZE {
        return 1;
    }
    u64::from(u32::from_le_bytes([tail[39], tail[40], tail[41], 0]))
}

fn assert_same_list(admin: &mut Admin, written: &str, log: &Log<'_>) {
    write_log(&mut admin.0, "copy", log);
    let mut list = |key: &str| admin.query::<Vec<Vec<u8>>>(&["LRANGE", key, "0", "-1"]);
    assert_eq!(list(written), list("copy"), "{} records", log.records.len());
    admin.query::<()>(&["DEL", "copy"]);
}

/// Reserves these units, and returns the generation of the receipt.
async fn generation_of(backend: &RedisBackend, policies: &[Policy], units: u32) -> u64 {
    reserve(backend, policies, units).await.decision.receipts()[0].generation
}

#[tokio::test]
async fn scripts_keep_every_bit_of_generation() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, _clock) = with_manual_clock(&server).await;
        for policy in every_type(20, HOUR) {
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let refund = async |receipt: &Receipt| {
                let charge = check(&policies, 3, Purpose::Reserve);
                backend.refund(&Refund::new(&charge, &[*receipt], &[0]).unwrap()).await.unwrap();
                20 - peek(&backend, &policies, 0).await.statuses()[0].remaining()
            };
            let receipt = reserve(&backend, &policies, 3).await.decision.receipts()[0];
            let key = admin.only_key();
            write_generation(&mut admin, &key, GENERATION);
            // A charge writes the generation that it has read.
            let next = reserve(&backend, &policies, 2).await.decision.receipts()[0];
            assert_eq!(next.generation, GENERATION, "{engine:?} {policies:?}");
            for other in [GENERATION - 1, GENERATION ^ 1 << 55, 0, receipt.generation] {
                assert_eq!(
                    refund(&Receipt::new(other, receipt.at_micros, receipt.ordinal)).await,
                    5,
                    "{policies:?}"
                );
            }
            assert_eq!(
                refund(&Receipt::new(GENERATION, receipt.at_micros, receipt.ordinal)).await,
                2,
                "{policies:?}"
            );
            let last = reserve(&backend, &policies, 1).await.decision.receipts()[0];
            assert_eq!(last.generation, GENERATION, "{engine:?} {policies:?}");
        }
    }
}

/// Replaces the generation of a stored pair.
fn write_generation(admin: &mut Admin, key: &str, generation: u64) {
    let generation = &generation.to_le_bytes()[..7];
    if admin.query::<String>(&["TYPE", key]) == "string" {
        redis::cmd("SETRANGE").arg(key).arg(0).arg(generation).exec(&mut admin.0).unwrap();
    } else {
        let mut tail: Vec<u8> = admin.query(&["LINDEX", key, "-1"]);
        tail[..7].copy_from_slice(generation);
        redis::cmd("LSET").arg(key).arg(-1).arg(tail).exec(&mut admin.0).unwrap();
    }
}

#[tokio::test]
async fn checks_write_the_documented_log_layout() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = with_manual_clock(&server).await;
    let policies = [policy("hourly", 10_000, HOUR)];
    let mut admin = Admin::at(&server);
    let (mut records, mut generation) = (Vec::new(), None);
    for units in 1..=30 {
        // The first charge sets the generation.
        let reserved = generation_of(&backend, &policies, units).await;
        let generation = *generation.get_or_insert(reserved);
        assert_eq!(reserved, generation, "a charge keeps the generation");
        let now = clock.now_micros();
        records.push((now, u64::from(units)));
        clock.advance(Duration::from_micros(7_654_321));

        let key = admin.only_key();
        let log = Log { generation, last: now, before: 0, precision: 0, records: &records };
        assert_same_list(&mut admin, &key, &log);
    }
}

#[tokio::test]
async fn checks_write_the_documented_bucket_layout() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = with_manual_clock(&server).await;
    let precision = Duration::from_micros(100_000_007);
    let buckets = policy("hourly", 10_000, HOUR).with_algorithm(Algorithm::SlidingBuckets { precision });
    let policies = [buckets.unwrap()];
    let mut admin = Admin::at(&server);
    let precision = precision.as_micros() as u64;
    let (mut records, mut generation): (Vec<(u64, u64)>, _) = (Vec::new(), None);
    for units in 1..=80 {
        let reserved = generation_of(&backend, &policies, units).await;
        let generation = *generation.get_or_insert(reserved);
        assert_eq!(reserved, generation, "a charge keeps the generation");
        let now = clock.now_micros();
        let end = (now / precision + 1) * precision;
        match records.last_mut() {
            Some((at, sum)) if *at == end => *sum += u64::from(units),
            _ => records.push((end, u64::from(units))),
        }
        clock.advance(Duration::from_micros(37_654_321));

        let key = admin.only_key();
        let log = Log { generation, last: now, before: 0, precision, records: &records };
        assert_same_list(&mut admin, &key, &log);
    }
    assert!(records.len() > 20, "the log has enough records for this test: {records:?}");
}

#[tokio::test]
async fn checks_write_the_documented_window_layout() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for (algorithm, is_sliding) in [(Algorithm::SlidingCounter, true), (Algorithm::FixedWindow, false)] {
            admin.query::<()>(&["FLUSHALL"]);
            let (backend, clock) = with_manual_clock(&server).await;
            let policies = [policy("hourly", 10_000, HOUR).with_algorithm(algorithm).unwrap()];
            let window = HOUR.as_micros() as u64;
            let mut expected = Windows { generation: 0, last: 0, current: 0, previous: 0 };
            // Several charges in each calendar window, then one window without charges, then several windows.
            for units in 1..=60_u32 {
                let now = clock.now_micros();
                match now / window - expected.last / window {
                    0 => {}
                    1 if is_sliding => (expected.previous, expected.current) = (expected.current, 0),
                    _ => (expected.previous, expected.current) = (0, 0),
                }
                let generation = generation_of(&backend, &policies, units).await;
                let begins = expected.previous + expected.current == 0;
                assert_eq!(generation != expected.generation, begins, "{engine:?} {algorithm:?}");
                expected.generation = generation;
                expected.current += u64::from(units);
                expected.last = now;
                let key = admin.only_key();
                let value: Vec<u8> = admin.query(&["GET", &key]);
                assert_eq!(value, windows_value(&expected), "{engine:?} {algorithm:?} {expected:?}");
                let minutes = match units {
                    20 => 61,
                    40 => 125,
                    _ => 13,
                };
                clock.advance(Duration::from_micros(minutes * 60_000_000 + 1));
            }
        }
    }
}

/// A check reads the usage from a written value.
#[tokio::test]
async fn checks_read_the_documented_window_layout() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let hour = HOUR.as_micros() as u64;
        // A quarter of a window has passed.
        let begin = clock.now_micros() / hour * hour;
        clock.set_micros(begin + hour / 4);
        let of = |algorithm| policy("hourly", 1_000, HOUR).with_algorithm(algorithm).unwrap();
        // Three quarters of 400 count, plus one unit: an incomplete tick rounds up.
        let counts = [(Algorithm::SlidingCounter, 1_000 - 7 - 301), (Algorithm::FixedWindow, 1_000 - 7)];
        for (algorithm, expected) in counts {
            admin.query::<()>(&["FLUSHALL"]);
            let limiter = limiter(backend.clone(), [of(algorithm)]);
            let _ = limiter.check(alice()).await.unwrap();
            let key = admin.only_key();
            let windows = Windows { generation: GENERATION, last: begin + 5, current: 7, previous: 400 };
            let windows =
                Windows { previous: if algorithm == Algorithm::FixedWindow { 0 } else { 400 }, ..windows };
            write_windows(&mut admin.0, &key, &windows);
            assert_eq!(remaining(&limiter).await, expected, "{engine:?} {algorithm:?}");
        }
    }
}

/// This happens when a quota is lowered. The last tick of the previous window still exceeds the quota; the next window has
/// room again.
#[tokio::test]
async fn overused_window_blocks_all_of_the_next_window() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let counter = policy("short", 10, Duration::from_millis(1));
        let limiter = limiter(backend, [counter.with_algorithm(Algorithm::SlidingCounter).unwrap()]);
        let _ = limiter.check(alice()).await.unwrap();
        let (key, begin) = (admin.only_key(), clock.now_micros());
        let windows = Windows { generation: GENERATION, last: begin + 5, current: 1, previous: 10_000 };
        write_windows(&mut admin.0, &key, &windows);
        for passed in [5, 500, 999] {
            clock.set_micros(begin + passed);
            let denied = limiter.check(alice()).await.unwrap();
            let wait = Wait::For(Duration::from_micros(1_000 - passed));
            assert_eq!(denied.retry_after(), wait, "{engine:?}, {passed} us");
        }
        clock.set_micros(begin + 1_000);
        assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}");
    }
}

/// A repeated refund gives the client no credit.
#[tokio::test]
async fn refund_returns_no_more_than_window_holds() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let counter = policy("short", 100, Duration::from_millis(1));
        let policies = [counter.with_algorithm(Algorithm::SlidingCounter).unwrap()];
        let first = reserve(&backend, &policies, 10).await;
        clock.advance(Duration::from_millis(1));
        let second = reserve(&backend, &policies, 20).await;
        let key = admin.only_key();
        let mut stored = Windows {
            generation: first.decision.receipts()[0].generation,
            last: clock.now_micros(),
            current: 20,
            previous: 10,
        };
        for (current, previous) in [(11, 1), (2, 0), (0, 0), (0, 0)] {
            backend.refund(&first.refund(1)).await.unwrap();
            backend.refund(&second.refund(11)).await.unwrap();
            (stored.current, stored.previous) = (current, previous);
            let value: Vec<u8> = admin.query(&["GET", &key]);
            assert_eq!(value, windows_value(&stored), "{engine:?}");
        }
    }
}
