//! Settlements of a reservation by its actual cost.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Costs, Limiter, MemoryBackend, Policy, Reservation, Wait,
    backend::{Purpose, Reason, Receipt},
    settle::Settled,
    testing::{FakeBackend, ManualClock},
};

use super::{alice, now, policy};
use crate::http::{MINUTE, SECOND};

fn fake(backend: &FakeBackend) -> Limiter {
    let builder = Limiter::builder(backend.clone()).namespace("shop");
    builder.policy(policy("requests", 10)).policy(policy("tokens", 1_000)).build().unwrap()
}

fn reserve(limiter: &Limiter, cost: impl Into<Costs>) -> Reservation {
    now(limiter.reserve((alice(), cost))).unwrap()
}

type Units = Vec<(String, u32)>;

/// Returns the refunds and the overages, each with the name of its policy.
fn refunds_and_overages(backend: &FakeBackend) -> (Units, Units) {
    let refunds = backend.refunds().into_iter().flat_map(|refund| {
        assert_eq!(refund.namespace, "shop");
        refund.pairs
    });
    let refunds = refunds.map(|pair| (pair.policy.name().to_owned(), pair.units)).collect();
    let overages = backend.checks().into_iter().filter(|check| check.purpose == Purpose::Overage);
    let overages = overages.flat_map(|check| {
        assert_eq!(check.namespace, "shop");
        check.pairs
    });
    (refunds, overages.map(|pair| (pair.policy.name().to_owned(), pair.cost)).collect())
}

fn named(name: &str, units: u32) -> (String, u32) {
    (name.to_owned(), units)
}

#[test]
fn settlement_refunds_surplus_and_charges_overage() {
    let tokens = |units| Costs::new().policy("tokens", units);
    for (used, refunds, overages) in [
        (tokens(317), vec![named("tokens", 183)], vec![]),
        (tokens(500), vec![], vec![]),
        (tokens(800), vec![], vec![named("tokens", 300)]),
        (tokens(0).otherwise(0), vec![named("requests", 1), named("tokens", 500)], vec![]),
        (Costs::from(3), vec![named("tokens", 497)], vec![named("requests", 2)]),
        (Costs::new(), vec![], vec![]),
    ] {
        let backend = FakeBackend::admitting();
        let reservation = reserve(&fake(&backend), tokens(500));
        assert!(matches!(now(reservation.settle(used.clone())), Settled::Done { .. }));
        assert_eq!(refunds_and_overages(&backend), (refunds, overages), "{used:?}");
    }
}

#[test]
fn refund_holds_receipt_of_its_charge() {
    let backend = FakeBackend::admitting();
    let limiter = fake(&backend);
    let (first, second) = (reserve(&limiter, 5), reserve(&limiter, 5));
    assert_ne!(first.decision().unwrap().receipts(), second.decision().unwrap().receipts());
    second.settle(1);
    let refunds = backend.refunds();
    let receipts: Vec<Receipt> = refunds[0].pairs.iter().map(|pair| pair.receipt).collect();
    assert_eq!(receipts, second.decision().unwrap().receipts());
    assert_eq!(refunds[0].pairs[0].key, alice());
}

#[test]
fn clones_settle_reservation_once() {
    let backend = FakeBackend::admitting();
    let reservation = reserve(&fake(&backend), 5);
    let clone = reservation.clone();
    assert!(!clone.is_settled());
    clone.settle(4);
    assert!(reservation.is_settled());
    assert!(matches!(now(reservation.settle(0)), Settled::Already));
    assert!(matches!(now(clone.settle(9)), Settled::Already));
    assert_eq!(refunds_and_overages(&backend), (vec![named("requests", 1), named("tokens", 1)], vec![]));
}

#[test]
fn concurrent_settlements_refund_once() {
    let backend = FakeBackend::admitting();
    let reservation = reserve(&fake(&backend), 5);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| usize::from(matches!(now(reservation.settle(0)), Settled::Done { .. }))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!((done, backend.refunds().len()), (1, 1));
}

#[test]
fn dropped_reservation_sends_no_settlement() {
    let backend = FakeBackend::admitting();
    let limiter = fake(&backend);
    drop(reserve(&limiter, 5));
    assert_eq!((refunds_and_overages(&backend), limiter.lost_settlements()), ((vec![], vec![]), 0));
}

#[test]
fn limiter_sends_and_counts_failed_settlement_once() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::ReadOnly);
    let limiter = fake(&backend);
    let lost = now(reserve(&limiter, 5).settle(3));
    assert!(matches!(lost, Settled::Lost(error) if error.reason() == Reason::ReadOnly));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));

    // Refund and overage fail, and count as one lost settlement.
    let both = Costs::new().policy("requests", 9).policy("tokens", 0);
    assert!(matches!(now(reserve(&limiter, 5).settle(both)), Settled::Lost(_)));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (2, 2));
    assert_eq!(refunds_and_overages(&backend).1, [named("requests", 4)]);
}

fn memory(policy: Policy) -> (ManualClock, Limiter) {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    (clock, Limiter::builder(backend).policy(policy).build().unwrap())
}

fn remaining(limiter: &Limiter) -> u32 {
    now(limiter.peek((alice(), 0))).unwrap().statuses()[0].remaining()
}

fn with_every_algorithm() -> [Policy; 4] {
    let buckets = Algorithm::SlidingBuckets { precision: SECOND };
    [Algorithm::SlidingLog, buckets, Algorithm::SlidingCounter, Algorithm::FixedWindow]
        .map(|algorithm| policy("ten", 10).with_algorithm(algorithm).unwrap())
}

#[test]
fn memory_backend_frees_refunded_units_at_once() {
    for policy in with_every_algorithm() {
        let (_clock, limiter) = memory(policy);
        let reservation = reserve(&limiter, 10);
        assert_eq!(remaining(&limiter), 0);
        reservation.settle(2);
        assert_eq!(remaining(&limiter), 8);
        reservation.settle(0);
        assert_eq!(remaining(&limiter), 8);
    }
}

#[test]
fn overage_above_quota_denies_checks_for_one_window() {
    let (clock, limiter) = memory(policy("ten", 10));
    let reservation = reserve(&limiter, 5);
    clock.advance(20 * SECOND);
    reservation.settle(25);
    let denied = now(limiter.check(alice())).unwrap();
    // The charge expires first. The overage alone is still above the quota.
    assert_eq!((denied.statuses()[0].remaining(), denied.retry_after()), (0, Wait::For(MINUTE)));
    clock.advance(MINUTE - Duration::from_micros(1));
    assert!(!now(limiter.check(alice())).unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    assert!(now(limiter.check((alice(), 10))).unwrap().is_admitted());
}

#[test]
fn refund_changes_only_its_own_charge() {
    let (clock, limiter) = memory(policy("ten", 10));
    let first = reserve(&limiter, 4);
    clock.advance(30 * SECOND);
    let second = reserve(&limiter, 4);
    first.settle(1);
    clock.advance(30 * SECOND);
    // The rest of the first charge expires with it.
    assert_eq!(remaining(&limiter), 6);
    second.settle(3);
    assert_eq!(remaining(&limiter), 7);
}

#[test]
fn settlement_after_window_refunds_nothing() {
    let (clock, limiter) = memory(policy("ten", 10));
    let reservation = reserve(&limiter, 4);
    clock.advance(MINUTE);
    let _ = now(limiter.check((alice(), 9))).unwrap();
    assert!(matches!(now(reservation.settle(0)), Settled::Done { .. }));
    assert_eq!(remaining(&limiter), 1);
}

#[test]
fn settlement_after_reset_refunds_nothing() {
    let (clock, limiter) = memory(policy("ten", 10));
    let reservation = reserve(&limiter, 4);
    now(limiter.reset(alice())).unwrap();
    // The microsecond of its creation identifies a record.
    clock.advance(Duration::from_micros(1));
    let _ = now(limiter.check((alice(), 9))).unwrap();
    assert!(matches!(now(reservation.settle(0)), Settled::Done { .. }));
    assert_eq!(remaining(&limiter), 1);
}

#[test]
fn unsettled_charge_expires_with_its_window() {
    let (clock, limiter) = memory(policy("ten", 10));
    drop(reserve(&limiter, 10));
    clock.advance(MINUTE - Duration::from_micros(1));
    assert_eq!(remaining(&limiter), 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(remaining(&limiter), 10);
}
