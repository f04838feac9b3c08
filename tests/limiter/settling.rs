//! A charge that is replaced by what was really used.

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
    now(limiter.reserve(alice(), cost)).unwrap()
}

type Units = Vec<(String, u32)>;

/// What was asked after the reservation: units back, and units more, each with the policy.
fn asked(backend: &FakeBackend) -> (Units, Units) {
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
fn what_is_less_goes_back_and_what_is_more_is_charged() {
    let tokens = |units| Costs::new().policy("tokens", units);
    for (used, back, more) in [
        (tokens(317), vec![named("tokens", 183)], vec![]),
        (tokens(500), vec![], vec![]),
        (tokens(800), vec![], vec![named("tokens", 300)]),
        (tokens(0).otherwise(0), vec![named("requests", 1), named("tokens", 500)], vec![]),
        (Costs::from(3), vec![named("tokens", 497)], vec![named("requests", 2)]),
        (Costs::new(), vec![], vec![]),
    ] {
        let backend = FakeBackend::admitting();
        let reservation = reserve(&fake(&backend), tokens(500));
        assert!(matches!(now(reservation.settle(used.clone())), Settled::Done));
        assert_eq!(asked(&backend), (back, more), "{used:?}");
    }
}

#[test]
fn a_refund_names_the_charge_that_it_is_of() {
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
fn only_the_first_settlement_takes_effect_of_whichever_clone() {
    let backend = FakeBackend::admitting();
    let reservation = reserve(&fake(&backend), 5);
    let clone = reservation.clone();
    assert!(!clone.is_settled());
    clone.settle(4);
    assert!(reservation.is_settled());
    assert!(matches!(now(reservation.settle(0)), Settled::Already));
    assert!(matches!(now(clone.settle(9)), Settled::Already));
    assert_eq!(asked(&backend), (vec![named("requests", 1), named("tokens", 1)], vec![]));
}

#[test]
fn of_many_that_settle_at_once_one_does() {
    let backend = FakeBackend::admitting();
    let reservation = reserve(&fake(&backend), 5);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| usize::from(matches!(now(reservation.settle(0)), Settled::Done))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!((done, backend.refunds().len()), (1, 1));
}

#[test]
fn a_reservation_that_is_dropped_asks_nothing_and_loses_nothing() {
    let backend = FakeBackend::admitting();
    let limiter = fake(&backend);
    drop(reserve(&limiter, 5));
    assert_eq!((asked(&backend), limiter.lost_settlements()), ((vec![], vec![]), 0));
}

#[test]
fn a_settlement_that_fails_is_sent_once_and_counted() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::ReadOnly);
    let limiter = fake(&backend);
    let lost = now(reserve(&limiter, 5).settle(3));
    assert!(matches!(lost, Settled::Lost(error) if error.reason() == Reason::ReadOnly));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (1, 1));

    // Both halves fail, and it is one settlement.
    let both = Costs::new().policy("requests", 9).policy("tokens", 0);
    assert!(matches!(now(reserve(&limiter, 5).settle(both)), Settled::Lost(_)));
    assert_eq!((backend.refunds().len(), limiter.lost_settlements()), (2, 2));
    assert_eq!(asked(&backend).1, [named("requests", 4)]);
}

fn memory(policy: Policy) -> (ManualClock, Limiter) {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    (clock, Limiter::builder(backend).policy(policy).build().unwrap())
}

fn remaining(limiter: &Limiter) -> u32 {
    now(limiter.peek(alice(), 0)).unwrap().statuses()[0].remaining()
}

fn in_all_four_ways() -> [Policy; 4] {
    let buckets = Algorithm::SlidingBuckets { precision: SECOND };
    [Algorithm::SlidingLog, buckets, Algorithm::SlidingCounter, Algorithm::FixedWindow]
        .map(|algorithm| policy("ten", 10).with_algorithm(algorithm).unwrap())
}

#[test]
fn in_memory_what_goes_back_can_be_used_at_once() {
    for policy in in_all_four_ways() {
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
fn in_memory_what_was_used_beyond_the_quota_counts_and_keeps_others_out_for_a_window() {
    let (clock, limiter) = memory(policy("ten", 10));
    let reservation = reserve(&limiter, 5);
    clock.advance(20 * SECOND);
    reservation.settle(25);
    let denied = now(limiter.check(alice(), 1)).unwrap();
    // The charge leaves first, and what came to it is still above the quota.
    assert_eq!((denied.statuses()[0].remaining(), denied.retry_after()), (0, Wait::For(MINUTE)));
    clock.advance(MINUTE - Duration::from_micros(1));
    assert!(!now(limiter.check(alice(), 1)).unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    assert!(now(limiter.check(alice(), 10)).unwrap().is_admitted());
}

#[test]
fn in_memory_a_settlement_goes_to_its_own_charge_and_to_no_younger_one() {
    let (clock, limiter) = memory(policy("ten", 10));
    let first = reserve(&limiter, 4);
    clock.advance(30 * SECOND);
    let second = reserve(&limiter, 4);
    first.settle(1);
    clock.advance(30 * SECOND);
    // What is left of the first one leaves with it.
    assert_eq!(remaining(&limiter), 6);
    second.settle(3);
    assert_eq!(remaining(&limiter), 7);
}

#[test]
fn in_memory_a_settlement_that_comes_late_gives_nothing_back() {
    let (clock, limiter) = memory(policy("ten", 10));
    let late = reserve(&limiter, 4);
    clock.advance(MINUTE);
    now(limiter.check(alice(), 9)).unwrap();
    assert!(matches!(now(late.settle(0)), Settled::Done));
    assert_eq!(remaining(&limiter), 1);
}

#[test]
fn in_memory_a_settlement_of_what_was_reset_gives_nothing_back() {
    let (clock, limiter) = memory(policy("ten", 10));
    let before = reserve(&limiter, 4);
    now(limiter.reset(alice())).unwrap();
    // Records are told apart by the microsecond in which they were created.
    clock.advance(Duration::from_micros(1));
    now(limiter.check(alice(), 9)).unwrap();
    assert!(matches!(now(before.settle(0)), Settled::Done));
    assert_eq!(remaining(&limiter), 1);
}

#[test]
fn in_memory_a_charge_that_is_never_settled_leaves_with_its_window() {
    let (clock, limiter) = memory(policy("ten", 10));
    drop(reserve(&limiter, 10));
    clock.advance(MINUTE - Duration::from_micros(1));
    assert_eq!(remaining(&limiter), 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(remaining(&limiter), 10);
}
