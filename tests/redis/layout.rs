//! The stored layout, written a second time and from its description: for logs too large to fill by checks, and so that it
//! does not change unseen.

use std::time::Duration;

use redis::{Connection, pipe};
use tower_sliding_window::{Algorithm, Wait, backend::Backend};

use super::{
    look::Look,
    rig::{HOUR, alice, clocked, limiter, policy, remaining, reserve},
};
use crate::support::server::{Engine, Server};

/// A log, or one of buckets.
pub struct Log<'a> {
    pub born: u64,
    pub last: u64,
    /// What was used before the oldest record, which has left: totals begin again at 2^40.
    pub before: u64,
    /// The instant of each record, and its units: what a bucket holds stands at its end.
    pub records: &'a [(u64, u64)],
}

/// Writes a log whose records have not left.
pub fn write_log(connection: &mut Connection, key: &str, log: &Log<'_>) {
    let Log { born, last, before, records } = log;
    let mut total = *before;
    let mut stored = Vec::new();
    for (at, units) in *records {
        // What was used before it.
        stored.push([&at.to_le_bytes()[..7], &u64::to_le_bytes(total)[..5]].concat());
        total = (total + units) % (1 << 40);
    }
    let (oldest, newest) = (records[0].0, records[records.len() - 1].0);
    let header = [
        &born.to_le_bytes()[..7],
        &last.to_le_bytes()[..7],
        &newest.to_le_bytes()[..7],
        // The oldest record is in the header.
        &oldest.to_le_bytes()[..7],
        &before.to_le_bytes()[..5],
        // All in all.
        &total.to_le_bytes()[..5],
        // No records in front, and none has lost its units.
        &[0],
        &(records.len() as u64).to_le_bytes()[..3],
    ];

    let mut entries: Vec<Vec<u8>> = stored[1..].chunks(8).map(<[Vec<u8>]>::concat).collect();
    let tail = entries.pop().unwrap_or_default();
    entries.push([header.concat(), tail].concat());
    pipe().del(key).exec(connection).unwrap();
    for some in entries.chunks(4096) {
        pipe().rpush(key, some).exec(connection).unwrap();
    }
    pipe().pexpire(key, 7_200_000).exec(connection).unwrap();
}

/// Writes the log that charges of cost 1 at these instants leave, none of them having left.
pub fn write_charges_of_one(connection: &mut Connection, key: &str, instants: &[u64]) {
    let records: Vec<(u64, u64)> = instants.iter().map(|at| (*at, 1)).collect();
    let log = Log { born: instants[0], last: instants[instants.len() - 1], before: 0, records: &records };
    write_log(connection, key, &log);
}

/// What a sliding counter or a fixed window stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    pub born: u64,
    pub last: u64,
    /// What the calendar window of the last charge has used.
    pub current: u64,
    /// What the one before it has used; 0 for a fixed window.
    pub previous: u64,
}

pub fn write_windows(connection: &mut Connection, key: &str, windows: &Windows) {
    pipe().del(key).pset_ex(key, windows_value(windows), 7_200_000).exec(connection).unwrap();
}

fn windows_value(windows: &Windows) -> Vec<u8> {
    let Windows { born, last, current, previous } = windows;
    [
        &born.to_le_bytes()[..7],
        &last.to_le_bytes()[..7],
        &current.to_le_bytes()[..5],
        &previous.to_le_bytes()[..5],
    ]
    .concat()
}

/// How many records the log at a key holds.
pub fn records(look: &mut Look, key: &str) -> u64 {
    let tail: Vec<u8> = look.ask(&["LINDEX", key, "-1"]);
    u64::from(u32::from_le_bytes([tail[39], tail[40], tail[41], 0]))
}

fn lists_are_the_same(look: &mut Look, written: &str, log: &Log<'_>) {
    write_log(&mut look.0, "copy", log);
    let mut list = |key: &str| look.ask::<Vec<Vec<u8>>>(&["LRANGE", key, "0", "-1"]);
    assert_eq!(list(written), list("copy"), "{} records", log.records.len());
    look.ask::<()>(&["DEL", "copy"]);
}

#[tokio::test]
async fn a_log_written_from_the_description_is_the_one_that_checks_write() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = clocked(&server).await;
    let limiter = limiter(backend, [policy("hourly", 10_000, HOUR)]);
    let mut look = Look::at(&server);
    let mut records = Vec::new();
    for units in 1..=30 {
        limiter.check(alice(), units).await.unwrap();
        let now = clock.now_micros();
        records.push((now, u64::from(units)));
        clock.advance(Duration::from_micros(7_654_321));

        let key = look.only_key();
        lists_are_the_same(
            &mut look,
            &key,
            &Log { born: records[0].0, last: now, before: 0, records: &records },
        );
    }
}

#[tokio::test]
async fn buckets_written_from_the_description_are_those_that_checks_write() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = clocked(&server).await;
    let precision = Duration::from_micros(100_000_007);
    let buckets = policy("hourly", 10_000, HOUR).with_algorithm(Algorithm::SlidingBuckets { precision });
    let limiter = limiter(backend, [buckets.unwrap()]);
    let mut look = Look::at(&server);
    let (born, precision) = (clock.now_micros(), precision.as_micros() as u64);
    let mut records: Vec<(u64, u64)> = Vec::new();
    for units in 1..=80 {
        limiter.check(alice(), units).await.unwrap();
        let now = clock.now_micros();
        let end = (now / precision + 1) * precision;
        match records.last_mut() {
            Some((at, sum)) if *at == end => *sum += u64::from(units),
            _ => records.push((end, u64::from(units))),
        }
        clock.advance(Duration::from_micros(37_654_321));

        let key = look.only_key();
        lists_are_the_same(&mut look, &key, &Log { born, last: now, before: 0, records: &records });
    }
    assert!(records.len() > 20);
}

#[tokio::test]
async fn windows_written_from_the_description_are_those_that_checks_write() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        for (algorithm, slides) in [(Algorithm::SlidingCounter, true), (Algorithm::FixedWindow, false)] {
            look.ask::<()>(&["FLUSHALL"]);
            let (backend, clock) = clocked(&server).await;
            let limiter =
                limiter(backend, [policy("hourly", 10_000, HOUR).with_algorithm(algorithm).unwrap()]);
            let window = HOUR.as_micros() as u64;
            let mut expected = Windows { born: 0, last: 0, current: 0, previous: 0 };
            // Several in each calendar window, then none for one of them, and none for several.
            for units in 1..=60_u32 {
                let now = clock.now_micros();
                match now / window - expected.last / window {
                    0 => {}
                    1 if slides => (expected.previous, expected.current) = (expected.current, 0),
                    _ => (expected.previous, expected.current) = (0, 0),
                }
                if expected.previous + expected.current == 0 {
                    expected.born = now;
                }
                expected.current += u64::from(units);
                expected.last = now;
                limiter.check(alice(), units).await.unwrap();
                let key = look.only_key();
                let value: Vec<u8> = look.ask(&["GET", &key]);
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

/// What is read is what was written: usage, and when it ends.
#[tokio::test]
async fn windows_written_from_the_description_are_read() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = clocked(&server).await;
        let hour = HOUR.as_micros() as u64;
        // A quarter of a window has passed.
        let begin = clock.now_micros() / hour * hour;
        clock.set_micros(begin + hour / 4);
        let of = |algorithm| policy("hourly", 1_000, HOUR).with_algorithm(algorithm).unwrap();
        // Three quarters of 400 and, as a tick is not over, a bit more: no unit is promised that is not whole.
        let counts = [(Algorithm::SlidingCounter, 1_000 - 7 - 301), (Algorithm::FixedWindow, 1_000 - 7)];
        for (algorithm, left) in counts {
            look.ask::<()>(&["FLUSHALL"]);
            let limiter = limiter(backend.clone(), [of(algorithm)]);
            limiter.check(alice(), 1).await.unwrap();
            let key = look.only_key();
            let windows = Windows { born: begin - 9, last: begin + 5, current: 7, previous: 400 };
            let windows =
                Windows { previous: if algorithm == Algorithm::FixedWindow { 0 } else { 400 }, ..windows };
            write_windows(&mut look.0, &key, &windows);
            assert_eq!(remaining(&limiter).await, left, "{engine:?} {algorithm:?}");
        }
    }
}

/// As when a quota was lowered: even the last tick of it is too much, and the next window begins with room enough.
#[tokio::test]
async fn a_window_that_used_a_thousand_quotas_holds_back_the_next_one_to_its_end() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = clocked(&server).await;
        let counter = policy("short", 10, Duration::from_millis(1));
        let limiter = limiter(backend, [counter.with_algorithm(Algorithm::SlidingCounter).unwrap()]);
        limiter.check(alice(), 1).await.unwrap();
        let (key, begin) = (look.only_key(), clock.now_micros());
        let windows = Windows { born: begin - 900, last: begin + 5, current: 1, previous: 10_000 };
        write_windows(&mut look.0, &key, &windows);
        for passed in [5, 500, 999] {
            clock.set_micros(begin + passed);
            let denied = limiter.check(alice(), 1).await.unwrap();
            let wait = Wait::For(Duration::from_micros(1_000 - passed));
            assert_eq!(denied.retry_after(), wait, "{engine:?}, {passed} us");
        }
        clock.set_micros(begin + 1_000);
        assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
    }
}

/// Whoever asks for it twice gets no credit.
#[tokio::test]
async fn no_more_goes_back_to_a_window_than_it_holds() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let (backend, clock) = clocked(&server).await;
        let counter = policy("short", 100, Duration::from_millis(1));
        let policies = [counter.with_algorithm(Algorithm::SlidingCounter).unwrap()];
        let early = reserve(&backend, &policies, 10).await;
        clock.advance(Duration::from_millis(1));
        let late = reserve(&backend, &policies, 20).await;
        let key = look.only_key();
        let mut stored =
            Windows { born: clock.now_micros() - 1_000, last: clock.now_micros(), current: 20, previous: 10 };
        for (current, previous) in [(11, 1), (2, 0), (0, 0), (0, 0)] {
            backend.refund(&early.refund(1)).await.unwrap();
            backend.refund(&late.refund(11)).await.unwrap();
            (stored.current, stored.previous) = (current, previous);
            let value: Vec<u8> = look.ask(&["GET", &key]);
            assert_eq!(value, windows_value(&stored), "{engine:?}");
        }
    }
}
