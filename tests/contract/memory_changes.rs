//! The memory backend stays bounded and fast after refunds and resets.

use std::time::Duration;

use allocation_counter::measure;
use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, PartitionKey, Policy, Status,
    backend::{Backend, Check, Pair, Purpose, Reason, Receipt, Refund, WhenFull},
    policy::Rate,
    testing::ManualClock,
};

const WINDOW: Duration = Duration::from_secs(10);

fn policy(algorithm: Algorithm) -> Policy {
    Policy::new("p", 4_000_000, WINDOW).unwrap().with_algorithm(algorithm).unwrap()
}

fn every_algorithm() -> [Policy; 5] {
    [
        policy(Algorithm::SlidingLog),
        policy(Algorithm::SlidingBuckets { precision: Duration::from_secs(3) }),
        policy(Algorithm::SlidingCounter),
        policy(Algorithm::FixedWindow),
        policy(Algorithm::TokenBucket { rate: Rate::new(4_000_000, WINDOW) }),
    ]
}

fn check_of(key: u32, policy: &Policy, cost: u32) -> Check {
    let pair = Pair::new(PartitionKey::new("key", key.to_le_bytes()), policy.clone(), cost);
    Check::new([pair]).unwrap()
}

fn run_check(backend: &MemoryBackend, check: Check, purpose: Purpose) -> Result<Decision, Reason> {
    let outcome = backend.check_now(&check.with_purpose(purpose)).expect("memory answers at once");
    outcome.map_err(|error| error.reason())
}

fn reserve(backend: &MemoryBackend, check: &Check) -> Vec<Receipt> {
    run_check(backend, check.clone(), Purpose::Reserve).unwrap().receipts().to_vec()
}

fn settle(backend: &MemoryBackend, check: &Check, receipts: &[Receipt], used: u32) {
    let refund = Refund::new(check, receipts, &[used]).unwrap();
    backend.refund_now(&refund).expect("memory refunds at once").unwrap();
}

fn reset(backend: &MemoryBackend, check: &Check) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(backend.reset(check)).unwrap();
}

fn bounded(max_keys: usize) -> (MemoryBackend, ManualClock) {
    let clock = ManualClock::new();
    (MemoryBackend::with_max_keys(max_keys).unwrap().with_clock(&clock), clock)
}

#[test]
fn memory_reports_store_identity_and_refund_support() {
    let (one, other) = (MemoryBackend::new(), MemoryBackend::new());
    assert!(one.changes_charges(), "the memory accepts refunds");
    assert_eq!(one.store(), one.clone().store(), "a clone is the same store");
    assert_ne!(one.store(), other.store(), "another memory is another store");
    assert!(one.store().unwrap().starts_with("memory "), "the identity names the kind of the store");
    let clock = ManualClock::new();
    assert_ne!(one.store(), one.clone().with_clock(&clock).store(), "another clock makes another store");
}

#[test]
fn fully_refunded_or_reset_key_takes_no_room() {
    for policy in every_algorithm() {
        let (backend, clock) = bounded(2);
        for key in 0..10 {
            let check = check_of(key, &policy, 3);
            let receipts = reserve(&backend, &check);
            settle(&backend, &check, &receipts, 1);
            assert_eq!(backend.keys(), 1, "{policy:?}: a unit is still charged");
            settle(&backend, &check, &receipts, 2);
            assert_eq!(backend.keys(), 0, "{policy:?}");
            reserve(&backend, &check);
            reset(&backend, &check);
            assert_eq!(backend.keys(), 0, "{policy:?}: the reset removes the key");
            clock.advance(Duration::from_micros(1));
        }
    }
}

#[test]
fn refund_makes_key_due_earlier() {
    let (backend, clock) = bounded(1_000);
    let backend = backend.when_full(WhenFull::Reject);
    let check = |key| check_of(key, &policy(Algorithm::SlidingLog), 3);
    (0..1_000).for_each(|key| drop(reserve(&backend, &check(key))));
    clock.advance(WINDOW / 2);
    // The first refund notes that every key is in use until its second charge leaves.
    let receipts: Vec<_> = (0..1_000).map(|key| reserve(&backend, &check(key))).collect();
    (0..1_000).for_each(|key| settle(&backend, &check(key), &receipts[key as usize], 2));
    // The second refund removes the second charge of half of the keys.
    (0..500).for_each(|key| settle(&backend, &check(key), &receipts[key as usize], 1));
    clock.advance(WINDOW / 2);
    for key in 1_000..1_500 {
        assert!(run_check(&backend, check(key), Purpose::Charge).is_ok(), "{key}");
    }
    assert_eq!(
        run_check(&backend, check(1_500), Purpose::Charge).unwrap_err(),
        Reason::Full,
        "every idle key is replaced"
    );
}

#[test]
fn undone_charges_leave_no_memory_allocated() {
    for policy in every_algorithm() {
        let (backend, _clock) = bounded(10);
        let check = check_of(0, &policy, 3);
        let kept = measure(|| {
            for _ in 0..2_000 {
                let receipts = reserve(&backend, &check);
                settle(&backend, &check, &receipts, 0);
                reserve(&backend, &check);
                reset(&backend, &check);
            }
        });
        assert!(kept.bytes_current < 10_000, "{} bytes for nothing", kept.bytes_current);
    }
}

#[test]
fn refunded_newest_charges_do_not_grow_busy_key() {
    let (backend, _clock) = bounded(10);
    let policy = policy(Algorithm::SlidingLog);
    assert!(
        run_check(&backend, check_of(0, &policy, 1), Purpose::Charge).unwrap().is_admitted(),
        "the quota fits"
    );
    let check = check_of(0, &policy, 3);
    let kept = measure(|| {
        for _ in 0..10_000 {
            let receipts = reserve(&backend, &check);
            settle(&backend, &check, &receipts, 0);
        }
    });
    assert!(kept.bytes_current < 10_000, "{} bytes for one record", kept.bytes_current);
}

#[test]
fn charges_in_one_bucket_share_one_counter() {
    let (backend, clock) = bounded(10);
    let buckets = policy(Algorithm::SlidingBuckets { precision: Duration::from_secs(3) });
    // The first check of a process allocates what all backends share.
    let (other, _clock) = bounded(10);
    assert!(run_check(&other, check_of(0, &buckets, 1), Purpose::Charge).unwrap().is_admitted());
    let kept = measure(|| {
        for _ in 0..100_000 {
            assert!(
                run_check(&backend, check_of(0, &buckets, 1), Purpose::Charge).unwrap().is_admitted(),
                "the quota fits"
            );
            clock.advance(Duration::from_millis(1));
        }
    });
    // There is room for 16 keys of 56 bytes.
    assert!(kept.bytes_current < 1_500, "{} bytes for six counters", kept.bytes_current);
}

#[test]
fn memory_keeps_key_exactly_until_reset_after() {
    for policy in every_algorithm() {
        let (backend, clock) = bounded(1);
        let backend = backend.when_full(WhenFull::Reject);
        let window = WINDOW.as_micros() as u64;
        // An instant at which a bucket, a calendar window and three windows begin.
        clock.set_micros((clock.now_micros() / (window * 3) + 1) * (window * 3));
        let charge = |key| run_check(&backend, check_of(key, &policy, 1), Purpose::Charge);
        clock.advance(Duration::from_secs(1));
        let _ = charge(0).unwrap();
        let reset_after = |decision: Decision| decision.statuses()[0].reset_after();
        let left = reset_after(charge(0).unwrap());
        clock.advance(left - Duration::from_micros(1));
        assert_eq!(charge(1).unwrap_err(), Reason::Full, "{policy:?}");
        clock.advance(Duration::from_micros(1));
        assert!(charge(1).unwrap().is_admitted(), "{policy:?}");
    }
}

/// A reload lowers the rate of a bucket, so that its units return later.
#[test]
fn memory_keeps_bucket_until_reset_after_of_lower_rate() {
    for purpose in [Purpose::Charge, Purpose::Reserve] {
        let (backend, clock) = bounded(1);
        let backend = backend.when_full(WhenFull::Reject);
        let [before, after] =
            [3, 1].map(|rate| Policy::token_bucket("p", 100, Rate::per_second(rate)).unwrap());
        let _ = run_check(&backend, check_of(0, &before, 6), purpose).unwrap();
        let decision = run_check(&backend, check_of(0, &after, 1), purpose).unwrap();
        let left = decision.statuses()[0].reset_after();
        assert_eq!(left, Duration::from_secs(7), "{purpose:?}: seven units return at the lower rate");
        clock.advance(left - Duration::from_micros(1));
        let new_key = || run_check(&backend, check_of(1, &after, 1), Purpose::Charge);
        assert_eq!(new_key().unwrap_err(), Reason::Full, "{purpose:?}: a unit is still missing");
        clock.advance(Duration::from_micros(1));
        assert!(new_key().unwrap().is_admitted(), "{purpose:?}: all units have returned");
    }
}

#[test]
fn peek_reports_key_bound_and_stores_nothing() {
    for policy in every_algorithm() {
        let (backend, clock) = bounded(2);
        let backend = backend.when_full(WhenFull::Reject);
        let peek = |key, cost| run_check(&backend, check_of(key, &policy, cost), Purpose::Peek);
        for key in 0..100 {
            assert!(
                peek(key, 1).unwrap().is_admitted(),
                "{policy:?}, {key}: a peek stores nothing, so it always has room"
            );
        }
        assert_eq!(backend.keys(), 0, "{policy:?}: a peek stores nothing");
        for key in 0..2 {
            let _ = run_check(&backend, check_of(key, &policy, 1), Purpose::Charge).unwrap();
        }
        assert!(peek(0, 1).is_ok(), "{policy:?}: a stored key has room");
        assert_eq!(
            (peek(2, 1).unwrap_err(), peek(2, 0).unwrap().is_admitted()),
            (Reason::Full, true),
            "{policy:?}: a new key above the bound has no room, unless it stores nothing"
        );
        clock.advance(WINDOW * 2);
        assert!(peek(2, 1).unwrap().is_admitted(), "{policy:?}: the keys are idle");
    }
}

#[test]
fn full_log_returns_error_until_record_is_refunded() {
    let (backend, clock) = bounded(10);
    let log = policy(Algorithm::SlidingLog);
    let other = Policy::new("other", 10, WINDOW).unwrap();
    let mut ends = Vec::new();
    for record in 0..1_u32 << 20 {
        clock.advance(Duration::from_micros(1));
        let receipts = reserve(&backend, &check_of(0, &log, 2));
        if record == 0 || record + 1 == 1 << 20 {
            ends.push(receipts);
        }
    }
    for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage] {
        let pairs = [check_of(0, &other, 1), check_of(0, &log, 1)].map(|check| check.pairs()[0].clone());
        assert_eq!(
            run_check(&backend, Check::new(pairs).unwrap(), purpose).unwrap_err(),
            Reason::Full,
            "{purpose:?}: the log has no room for a record"
        );
        assert_eq!(
            run_check(&backend, check_of(0, &log, 1), purpose).unwrap_err(),
            Reason::Full,
            "{purpose:?}: the log has no room for a record"
        );
    }
    let remaining = |status: &Status| status.remaining();
    let decision = run_check(&backend, check_of(0, &other, 0), Purpose::Charge).unwrap();
    assert_eq!(remaining(&decision.statuses()[0]), 10, "the other policy was not charged");
    // A full refund at either end removes one record.
    for end in ends.into_iter().rev() {
        settle(&backend, &check_of(0, &log, 2), &end, 0);
        assert!(
            run_check(&backend, check_of(0, &log, 1), Purpose::Overage).unwrap().is_admitted(),
            "the refund has freed a record"
        );
        assert_eq!(
            run_check(&backend, check_of(0, &log, 1), Purpose::Overage).unwrap_err(),
            Reason::Full,
            "one record was freed"
        );
    }
}

/// Returns the time that this thread has run on a processor, in clock ticks. It does not depend on what else runs.
fn processor_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The fields after the name of the thread, in parentheses: the 12th and the 13th are the times in user and system mode.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn long_log_refunds_both_ends_quickly() {
    let (backend, clock) = bounded(10);
    let log = policy(Algorithm::SlidingLog);
    let check = check_of(0, &log, 10);
    let start = processor_time();
    let receipts: Vec<_> = (0..200_000)
        .map(|_| {
            clock.advance(Duration::from_micros(1));
            reserve(&backend, &check)
        })
        .collect();
    let made_in = processor_time() - start;
    let start = processor_time();
    for i in 0..10_000 {
        settle(&backend, &check, &receipts[i], 3);
        settle(&backend, &check, &receipts[i], 0);
        settle(&backend, &check, &receipts[receipts.len() - 1 - i], 3);
        settle(&backend, &check, &receipts[receipts.len() - 1 - i], 0);
    }
    let settled_in = processor_time() - start;
    // If each refund moved half of the log, the refunds would take many times as long as the charges.
    assert!(
        settled_in < made_in * 2,
        "made in {made_in} ticks, settled in {settled_in}: no refund moves the log"
    );
    let decision = run_check(&backend, check_of(0, &log, 0), Purpose::Charge).unwrap();
    assert_eq!(decision.statuses()[0].remaining(), 4_000_000 - 1_800_000, "the refunds are counted");
}
