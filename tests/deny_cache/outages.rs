//! Hits and misses during an outage of the store.

use tokio::{
    task::yield_now,
    time::{Instant, advance},
};
use tower_sliding_window::{LimiterBuilder, OutageRule, Rejection, backend::Reason, outage::Breaker};

use super::{Fault, REFRESH_AGE, Remote, SECOND, TICK, alice, check, on, user, with_max_age};

const THREE_FAILURES: Breaker = Breaker { failures: 3, open_for: SECOND };

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
    limiter.check(user("bob"), 1).await.unwrap_err().reason()
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
    assert!(!limiter.check(user("bob"), 1).await.unwrap_err().was_asked());
    assert!(check(&limiter, 1).await.is_cached());
    assert!(matches!(limiter.admit(alice(), 1).await, Err(Rejection::Denied(denied)) if denied.is_cached()));
    // The entry is due, but the open breaker rejects the refresh.
    advance(2 * REFRESH_AGE - SECOND).await;
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(remote.checks(), sent);
}

#[tokio::test(start_paused = true)]
async fn hanging_store_keeps_cache_hits_until_max_age() {
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
    // The next check exceeds the maximum age of the entry, so it misses and times out.
    assert_eq!(limiter.check(alice(), 1).await.unwrap_err().reason(), Reason::Timeout);
    assert_eq!(denied.elapsed(), REFRESH_AGE + 200 * TICK);
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
    assert!(limiter.check(user("bob"), 1).await.unwrap_err().was_asked());
    assert!(!limiter.check(user("bob"), 1).await.unwrap_err().was_asked());
}

#[tokio::test(start_paused = true)]
async fn cache_hit_ignores_max_in_flight() {
    let (remote, limiter) = cached(|builder| builder.max_in_flight(1).breaker(None)).await;
    remote.fail(Fault::Hang);
    let waiting = tokio::spawn(limiter.check(user("bob"), 1));
    yield_now().await;
    assert_eq!(reason(&limiter).await, Reason::Overloaded);
    assert!(check(&limiter, 1).await.is_cached());
    advance(REFRESH_AGE).await;
    waiting.abort();
    let waiting = tokio::spawn(limiter.check(user("bob"), 1));
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
    assert!(limiter.check(user("bob"), 1).await.unwrap().is_admitted());
}
