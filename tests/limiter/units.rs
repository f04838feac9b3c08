//! Units by hand: as many as fit, and units beyond the quota.

use std::time::Duration;

use tower_sliding_window::{
    Costs, Limiter, LimiterBuilder, MemoryBackend, OutageRule, PartitionKey, Policy, Rejection, Wait,
    backend::{Purpose, Reason, WhenFull},
    outage::Share,
    policy::Rate,
    settle::Settled,
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

use super::{ChargeOnly, alice, now, policy};

fn limiter(builder: LimiterBuilder) -> Limiter {
    builder.policy(policy("requests", 10)).policy(policy("tokens", 100)).build().unwrap()
}

fn memory() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (limiter(Limiter::builder(MemoryBackend::new().with_clock(&clock))), clock)
}

/// Returns what remains of each policy.
fn remaining(limiter: &Limiter) -> Vec<u32> {
    let decision = now(limiter.peek((alice(), 0))).unwrap();
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

fn costs() -> Costs {
    Costs::new().policy("tokens", 12)
}

#[test]
fn take_charges_largest_number_that_fits_all_policies() {
    let (limiter, clock) = memory();
    let (units, taken) = now(limiter.take_up_to((alice(), costs()), 5)).unwrap();
    assert_eq!((units, remaining(&limiter)), (5, vec![5, 40]), "all of them fit");
    clock.advance(Duration::from_secs(1));
    let (units, _) = now(limiter.take_up_to((alice(), costs()), 5)).unwrap();
    assert_eq!((units, remaining(&limiter)), (3, vec![2, 4]), "the tokens are the limit");
    let denied = now(limiter.take_up_to((alice(), costs()), 5));
    let Err(Rejection::Denied(denial)) = denied else { panic!("{denied:?}") };
    let wait = Wait::For(Duration::from_secs(59));
    assert_eq!(denial.retry_after(), wait, "the wait of one unit: the oldest charge returns 60 tokens");
    assert_eq!(remaining(&limiter), [2, 4], "a denial charges nothing");
    let (units, nothing) = now(limiter.take_up_to((alice(), costs()), 0)).unwrap();
    assert_eq!((units, remaining(&limiter)), (0, vec![2, 4]), "zero units always fit");
    drop(nothing);
    // The amount used replaces the five units.
    assert!(matches!(now(taken.settle(Costs::new().policy("tokens", 7))), Settled::Done { .. }));
    assert_eq!(remaining(&limiter), [2, 57], "the tokens were 60");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied), (3, 1), "each take is one decision");
}

#[test]
fn take_of_unit_above_quota_is_never_admitted() {
    let (limiter, _) = memory();
    let denied = now(limiter.take_up_to((alice(), 11), 5));
    assert!(matches!(denied, Err(Rejection::Denied(denial)) if denial.retry_after() == Wait::Never));
    let (units, _) = now(limiter.take_up_to((alice(), 0), u32::MAX)).unwrap();
    assert_eq!(units, u32::MAX, "costs of 0 have no limit");
    let (units, _) = now(limiter.take_up_to(alice(), u32::MAX)).unwrap();
    assert_eq!((units, remaining(&limiter)), (10, vec![0, 90]), "the smallest quota is the limit");
}

#[test]
fn take_ignores_shadow_policies() {
    let builder = Limiter::builder(MemoryBackend::new()).policy(policy("enforced", 10));
    let builder = builder.policy(policy("small", 3).shadow()).policy(policy("large", 8).shadow());
    let limiter = builder.build().unwrap();
    let (units, taken) = now(limiter.take_up_to(alice(), 6)).unwrap();
    let would_deny: Vec<&str> =
        taken.decision().unwrap().shadow_denied().map(|status| status.policy().name()).collect();
    assert_eq!((units, would_deny), (6, vec!["small"]));
    assert_eq!(remaining(&limiter), [4, 3, 2], "the shadow policy with room is charged");
    now(taken.settle(1));
    assert_eq!(remaining(&limiter), [9, 3, 7], "what was charged is refunded");
}

#[test]
fn take_applies_outage_rule() {
    let unavailable = || Limiter::builder(FakeBackend::unavailable(Reason::Connection));
    let closed = now(limiter(unavailable()).take_up_to(alice(), 7));
    assert!(matches!(closed, Err(Rejection::Unavailable(_))));

    let open = limiter(unavailable().outage(OutageRule::FailOpen));
    let (units, unchecked) = now(open.take_up_to(alice(), 7)).unwrap();
    assert!(unchecked.decision().is_none());
    assert!(matches!((units, now(unchecked.settle(3))), (7, Settled::Uncharged)), "all units pass uncounted");

    let share = OutageRule::LocalFallback(Share::among(2).unwrap());
    let local = limiter(unavailable().outage(share));
    let (units, taken) = now(local.take_up_to((alice(), costs()), 7)).unwrap();
    assert_eq!(units, 4, "a half of the tokens is 50");
    assert!(matches!(now(local.take_up_to((alice(), costs()), 7)), Err(Rejection::LocalFallbackDenied(_))));
    assert!(matches!(now(taken.settle(0)), Settled::Done { .. }));
    assert_eq!(now(local.take_up_to((alice(), costs()), 7)).unwrap().0, 4, "the local units are refunded");

    // Several slots are a mistake, and not an outage.
    for rule in [OutageRule::FailOpen, share] {
        let slots = Limiter::builder(FakeBackend::unavailable(Reason::CrossSlot)).outage(rule);
        let rejected = now(limiter(slots).take_up_to(alice(), 7));
        assert!(
            matches!(rejected, Err(Rejection::Unavailable(error)) if error.reason() == Reason::CrossSlot)
        );
    }
}

#[test]
fn fake_backend_takes_all_units_and_records_purposes() {
    let wait = Wait::For(Duration::from_secs(7));
    let backend = FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(wait)]);
    let limiter = limiter(Limiter::builder(backend.clone()));
    let (units, taken) = now(limiter.take_up_to((alice(), costs()), 6)).unwrap();
    assert_eq!(units, 6);
    now(taken.settle(Costs::new().policy("requests", 2)));
    assert_eq!(backend.refunds()[0].pairs[0].units, 4, "two of six requests were used");
    assert!(matches!(now(limiter.take_up_to(alice(), 6)), Err(Rejection::Denied(_))));
    let _receipt = now(limiter.debit(alice())).unwrap();
    let purposes: Vec<Purpose> = backend.checks().iter().map(|check| check.purpose).collect();
    assert_eq!(purposes, [Purpose::TakeUpTo(6), Purpose::TakeUpTo(6), Purpose::Debit]);
}

#[test]
fn debit_charges_beyond_quota_and_can_be_settled() {
    let (limiter, _) = memory();
    let debited = now(limiter.debit((alice(), Costs::new().policy("tokens", 250)))).unwrap();
    assert_eq!(remaining(&limiter), [9, 0]);
    let denied = now(limiter.check(alice())).unwrap();
    assert!(!denied.is_admitted(), "the overage denies later checks");
    assert!(matches!(now(debited.settle(Costs::new().policy("tokens", 30))), Settled::Done { .. }));
    assert_eq!(remaining(&limiter), [9, 70], "the receipt finds the charge");
    drop(now(limiter.debit(alice())).unwrap());
    assert_eq!(remaining(&limiter), [8, 69], "a debit that is dropped stands");
    let stats = limiter.stats();
    assert_eq!((stats.admitted, stats.denied), (0, 1), "a debit is no decision");
}

#[test]
fn backend_that_only_charges_takes_and_debits_nothing() {
    let limiter = limiter(Limiter::builder(ChargeOnly).outage(OutageRule::FailOpen));
    let taken = now(limiter.take_up_to(alice(), 2));
    assert!(matches!(taken, Err(Rejection::Unavailable(error)) if error.reason() == Reason::Unsupported));
    assert_eq!(now(limiter.debit(alice())).unwrap_err().reason(), Reason::Unsupported);
}

/// A bucket counts at most twice its capacity. Of a debit that reaches this bound, a part was not charged.
#[test]
fn debit_at_bound_of_bucket_receives_no_refund() {
    let bucket = Policy::token_bucket("bucket", 100, Rate::per_minute(1)).unwrap();
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limiter = Limiter::builder(backend).policy(bucket).build().unwrap();
    assert!(now(limiter.check((alice(), 100))).unwrap().is_admitted());
    let debit = now(limiter.debit((alice(), 50))).unwrap();
    now(debit.settle(0));
    assert_eq!(remaining(&limiter), [0]);
    let debit = now(limiter.debit((alice(), 300))).unwrap();
    now(debit.settle(100));
    assert_eq!(remaining(&limiter), [0], "the units of the check are not refunded");
    assert!(!now(limiter.check((alice(), 1))).unwrap().is_admitted());
}

/// The receipt of a debit that reaches the bound states that no refund is possible, and not that nothing was charged.
#[test]
fn settlement_of_debit_at_bound_charges_shadow_policy() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let trial = Policy::token_bucket("trial", 10, Rate::per_minute(1)).unwrap().shadow();
    let limiter =
        Limiter::builder(backend.clone()).policy(policy("pages", 1_000)).policy(trial).build().unwrap();
    let debit = now(limiter.debit((alice(), 20))).unwrap();
    now(limiter.reset(alice())).unwrap();
    now(debit.settle(25));
    assert_eq!(remaining(&limiter), [995, 5], "the difference is charged to both policies");
}

/// An open gate stores no key. So at the bound on keys, it makes no room for a shadow pair.
#[test]
fn gate_stores_no_key_for_shadow_pair() {
    let backend = MemoryBackend::with_max_keys(1).unwrap().when_full(WhenFull::Reject);
    let limiter = Limiter::builder(backend)
        .policy(policy("trial", 5).shadow())
        .policy(Policy::gate("stopped").unwrap())
        .build()
        .unwrap();
    for key in [alice(), PartitionKey::new("user", "bob")] {
        assert!(now(limiter.check(key)).unwrap().is_admitted());
    }
}
