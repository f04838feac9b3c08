//! Hits: their duration, their waits and their statuses.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
};

use futures_util::future::join_all;
use tokio::time::{advance, sleep};
use tower_sliding_window::{
    Algorithm, Costs, Decision, Limiter, Policies, Policy, Rejection, Wait, backend::Pair,
};

use super::{
    MINUTE, REFRESH_AGE, Remote, SECOND, TICK, ZERO, alice, check, exhausted, on, policy, remote, ten, user,
    wait, with_max_age,
};

#[tokio::test(start_paused = true)]
async fn hit_returns_denial_with_remaining_wait() {
    let (remote, limiter) = exhausted().await;
    let at = limiter.peek(alice()).await.unwrap().at_micros();
    for millis in 0..800 {
        let denied = check(&limiter, 1).await;
        assert!(!denied.is_admitted() && denied.is_cached());
        let left = MINUTE - millis * TICK;
        let status = &denied.statuses()[0];
        assert_eq!(denied.retry_after(), Wait::For(left));
        assert_eq!((status.next_after(), status.reset_after()), (left, left));
        assert_eq!((status.quota().unwrap(), status.remaining(), status.cost()), (10, 0, 1));
        assert_eq!((status.policy(), denied.at_micros()), (&ten(), at));
        advance(TICK).await;
    }
    assert_eq!(remote.checks(), 3);
}

#[tokio::test(start_paused = true)]
async fn hit_keeps_name_and_index_of_denying_pair() {
    let limiter = on(Remote::new()).policy(policy("two", 2, MINUTE)).build().unwrap();
    let costs = || Costs::new().policy("two", 2);
    assert!(limiter.check((alice(), costs())).await.unwrap().is_admitted());
    let (exact, cached) =
        (limiter.check((alice(), costs())).await.unwrap(), limiter.check((alice(), costs())).await.unwrap());
    let indexes = |decision: &Decision| decision.indexed_statuses().map(|(i, _)| i).collect::<Vec<_>>();
    assert_eq!((exact.is_cached(), indexes(&exact)), (false, vec![0, 1]));
    assert_eq!((cached.is_cached(), indexes(&cached)), (true, vec![1]), "only the denying pair is known");
    assert_eq!(exact.status("ten").map(|status| status.remaining()), Some(9));
    assert_eq!(cached.status("ten"), None);
    for decision in [exact, cached] {
        let status = decision.status("two").unwrap();
        assert_eq!((status.policy().name(), status.cost(), status.remaining()), ("two", 2, 0));
        assert_eq!(decision.status("other"), None);
    }
}

#[tokio::test(start_paused = true)]
async fn checks_and_reservations_share_cached_denials() {
    let (remote, limiter) = exhausted().await;
    assert!(matches!(limiter.reserve(alice()).await, Err(Rejection::Denied(it)) if it.is_cached()));
    let bob = user("bob");
    assert!(limiter.reserve((bob.clone(), 10)).await.is_ok());
    assert!(matches!(limiter.reserve((bob.clone(), 2)).await, Err(Rejection::Denied(_))));
    assert_eq!(remote.checks(), 4);
    assert!(limiter.check((bob, 2)).await.unwrap().is_cached());
    assert_eq!(remote.checks(), 4);
}

#[tokio::test(start_paused = true)]
async fn smaller_cost_misses_deny_cache() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 7).await.is_admitted());
    assert!(!check(&limiter, 5).await.is_admitted());
    assert!(!check(&limiter, 4).await.is_cached());
    assert!(check(&limiter, 3).await.is_admitted());
    assert_eq!(remote.checks(), 4);
}

#[tokio::test(start_paused = true)]
async fn hit_returns_separate_wait_for_each_cost() {
    let (remote, limiter) = remote();
    for cost in [1, 2, 3, 4] {
        assert!(check(&limiter, cost).await.is_admitted());
        advance(10 * SECOND).await;
    }
    // The waits after which enough units for each cost have left the window, in seconds.
    let waits = [(1, 20), (3, 30), (6, 40), (10, 50)];
    for round in 0..3 {
        for (cost, seconds) in waits {
            let denied = check(&limiter, cost).await;
            assert_eq!(denied.retry_after(), Wait::For(seconds * SECOND - round * TICK), "{cost}");
            // The reply to any cost states the wait of the whole quota.
            assert_eq!(denied.is_cached(), round > 0 || cost == 10);
        }
        advance(TICK).await;
    }
    assert_eq!(remote.checks(), 4 + 3);
    // Three asks were sent at once. Soon after, a new cost hits with the wait of the next smaller one.
    let denied = check(&limiter, 5).await;
    assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::For(30 * SECOND - 3 * TICK), true));
    advance(SECOND - 3 * TICK).await;
    let denied = check(&limiter, 5).await;
    assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::For(39 * SECOND), false));
    assert_eq!(remote.checks(), 4 + 4);
}

#[tokio::test(start_paused = true)]
async fn concurrent_check_of_new_cost_hits_with_shorter_wait() {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 1).await.is_admitted());
    advance(SECOND).await;
    assert!(check(&limiter, 9).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_admitted());
    remote.set_check_latency(TICK, TICK);
    let pending = tokio::spawn(limiter.check((alice(), 5)));
    sleep(TICK).await;
    let meanwhile = check(&limiter, 5).await;
    assert_eq!((meanwhile.is_cached(), wait(&meanwhile)), (true, MINUTE - SECOND - TICK));
    let first = pending.await.unwrap().unwrap();
    assert_eq!((first.is_cached(), wait(&first)), (false, MINUTE - TICK));
    assert_eq!(remote.checks(), 4);
}

#[tokio::test(start_paused = true)]
async fn hit_for_cost_above_quota_returns_never() {
    let (remote, limiter) = remote();
    assert_eq!(check(&limiter, 11).await.retry_after(), Wait::Never);
    for cost in [11, 12, u32::MAX] {
        let denied = check(&limiter, cost).await;
        assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::Never, true));
        let status = &denied.statuses()[0];
        assert_eq!((status.remaining(), status.next_after()), (10, MINUTE));
    }
    assert_eq!(remote.checks(), 1);
    assert!(check(&limiter, 10).await.is_admitted());
    // The same holds if a smaller cost has a cached denial with a wait.
    assert!(!check(&limiter, 1).await.is_admitted());
    let denied = check(&limiter, 11).await;
    assert_eq!((denied.retry_after(), denied.is_cached()), (Wait::Never, true));
    advance(SECOND).await;
    assert!(!check(&limiter, 11).await.is_cached());
}

#[tokio::test(start_paused = true)]
async fn store_admits_check_exactly_after_wait() {
    for millis in [2, 100, 999] {
        let remote = Remote::new();
        let limiter = Limiter::builder(remote.clone()).policy(policy("p", 1, millis * TICK)).build().unwrap();
        assert!(check(&limiter, 1).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        advance((millis - 1) * TICK).await;
        let denied = check(&limiter, 1).await;
        assert_eq!((denied.is_admitted(), wait(&denied)), (false, TICK));
        advance(TICK).await;
        assert!(check(&limiter, 1).await.is_admitted(), "{millis}");
    }
}

#[tokio::test(start_paused = true)]
async fn cached_wait_starts_at_request_not_at_response() {
    let remote = Remote::new();
    let limiter = Limiter::builder(remote.clone()).policy(policy("p", 1, SECOND / 2)).build().unwrap();
    assert!(check(&limiter, 1).await.is_admitted());
    remote.set_check_latency(ZERO, 40 * TICK);
    assert_eq!(wait(&check(&limiter, 1).await), SECOND / 2);
    remote.set_check_latency(ZERO, ZERO);
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), wait(&denied)), (true, SECOND / 2 - 40 * TICK));
    advance(SECOND / 2 - 40 * TICK).await;
    assert!(check(&limiter, 1).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn cache_sees_reset_by_another_process_within_max_age() {
    for max_age in [TICK, 10 * TICK, SECOND, MINUTE] {
        let remote = Remote::new();
        let quota = policy("ten", 10, 60 * MINUTE);
        let builder = Limiter::builder(remote.clone()).policy(quota.clone());
        let limiter = builder.deny_cache(with_max_age(max_age)).build().unwrap();
        assert!(check(&limiter, 10).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        let denied = tokio::time::Instant::now();
        remote.reset_by_other_process(std::slice::from_ref(&quota)).await;
        // Under constant load, one check refreshes the entry before its maximum age.
        while !check(&limiter, 1).await.is_admitted() {
            advance(max_age / 1_000).await;
        }
        let elapsed = denied.elapsed();
        assert!((max_age / 10 * 8..max_age / 10 * 9).contains(&elapsed), "{max_age:?}: {elapsed:?}");
        // The refresh has invalidated the denial for all other checks.
        remote.set_check_latency(TICK, TICK);
        let others: Vec<_> = (0..4).map(|_| tokio::spawn(limiter.check(alice()))).collect();
        for other in others {
            assert!(other.await.unwrap().unwrap().is_admitted());
        }
        remote.set_check_latency(ZERO, ZERO);

        // At the maximum age every check misses.
        assert!(check(&limiter, 5).await.is_admitted());
        assert!(!check(&limiter, 1).await.is_admitted());
        remote.reset_by_other_process(std::slice::from_ref(&quota)).await;
        advance(max_age).await;
        let sent = remote.checks();
        for _ in 0..10 {
            assert!(check(&limiter, 1).await.is_admitted());
        }
        assert_eq!(remote.checks(), sent + 10);
    }
}

#[tokio::test(start_paused = true)]
async fn other_key_policy_or_limiter_misses_deny_cache() {
    let (remote, limiter) = exhausted().await;
    let sent = remote.checks();
    let pair = |policy: Policy| vec![Pair::new(alice(), policy, 1)];
    let precision = SECOND;
    let others = [
        policy("eleven", 10, MINUTE),
        policy("ten", 10, MINUTE + TICK),
        ten().with_algorithm(Algorithm::FixedWindow).unwrap(),
        ten().with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap(),
    ];
    for (i, other) in others.into_iter().enumerate() {
        assert!(limiter.check(pair(other)).await.unwrap().is_admitted());
        assert_eq!(remote.checks(), sent + i + 1);
    }
    assert!(limiter.check(pair(ten())).await.unwrap().is_cached());
    assert!(limiter.check(user("bob")).await.unwrap().is_admitted());
    assert_eq!(remote.checks(), sent + 5);
    for other in [on(remote.clone()), on(remote.clone()).namespace("other")] {
        assert!(!check(&other.build().unwrap(), 1).await.is_cached());
    }
    assert_eq!(remote.checks(), sent + 7);
    assert!(check(&limiter.clone(), 1).await.is_cached(), "clones share the deny cache");
}

#[tokio::test(start_paused = true)]
async fn changed_quota_takes_effect_at_once() {
    let (remote, limiter) = exhausted().await;
    let under = async |quota, cost| {
        let pairs = Policies::from(policy("ten", quota, MINUTE)).pairs(&alice(), cost);
        limiter.check(pairs).await.unwrap()
    };
    // The cached denial proves a usage of ten units. So a smaller quota denies, too.
    let denied = under(9, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses()[0].quota().unwrap()), (true, 9));
    assert_eq!(under(9, 10).await.retry_after(), Wait::Never);
    let denied = under(11, 2).await;
    assert_eq!((denied.is_cached(), denied.statuses()[0].remaining()), (true, 1));
    assert_eq!(remote.checks(), 2);
    assert!(under(11, 1).await.is_admitted());
    assert!(under(12, 1).await.is_admitted());
    assert_eq!(remote.checks(), 4);
}

#[tokio::test(start_paused = true)]
async fn multi_pair_hit_returns_only_denying_pairs() {
    let remote = Remote::new();
    let builder = Limiter::builder(remote.clone()).policy(policy("wide", 1_000, MINUTE)).policy(ten());
    let limiter = builder.policy(policy("narrow", 5, SECOND / 2)).build().unwrap();
    assert!(check(&limiter, 5).await.is_admitted());
    advance(SECOND / 2).await;
    assert!(check(&limiter, 5).await.is_admitted());
    advance(SECOND / 10).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), denied.statuses().len()), (false, 3));
    let names = |decision: &tower_sliding_window::Decision| {
        let statuses = decision.statuses().iter().map(|status| status.policy().name().to_owned());
        statuses.collect::<Vec<_>>()
    };
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), names(&denied)), (true, vec!["ten".to_owned(), "narrow".to_owned()]));
    assert_eq!(wait(&denied), MINUTE - 6 * SECOND / 10);
    assert_eq!(denied.violated().count(), 2);
    // After the shorter wait the other denial is still valid.
    advance(4 * SECOND / 10).await;
    let denied = check(&limiter, 1).await;
    assert_eq!((denied.is_cached(), names(&denied)), (true, vec!["ten".to_owned()]));
    assert_eq!(remote.checks(), 3);
    // A different check with the same pair hits the same entry.
    let pairs = vec![Pair::new(user("bob"), ten(), 1), Pair::new(alice(), ten(), 1)];
    assert!(limiter.check(pairs).await.unwrap().is_cached());
}

#[tokio::test(start_paused = true)]
async fn hit_without_later_instant_returns_wait_as_next_after() {
    let (_remote, limiter) = remote();
    assert!(check(&limiter, 1).await.is_admitted());
    advance(MINUTE - SECOND / 10).await;
    assert!(check(&limiter, 9).await.is_admitted());
    assert_eq!(check(&limiter, 9).await.statuses()[0].next_after(), SECOND / 10);
    advance(SECOND / 10 - TICK).await;
    assert_eq!(check(&limiter, 9).await.statuses()[0].next_after(), TICK);
    advance(TICK).await;
    let denied = check(&limiter, 9).await;
    let status = &denied.statuses()[0];
    assert!(denied.is_cached());
    assert_eq!((status.remaining(), status.next_after()), (0, MINUTE - SECOND / 10));
}

#[tokio::test(start_paused = true)]
async fn repeated_denials_refresh_entry_once_per_interval() {
    let (remote, limiter) = exhausted().await;
    for _ in 0..58 * 1_000 {
        assert!(!check(&limiter, 1).await.is_admitted());
        advance(TICK).await;
    }
    let sent = remote.checks() - 2;
    assert_eq!(sent as u128, 58 * SECOND.as_millis() / REFRESH_AGE.as_millis());
}

/// Such as in a `select!` whose other branch runs.
#[tokio::test(start_paused = true)]
async fn check_that_is_not_polled_stops_refreshes_for_a_second() {
    let (remote, limiter) = exhausted().await;
    remote.set_check_latency(TICK, ZERO);
    advance(REFRESH_AGE).await;
    let mut stuck = pin!(limiter.check((alice(), 1)));
    assert!(stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it asks the store");
    let ten_checks_each_tick = async |ticks| {
        for _ in 0..ticks {
            let checks = join_all((0..10).map(|_| check(&limiter, 1))).await;
            assert!(checks.iter().all(|decision| !decision.is_admitted()));
            advance(TICK).await;
        }
    };
    ten_checks_each_tick(1_200).await;
    let before = remote.checks();
    ten_checks_each_tick(4_000).await;
    let sent = remote.checks() - before;
    assert!((4..=6).contains(&sent), "{sent} checks in 4 s");
}

#[tokio::test(start_paused = true)]
async fn shadow_pair_neither_fills_nor_reads_deny_cache() {
    let (remote, limiter) = remote();
    let one = policy("one", 1, MINUTE);
    let pair = |policy: &Policy, cost| Pair::new(alice(), policy.clone(), cost);
    let both = || limiter.check([pair(&ten(), 1), pair(&one, 1).shadow()]);
    for asked in 1..=4 {
        let decision = both().await.unwrap();
        assert!(decision.is_admitted() && decision.shadow_denied().count() == usize::from(asked > 1));
        assert_eq!(remote.checks(), asked);
    }
    // The store knows that an enforcing pair is denied; the cache learns it now, and denies no shadow pair.
    assert!(!limiter.check([pair(&one, 1)]).await.unwrap().is_cached());
    assert!(limiter.check([pair(&one, 1)]).await.unwrap().is_cached());
    assert!(both().await.unwrap().is_admitted());
    assert_eq!(remote.checks(), 6);
    // A cached denial of the enforcing pair leaves out the shadow pair.
    assert!(limiter.check([pair(&ten(), 5)]).await.unwrap().is_admitted());
    assert!(!both().await.unwrap().is_cached());
    let cached = both().await.unwrap();
    assert!(cached.is_cached());
    assert_eq!(cached.statuses().iter().map(|status| status.policy().name()).collect::<Vec<_>>(), ["ten"]);
    assert_eq!(cached.policies().count(), 2);
}
