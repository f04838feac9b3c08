//! Logs of a million records: the bound on records, and the duration of checks and refunds.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Limiter, MemoryBackend, Wait,
    backend::{Backend, Reason},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    layout::write_charges_of_one,
    reference_log::ReferenceLog,
    rig::{alice, limiter, policy, reason, with_manual_clock},
};
use crate::support::server::{Engine, Server};

/// The maximum number of records in one log.
const MAX_RECORDS: u64 = 1 << 20;

const WINDOW: Duration = Duration::from_secs(10_000);
/// The time between one record and the next.
const STEP: Duration = Duration::from_millis(1);

fn unlimited(backend: impl Backend) -> Limiter {
    limiter(backend, [policy("p", u32::MAX, WINDOW)])
}

/// Asserts the bound on a log that is one record short of it. The clock is a step after the last record.
async fn assert_full_at_the_bound(what: &str, limiter: &Limiter, clock: &ManualClock) {
    let used =
        |decision: tower_sliding_window::Decision| u64::from(u32::MAX - decision.statuses()[0].remaining());
    assert_eq!(used(limiter.check((alice(), 0)).await.unwrap()), MAX_RECORDS - 1, "{what}");
    assert_eq!(used(limiter.check(alice()).await.unwrap()), MAX_RECORDS, "{what}");
    for _ in 0..2 {
        assert_eq!(reason(limiter.check(alice()).await), Reason::Full, "{what}");
    }
    // A full log still reports its usage and denies as usual.
    assert_eq!(used(limiter.check((alice(), 0)).await.unwrap()), MAX_RECORDS, "{what}");
    let denied = limiter.check((alice(), u32::MAX)).await.unwrap();
    assert!(matches!(denied.retry_after(), Wait::For(_)), "{what}");

    // Three records expire, and the log has room for three.
    clock.advance(WINDOW - STEP * (MAX_RECORDS as u32 - 1) + STEP * 2);
    for _ in 0..3 {
        assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{what}");
    }
    assert_eq!(reason(limiter.check(alice()).await), Reason::Full, "{what}");
}

/// Returns this many instants, a step apart. Moves the clock to a step after the last one.
fn instants(clock: &ManualClock, records: u64) -> Vec<u64> {
    let next = |_| {
        let at = clock.now_micros();
        clock.advance(STEP);
        at
    };
    (0..records).map(next).collect()
}

#[tokio::test]
async fn redis_backend_enforces_record_bound() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = unlimited(backend);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        write_charges_of_one(&mut admin.0, &key, &instants(&clock, MAX_RECORDS - 1));
        assert_full_at_the_bound(&format!("{engine:?}"), &limiter, &clock).await;
    }
}

#[tokio::test]
async fn full_log_charges_no_other_policy() {
    let server = Server::start(Engine::Redis);
    let (backend, clock) = with_manual_clock(&server).await;
    let of = |name, algorithm| policy(name, u32::MAX, WINDOW).with_algorithm(algorithm).unwrap();
    let policies = [
        of("a", Algorithm::SlidingLog),
        of("b", Algorithm::SlidingLog),
        of("c", Algorithm::SlidingLog),
        of("d", Algorithm::SlidingCounter),
        of("e", Algorithm::FixedWindow),
    ];
    let limiter = limiter(backend, policies);
    let _ = limiter.check(alice()).await.unwrap();
    let mut admin = Admin::at(&server);
    let keys = admin.keys();
    write_charges_of_one(&mut admin.0, &keys[1], &instants(&clock, MAX_RECORDS));
    let state = |admin: &mut Admin| {
        let values: Vec<_> = keys.iter().map(|key| admin.value_and_expiry(key)).collect();
        (values, admin.writes())
    };
    let before = state(&mut admin);
    assert_eq!(reason(limiter.check(alice()).await), Reason::Full, "the log has no room for a record");
    assert!(state(&mut admin) == before, "a check without room writes nothing");
}

#[tokio::test]
async fn memory_backend_enforces_record_bound() {
    let clock = ManualClock::new();
    let limiter = unlimited(MemoryBackend::new().with_clock(&clock));
    for _ in 1..MAX_RECORDS {
        let _ = limiter.check(alice()).await.unwrap();
        clock.advance(STEP);
    }
    assert_full_at_the_bound("memory", &limiter, &clock).await;
}

/// A check must not block the server, even if many records expire at once.
#[tokio::test]
async fn checks_on_large_log_do_not_block_server() {
    const RECORDS: u64 = 1_000_000;
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (backend, clock) = with_manual_clock(&server).await;
        let limiter = limiter(backend, [policy("p", RECORDS as u32, WINDOW)]);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let key = admin.only_key();
        let (start, step) = (clock.now_micros(), STEP.as_micros() as u64);
        let instants = instants(&clock, RECORDS);
        write_charges_of_one(&mut admin.0, &key, &instants);

        // These denials must find a record deep inside the log.
        for cost in [1, 100, 250_000, 500_001, 999_999] {
            let mut measured = processor_time(&mut admin);
            let denied = limiter.check((alice(), cost)).await.unwrap();
            let expiry = start + u64::from(cost - 1) * step + WINDOW.as_micros() as u64;
            assert_eq!(
                denied.retry_after(),
                Wait::For(Duration::from_micros(expiry - clock.now_micros())),
                "the wait lasts until enough records have left"
            );
            assert_fast(engine, &format!("a denial of cost {cost}"), &mut admin, &mut measured);
        }
        // Half of the log expires.
        clock.set_micros(start + WINDOW.as_micros() as u64 + step * (RECORDS / 2 - 1));
        let mut measured = processor_time(&mut admin);
        let denied = limiter.check((alice(), RECORDS as u32 / 2 + 1)).await.unwrap();
        assert_eq!(denied.retry_after(), Wait::For(STEP), "the wait lasts until the next record leaves");
        assert_fast(engine, "a denial after half of the log has expired", &mut admin, &mut measured);
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(
            decision.statuses()[0].remaining(),
            RECORDS as u32 / 2 - 1,
            "{engine:?}: the other half has left the window"
        );
        assert_fast(engine, "the charge that drops half of the log", &mut admin, &mut measured);
        // A charge deletes at most 2,049 blocks. The next charges delete the others that have left.
        let (mut charges, mut before) = (1, RECORDS / 8);
        loop {
            let entries: u64 = admin.query(&["LLEN", &key]);
            assert!(
                before - entries <= 2_049,
                "{engine:?}: {entries} entries after {charges} charges, before {before}"
            );
            if entries <= RECORDS / 2 / 8 + 2 + u64::from(charges / 8) {
                break;
            }
            assert!(charges < 40, "{engine:?}: {entries} entries after {charges} charges");
            (charges, before) = (charges + 1, entries);
            let _ = limiter.check(alice()).await.unwrap();
            assert_fast(engine, "a charge that drops a part of the log", &mut admin, &mut measured);
        }
        // All charges except the last ones expire.
        clock.advance(WINDOW - STEP);
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(
            decision.statuses()[0].remaining(),
            RECORDS as u32 - charges - 1,
            "{engine:?}: the refunds and charges are counted"
        );
        assert_fast(engine, "the charge that drops the rest of the log", &mut admin, &mut measured);

        // The whole log expires at once.
        write_charges_of_one(&mut admin.0, &key, &instants);
        clock.set_micros(start + 2 * WINDOW.as_micros() as u64);
        measured = processor_time(&mut admin);
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(
            decision.statuses()[0].remaining(),
            RECORDS as u32 - 1,
            "{engine:?}: only one charge remains"
        );
        assert_fast(engine, "the charge that drops the whole log", &mut admin, &mut measured);
    }
}

#[tokio::test]
async fn refund_is_exact_anywhere_in_large_log() {
    for engine in Engine::ALL {
        for records in [10_000, 100_000] {
            let server = Server::start(engine);
            let (backend, clock) = with_manual_clock(&server).await;
            let start = clock.now_micros();
            // Three charges at each instant, of 2 to 6 units.
            let charge = |i: u64| (start + i / 3 * 1_003, 2 + i % 5);
            let charges: Vec<_> = (0..records as u64).map(charge).collect();
            let used: u64 = charges.iter().map(|(_, units)| units).sum();
            let mut reference = ReferenceLog::of(&backend, &clock, policy("p", used as u32 + 100, WINDOW));
            let mut admin = Admin::at(&server);
            reference.write(&mut admin, (1 << 40) - used / 3, charges).await;
            let (newest, middle) = (records - 1, records / 2);
            let refunds = [
                ("one unit of the newest charge", newest, 1),
                ("the rest of the newest charge", newest, reference.charges[newest].1 - 1),
                ("one unit of the oldest charge", 0, 1),
                ("the rest of the oldest charge", 0, reference.charges[0].1 - 1),
                ("one unit of the charge in the middle", middle, 1),
                ("the rest of the charge in the middle", middle, reference.charges[middle].1 - 1),
                ("the charge before the middle", middle - 1, 2),
                ("the charge after the middle", middle + 1, 2),
                ("the last of the first quarter", records / 4, 2),
                ("the first of the last quarter", records / 4 * 3, 2),
                ("the second charge", 1, reference.charges[1].1),
                ("the third charge", 2, reference.charges[2].1),
                ("the second newest charge", newest - 1, reference.charges[newest - 1].1),
            ];
            for (what, index, units) in refunds {
                reference.refund(index, units).await;
                let what = format!("{engine:?}, {records} records: a refund of {what}");
                reference.assert_matches_server(&what, 40).await;
            }

            // Later charges follow the refunded ones; then the oldest records expire.
            let what = format!("{engine:?}, {records} records: charges after refunds");
            for _ in 0..20 {
                clock.advance(STEP);
                reference.charge(3).await;
            }
            reference.assert_matches_server(&what, 40).await;
            clock.set_micros(start + WINDOW.as_micros() as u64 + (middle as u64 / 3 - 2) * 1_003);
            reference.charge(1).await;
            reference.assert_matches_server(&what, 40).await;
            // The positions have changed in the rest of the log.
            reference.refund(9, 1).await;
            reference.refund(20, 1).await;
            reference.assert_matches_server(&what, 40).await;
        }
    }
}

/// Asserts that one operation on the log takes less than 20 ms of the server's processor, and starts to measure the next one. On a
/// busy machine, the server takes no more of it.
fn assert_fast(engine: Engine, what: &str, admin: &mut Admin, start: &mut Duration) {
    let end = processor_time(admin);
    let took = end - *start;
    *start = end;
    println!("{engine:?}: {what} took {took:?}");
    assert!(took < Duration::from_millis(20), "{engine:?}: {what} took {took:?} of the processor");
}

/// Returns the processor time that the server has used since its start.
fn processor_time(admin: &mut Admin) -> Duration {
    let mut seconds =
        |field| admin.info("cpu", field).and_then(|value| value.parse::<f64>().ok()).expect(field);
    Duration::from_secs_f64(seconds("used_cpu_user") + seconds("used_cpu_sys"))
}
