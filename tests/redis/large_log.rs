//! Logs of a million records: their bound, and what a check on one of them takes.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Limiter, MemoryBackend, Wait,
    backend::{Backend, Reason},
    testing::ManualClock,
};

use super::{
    expected::Expected,
    layout::write_charges_of_one,
    look::Look,
    rig::{alice, clocked, limiter, policy, reason},
};
use crate::support::server::{Engine, Server};

/// The largest number of records in one log.
const MOST_RECORDS: u64 = 1 << 20;

const WINDOW: Duration = Duration::from_secs(10_000);
/// Between one record and the next.
const STEP: Duration = Duration::from_millis(1);

fn unlimited(backend: impl Backend) -> Limiter {
    limiter(backend, [policy("p", u32::MAX, WINDOW)])
}

/// The log holds all records but one, a step apart, and the clock stands a step after the last.
async fn assert_full_at_the_bound(what: &str, limiter: &Limiter, clock: &ManualClock) {
    let used =
        |decision: tower_sliding_window::Decision| u64::from(u32::MAX - decision.statuses()[0].remaining());
    assert_eq!(used(limiter.check(alice(), 0).await.unwrap()), MOST_RECORDS - 1, "{what}");
    assert_eq!(used(limiter.check(alice(), 1).await.unwrap()), MOST_RECORDS, "{what}");
    for _ in 0..2 {
        assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Full, "{what}");
    }
    // It could have been read, and denied as ever.
    assert_eq!(used(limiter.check(alice(), 0).await.unwrap()), MOST_RECORDS, "{what}");
    let denied = limiter.check(alice(), u32::MAX).await.unwrap();
    assert!(matches!(denied.retry_after(), Wait::For(_)), "{what}");

    // Three leave, and three have room.
    clock.advance(WINDOW - STEP * (MOST_RECORDS as u32 - 1) + STEP * 2);
    for _ in 0..3 {
        assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{what}");
    }
    assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Full, "{what}");
}

/// So many records, a step apart; the clock moves to a step after the last.
fn instants(clock: &ManualClock, records: u64) -> Vec<u64> {
    let next = |_| {
        let at = clock.now_micros();
        clock.advance(STEP);
        at
    };
    (0..records).map(next).collect()
}

#[tokio::test]
async fn the_bound_on_records_is_the_same_in_redis() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = unlimited(backend);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let key = look.only_key();
        write_charges_of_one(&mut look.0, &key, &instants(&clock, MOST_RECORDS - 1));
        assert_full_at_the_bound(&format!("{engine:?}"), &limiter, &clock).await;
    }
}

#[tokio::test]
async fn a_full_log_of_one_policy_charges_no_other() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = clocked(&server).await;
    let of = |name, algorithm| policy(name, u32::MAX, WINDOW).with_algorithm(algorithm).unwrap();
    let policies = [
        of("a", Algorithm::SlidingLog),
        of("b", Algorithm::SlidingLog),
        of("c", Algorithm::SlidingLog),
        of("d", Algorithm::SlidingCounter),
        of("e", Algorithm::FixedWindow),
    ];
    let limiter = limiter(backend, policies);
    limiter.check(alice(), 1).await.unwrap();
    let mut look = Look::at(&server);
    let keys = look.keys();
    write_charges_of_one(&mut look.0, &keys[1], &instants(&clock, MOST_RECORDS));
    let state = |look: &mut Look| {
        let values: Vec<_> = keys.iter().map(|key| look.whole_value(key)).collect();
        (values, look.writes())
    };
    let before = state(&mut look);
    assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Full);
    assert!(state(&mut look) == before);
}

#[tokio::test]
async fn the_bound_on_records_is_the_same_in_memory() {
    let clock = ManualClock::new();
    let limiter = unlimited(MemoryBackend::new().with_clock(&clock));
    for _ in 1..MOST_RECORDS {
        limiter.check(alice(), 1).await.unwrap();
        clock.advance(STEP);
    }
    assert_full_at_the_bound("memory", &limiter, &clock).await;
}

/// What the server is kept from doing meanwhile: a check must not stop it, however much has left at once.
#[tokio::test]
async fn no_check_on_a_million_records_stops_the_server() {
    const RECORDS: u64 = 1_000_000;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = clocked(&server).await;
        let limiter = limiter(backend, [policy("p", RECORDS as u32, WINDOW)]);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let key = look.only_key();
        let (start, step) = (clock.now_micros(), STEP.as_micros() as u64);
        let instants = instants(&clock, RECORDS);
        write_charges_of_one(&mut look.0, &key, &instants);
        look.set("slowlog-max-len", "100");
        look.set("slowlog-log-slower-than", "0");

        // Denials that have to find a record deep inside.
        for cost in [1, 100, 250_000, 500_001, 999_999] {
            forget(&mut look);
            let denied = limiter.check(alice(), cost).await.unwrap();
            let leaves = start + u64::from(cost - 1) * step + WINDOW.as_micros() as u64;
            assert_eq!(denied.retry_after(), Wait::For(Duration::from_micros(leaves - clock.now_micros())));
            assert_quick(engine, &format!("a denial of cost {cost}"), &mut look);
        }
        // Half of it leaves.
        clock.set_micros(start + WINDOW.as_micros() as u64 + step * (RECORDS / 2 - 1));
        let denied = limiter.check(alice(), RECORDS as u32 / 2 + 1).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(STEP));
        assert_quick(engine, "a denial after half of it has left", &mut look);
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), RECORDS as u32 / 2 - 1);
        assert_quick(engine, "the charge that drops half of it", &mut look);
        let entries: u64 = look.ask(&["LLEN", &key]);
        assert!(entries <= RECORDS / 2 / 8 + 2, "{engine:?}: {entries}");
        // The rest, but for that charge.
        clock.advance(WINDOW - STEP);
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), RECORDS as u32 - 2);
        assert_quick(engine, "the charge that drops the rest of it", &mut look);

        // And all of it at once.
        write_charges_of_one(&mut look.0, &key, &instants);
        clock.set_micros(start + 2 * WINDOW.as_micros() as u64);
        forget(&mut look);
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), RECORDS as u32 - 1);
        assert_quick(engine, "the charge that drops all of it", &mut look);
    }
}

/// The records before one or those after it are written again, whichever are fewer; half of a log is the worst.
#[tokio::test]
async fn a_refund_from_anywhere_in_a_large_log_is_exact() {
    for engine in Engine::ALL {
        for records in [10_000, 100_000] {
            let server = Server::start(engine);
            let (backend, clock) = clocked(&server).await;
            let start = clock.now_micros();
            // Three charges at each instant, of 2 to 6 units.
            let charge = |i: u64| (start + i / 3 * 1_003, 2 + i % 5);
            let charges: Vec<_> = (0..records as u64).map(charge).collect();
            let used: u64 = charges.iter().map(|(_, units)| units).sum();
            let mut expected = Expected::of(&backend, &clock, policy("p", used as u32 + 100, WINDOW));
            let mut look = Look::at(&server);
            expected.write(&mut look, (1 << 40) - used / 3, charges).await;
            look.set("slowlog-max-len", "100");
            look.set("slowlog-log-slower-than", "0");

            let (newest, middle) = (records - 1, records / 2);
            let refunds = [
                ("one unit of the newest charge", newest, 1),
                ("the rest of the newest charge", newest, expected.charges[newest].1 - 1),
                ("one unit of the oldest charge", 0, 1),
                ("the rest of the oldest charge", 0, expected.charges[0].1 - 1),
                ("one unit of the charge in the middle", middle, 1),
                ("the rest of the charge in the middle", middle, expected.charges[middle].1 - 1),
                ("one before the middle", middle - 1, 2),
                ("one behind it", middle + 1, 2),
                ("the last of the first quarter", records / 4, 2),
                ("the first of the last quarter", records / 4 * 3, 2),
                ("the second charge", 1, expected.charges[1].1),
                ("the third charge", 2, expected.charges[2].1),
                ("the last but one", newest - 1, expected.charges[newest - 1].1),
            ];
            for (what, index, units) in refunds {
                forget(&mut look);
                expected.refund(index, units).await;
                let took = worst(&mut look);
                let what = format!("{engine:?}, {records} records: a refund of {what}");
                println!("{what} took {took:?}");
                // Of a busy machine; it is a few milliseconds for every 10,000 records that change.
                assert!(took < Duration::from_secs(2), "{what} took {took:?}");
                expected.assert_told(&what, 40).await;
            }

            // What comes later stands beside it, and an instant later something else is the oldest.
            let what = format!("{engine:?}, {records} records: charges behind refunds");
            for _ in 0..20 {
                clock.advance(STEP);
                expected.charge(3).await;
            }
            expected.assert_told(&what, 40).await;
            clock.set_micros(start + WINDOW.as_micros() as u64 + (middle as u64 / 3 - 2) * 1_003);
            expected.charge(1).await;
            expected.assert_told(&what, 40).await;
            // In the log that is left, it stands elsewhere.
            expected.refund(9, 1).await;
            expected.refund(20, 1).await;
            expected.assert_told(&what, 40).await;
        }
    }
}

fn assert_quick(engine: Engine, what: &str, look: &mut Look) {
    let took = worst(look);
    println!("{engine:?}: {what} took {took:?}");
    assert!(took < Duration::from_millis(20), "{engine:?}: {what} took {took:?}");
}

fn forget(look: &mut Look) {
    look.ask::<()>(&["SLOWLOG", "RESET"]);
}

/// The time of the slowest script since the last time that this was asked.
fn worst(look: &mut Look) -> Duration {
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let entries: Vec<Entry> = look.ask(&["SLOWLOG", "GET", "100"]);
    forget(look);
    let scripts = entries.iter().filter(|entry| entry.3[0].eq_ignore_ascii_case(b"evalsha"));
    Duration::from_micros(scripts.map(|entry| entry.2).max().expect("a script in the log"))
}
