//! Hits and misses during an outage of the store.

use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep},
};
use tower_sliding_window::{
    Admission, Costs, Limiter, LimiterBuilder, OutageRule, Policies, Policy, Rejection,
    backend::{Pair, Reason},
    outage::{Breaker, DenyCacheConfig, Share},
    settle::Settled,
};

use super::{
    Fault, MINUTE, REFRESH_AGE, Remote, SECOND, TICK, ZERO, alice, check, on, policy, ten, user, wait,
    with_max_age,
};

const THREE_FAILURES: Breaker = Breaker::new(3, SECOND);

/// Returns a limiter with a cached denial: Alice has used all units, and one more check was denied.
async fn cached(
    build: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
) -> (Remote, tower_sliding_window::Limiter) {
    let remote = Remote::new();
    let limiter = build(on(remote.clone())).build().unwrap();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    (remote, limiter)
}

async fn reason(limiter: &tower_sliding_window::Limiter) -> Reason {
    limiter.check(user("bob")).await.unwrap_err().reason()
}

#[tokio::test(start_paused = true)]
async fn open_breaker_keeps_cache_hits_and_fails_misses() {
    let (remote, limiter) = cached(|builder| {
        builder.breaker(THREE_FAILURES).deny_cache(with_max_age(2 * SECOND)).outage(OutageRule::FailOpen)
    })
    .await;
    advance(SECOND).await;
    remote.fail(Fault::Down);
    for _ in 0..3 {
        assert_eq!(reason(&limiter).await, Reason::Connection);
    }
    let sent = remote.checks();
    assert!(!limiter.check(user("bob")).await.unwrap_err().was_asked());
    assert!(check(&limiter, 1).await.is_cached());
    assert!(matches!(limiter.admit(alice()).await, Err(Rejection::Denied(denied)) if denied.is_cached()));
    // The entry is due, but the open breaker rejects the refresh.
    advance(2 * REFRESH_AGE - SECOND).await;
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(remote.checks(), sent);
}

#[tokio::test(start_paused = true)]
async fn hanging_store_costs_no_deadline_until_max_age() {
    let (remote, limiter) = cached(|builder| builder.breaker(None)).await;
    let denied = Instant::now();
    remote.fail(Fault::Hang);
    for _ in 0..800 {
        assert!(check(&limiter, 1).await.is_cached());
        advance(TICK).await;
    }
    assert_eq!((denied.elapsed(), remote.checks()), (800 * TICK, 2));
    advance(REFRESH_AGE - 800 * TICK).await;
    // The check that refreshes the entry waits until the deadline.
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!((denied.elapsed(), remote.checks()), (REFRESH_AGE + 100 * TICK, 3));
    // The next check exceeds the maximum age of the entry, so it misses and times out. The known denial is still true.
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!((denied.elapsed(), remote.checks()), (REFRESH_AGE + 200 * TICK, 4));
}

#[tokio::test(start_paused = true)]
async fn cache_hit_does_not_change_breaker_state() {
    let (remote, limiter) = cached(|builder| builder.breaker(THREE_FAILURES)).await;
    advance(SECOND / 5).await;
    remote.fail(Fault::Down);
    for _ in 0..2 {
        assert_eq!(reason(&limiter).await, Reason::Connection);
        for _ in 0..10 {
            assert!(check(&limiter, 1).await.is_cached());
        }
    }
    assert!(limiter.check(user("bob")).await.unwrap_err().was_asked());
    assert!(!limiter.check(user("bob")).await.unwrap_err().was_asked());
}

#[tokio::test(start_paused = true)]
async fn cache_hit_ignores_max_in_flight() {
    let (remote, limiter) = cached(|builder| builder.max_checks_in_flight(1).breaker(None)).await;
    remote.fail(Fault::Hang);
    let waiting = tokio::spawn(limiter.check(user("bob")));
    yield_now().await;
    assert_eq!(reason(&limiter).await, Reason::Overloaded);
    assert!(check(&limiter, 1).await.is_cached());
    advance(REFRESH_AGE).await;
    waiting.abort();
    let waiting = tokio::spawn(limiter.check(user("bob")));
    yield_now().await;
    // The entry is due, but the in-flight bound rejects the refresh.
    assert!(check(&limiter, 1).await.is_cached());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn outage_leaves_no_cache_entry() {
    let (remote, limiter) = cached(|builder| builder.breaker(None)).await;
    remote.fail(Fault::Down);
    assert_eq!(reason(&limiter).await, Reason::Connection);
    remote.fail(None);
    assert!(limiter.check(user("bob")).await.unwrap().is_admitted());
}

/// Returns whether a request is rejected by a known denial.
fn is_known(outcome: &Result<Admission, Rejection>) -> bool {
    matches!(outcome, Err(Rejection::Denied(denied)) if denied.is_cached())
}

/// Returns a limiter that fails open, on a store that is down after it has denied a check of Alice of this cost.
async fn down_after_denial(
    cost: u32,
    build: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
) -> (Remote, Limiter) {
    let remote = Remote::new();
    let limiter = build(on(remote.clone())).outage(OutageRule::FailOpen).build().unwrap();
    assert!(check(&limiter, 8).await.is_admitted());
    assert!(!check(&limiter, cost).await.is_admitted());
    advance(2 * SECOND).await;
    remote.fail(Fault::Down);
    (remote, limiter)
}

#[tokio::test(start_paused = true)]
async fn known_denial_outlives_store_under_every_rule() {
    let rules = [OutageRule::FailOpen, OutageRule::FailClosed, OutageRule::LocalFallback(Share::whole())];
    let caches = [Some(DenyCacheConfig::default()), Some(with_max_age(TICK)), None];
    for (rule, cache) in rules.into_iter().flat_map(|rule| caches.map(|cache| (rule, cache))) {
        for fault in [Fault::Down, Fault::Hang] {
            let case = format!("{rule:?}, {cache:?}");
            let (remote, limiter) = cached(|builder| builder.outage(rule).deny_cache(cache)).await;
            let denied = Instant::now();
            advance(SECOND).await;
            remote.fail(fault);
            // With 10 of 10 units used, the wait of the denial is a minute.
            while denied.elapsed() < MINUTE - SECOND {
                let outcome = limiter.admit((alice(), 2)).await;
                assert!(is_known(&outcome), "{case}, after {:?}: {outcome:?}", denied.elapsed());
                let left = wait(outcome.unwrap_err().decision().unwrap());
                assert_eq!(left, MINUTE - denied.elapsed(), "{case}");
                advance(SECOND).await;
            }
            let other = limiter.admit(user("bob")).await;
            assert_eq!(
                other.is_ok(),
                rule != OutageRule::FailClosed,
                "{case}: the rule applies to other keys"
            );
            advance(MINUTE.saturating_sub(denied.elapsed())).await;
            let outcome = limiter.admit(alice()).await;
            assert_eq!(outcome.is_ok(), rule != OutageRule::FailClosed, "{case}: the wait has passed");
            assert!(!is_known(&outcome), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn known_denial_applies_to_same_or_larger_cost() {
    let (_remote, limiter) = down_after_denial(5, |builder| builder).await;
    for (cost, is_denied) in [(4, false), (5, true), (6, true)] {
        assert_eq!(is_known(&limiter.admit((alice(), cost)).await), is_denied, "cost {cost}");
    }
    // A smaller quota needs as much as a larger cost.
    for (quota, is_denied) in [(11, false), (10, true), (9, true)] {
        let pairs = [Pair::new(alice(), policy("ten", quota, MINUTE), 5)];
        let outcome = limiter.check(pairs).await;
        assert_eq!(outcome.is_ok(), is_denied, "quota {quota}: {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_known_denial_of_several_pairs_is_enough() {
    let (_remote, limiter) = down_after_denial(5, |builder| builder).await;
    let hourly = policy("hourly", 100, 60 * MINUTE);
    for (key, is_denied) in [(alice(), true), (user("bob"), false)] {
        let pairs = [Pair::new(user("carol"), hourly.clone(), 1), Pair::new(key, ten(), 5)];
        assert_eq!(limiter.check(pairs).await.is_ok(), is_denied);
    }
    let shadow = [Pair::new(alice(), ten(), 5).shadow()];
    assert!(limiter.check(shadow).await.is_err(), "a shadow pair denies nothing");
}

#[tokio::test(start_paused = true)]
async fn own_reset_and_refund_remove_known_denial() {
    for is_reset in [true, false] {
        let remote = Remote::new();
        let [limiter, other] = [(); 2].map(|()| {
            let limiter = on(remote.clone()).outage(OutageRule::FailOpen);
            limiter.build().unwrap()
        });
        let reservation = limiter.reserve((alice(), 10)).await.unwrap();
        for limiter in [&limiter, &other] {
            assert!(!check(limiter, 1).await.is_admitted(), "all units are reserved");
        }
        if is_reset {
            limiter.reset(alice()).await.unwrap();
        } else {
            reservation.settle(0).await;
        }
        advance(2 * SECOND).await;
        remote.fail(Fault::Down);
        for (limiter, name) in [(&limiter, "the limiter"), (&other, "another limiter of the process")] {
            let outcome = limiter.admit(alice()).await;
            let is_unchecked = outcome.as_ref().is_ok_and(|admission| admission.unchecked().is_some());
            assert!(is_unchecked, "reset: {is_reset}, {name}: {outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_refund_keeps_known_denial() {
    for fault in [Fault::Down, Fault::Hang] {
        let remote = Remote::new();
        let limiter = on(remote.clone()).outage(OutageRule::FailOpen).build().unwrap();
        let reservation = limiter.reserve((alice(), 10)).await.unwrap();
        assert!(!check(&limiter, 1).await.is_admitted(), "all units are reserved");
        remote.fail(fault);
        let settlement = reservation.settle(0);
        assert!(is_known(&limiter.admit(alice()).await), "the refund is in flight");
        assert!(matches!(settlement.await, Settled::Lost(_)), "the store is down");
        let outcome = limiter.admit(alice()).await;
        assert!(is_known(&outcome), "the refund is lost: {outcome:?}");
        remote.fail(None);
        advance(SECOND).await;
        assert!(!check(&limiter, 1).await.is_cached(), "a store that decides is asked");
    }
}

/// A settlement refunds one pair and charges more of another one, and the overage is lost.
#[tokio::test(start_paused = true)]
async fn confirmed_refund_removes_known_denial_although_overage_is_lost() {
    let remote = Remote::new();
    let hourly = policy("hourly", 10, 60 * MINUTE);
    let limiter = on(remote.clone()).policy(hourly).outage(OutageRule::FailOpen).build().unwrap();
    let costs = |ten, hourly| Costs::new().policy("ten", ten).policy("hourly", hourly);
    let reservation = limiter.reserve((alice(), costs(10, 5))).await.unwrap();
    assert!(!check(&limiter, 1).await.is_admitted(), "all units are reserved");
    remote.set_check_latency(SECOND, SECOND);
    let settlement = reservation.settle(costs(0, 7));
    sleep(SECOND / 2).await;
    remote.fail(Fault::Down);
    assert!(matches!(settlement.await, Settled::Lost(_)), "the overage is lost");
    advance(2 * SECOND).await;
    let outcome = limiter.admit(alice()).await;
    assert!(!is_known(&outcome), "the refund is made: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn admission_removes_known_denial() {
    let (remote, limiter) = cached(|builder| builder.outage(OutageRule::FailOpen)).await;
    remote.reset_by_other_process(&[ten()]).await;
    advance(2 * SECOND).await;
    assert!(check(&limiter, 1).await.is_admitted());
    remote.fail(Fault::Down);
    assert!(limiter.admit(alice()).await.unwrap().unchecked().is_some());
}

/// The store has admitted before it denied, and the reply to the denied check arrives first.
#[tokio::test(start_paused = true)]
async fn late_admission_keeps_newer_known_denial() {
    let remote = Remote::new();
    let limiter = on(remote.clone()).outage(OutageRule::FailOpen).build().unwrap();
    remote.set_check_latency(ZERO, 50 * TICK);
    let late = tokio::spawn(limiter.check((alice(), 10)));
    yield_now().await;
    remote.set_check_latency(ZERO, ZERO);
    advance(TICK).await;
    assert!(!check(&limiter, 1).await.is_admitted(), "all units are used");
    assert!(!late.is_finished(), "the reply to the first check is on its way");
    assert!(late.await.unwrap().unwrap().is_admitted());
    advance(2 * SECOND).await;
    remote.fail(Fault::Down);
    let outcome = limiter.admit(alice()).await;
    assert!(is_known(&outcome), "the denial is newer than the admission: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn overloaded_check_of_denied_key_is_denied() {
    let (remote, limiter) =
        cached(|builder| builder.max_checks_in_flight(1).outage(OutageRule::FailOpen)).await;
    advance(2 * SECOND).await;
    remote.fail(Fault::Hang);
    let waiting = tokio::spawn(limiter.admit(user("bob")));
    yield_now().await;
    let shed = limiter.admit(user("carol")).await.unwrap_err();
    assert_eq!(shed.error().unwrap().reason(), Reason::Overloaded);
    assert!(is_known(&limiter.admit(alice()).await));
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn denials_of_other_keys_keep_known_denial() {
    let (remote, limiter) = {
        let remote = Remote::new();
        let cache = DenyCacheConfig::new(DenyCacheConfig::default().max_age, 64);
        let limiter = on(remote.clone()).deny_cache(cache).outage(OutageRule::FailOpen).build().unwrap();
        (remote, limiter)
    };
    let deny = async |key| {
        assert!(limiter.check((user(&key), 10)).await.unwrap().is_admitted());
        assert!(!limiter.check(user(&key)).await.unwrap().is_admitted());
    };
    for other in 0..200 {
        deny(format!("before {other}")).await;
    }
    deny("alice".to_owned()).await;
    // Fewer than half of the entries, each denied once.
    for other in 0..30 {
        deny(format!("after {other}")).await;
    }
    advance(2 * SECOND).await;
    remote.fail(Fault::Down);
    assert!(is_known(&limiter.admit(user("alice")).await), "the flood has not evicted the entry");
}

#[tokio::test(start_paused = true)]
async fn denials_of_other_costs_keep_smallest() {
    let remote = Remote::new();
    let hundred = Policies::from(policy("hundred", 100, MINUTE));
    let limiter = Limiter::builder(remote.clone()).without_policies().outage(OutageRule::FailOpen);
    let limiter = limiter.build().unwrap();
    let check = async |cost| limiter.check(hundred.pairs(&alice(), cost)).await;
    // Each cost has a wait of its own.
    for _ in 0..99 {
        assert!(check(1).await.unwrap().is_admitted());
        advance(TICK).await;
    }
    for cost in 2..60 {
        let sent = remote.checks();
        assert!(!check(cost).await.unwrap().is_admitted());
        assert_eq!(remote.checks(), sent + 1, "the store decides about cost {cost}");
        advance(SECOND / 2).await;
    }
    remote.fail(Fault::Down);
    assert!(check(2).await.unwrap().is_cached());
}

/// A block returns no units, so it ends no denial.
#[tokio::test(start_paused = true)]
async fn block_keeps_known_denial_of_its_gate() {
    for fault in [None, Some(Fault::Down)] {
        let remote = Remote::new();
        let limiter = on(remote.clone()).policy(Policy::gate("api").unwrap()).outage(OutageRule::FailOpen);
        let limiter = limiter.build().unwrap();
        limiter.block(alice(), 10 * MINUTE).await.unwrap();
        assert!(!check(&limiter, 1).await.is_admitted());
        advance(2 * SECOND).await;
        remote.fail(fault);
        assert_eq!(limiter.block(alice(), 20 * MINUTE).await.is_ok(), fault.is_none());
        if fault.is_none() {
            assert_eq!(wait(&check(&limiter, 1).await), 20 * MINUTE, "the store is asked for the new wait");
            assert!(limiter.block(alice(), SECOND).await.is_ok());
        }
        remote.fail(Fault::Down);
        let outcome = limiter.admit(alice()).await;
        assert!(is_known(&outcome), "{outcome:?}");
        remote.fail(None);
        limiter.unblock(alice()).await.unwrap();
        remote.fail(Fault::Down);
        assert!(!is_known(&limiter.admit(alice()).await), "the end of the block is known");
    }
}

/// Without the question, the known denial of the other policy would repeat its wait, which is shorter than the block.
#[tokio::test(start_paused = true)]
async fn block_asks_store_about_all_policies_of_its_key() {
    let (remote, limiter) = cached(|builder| builder.policy(Policy::gate("api").unwrap())).await;
    assert!(wait(&check(&limiter, 1).await) <= MINUTE, "the known denial");
    limiter.block(alice(), 10 * MINUTE).await.unwrap();
    let sent = remote.checks();
    assert_eq!(wait(&check(&limiter, 1).await), 10 * MINUTE);
    assert_eq!(remote.checks(), sent + 1);
    limiter.block(alice(), 20 * MINUTE).await.unwrap();
    remote.fail(Fault::Down);
    assert!(check(&limiter, 1).await.is_cached(), "in an outage, the denial still holds");
}
