//! A denial that is known is true, whether the store answers or not.

use tokio::{
    task::yield_now,
    time::{Instant, advance},
};
use tower_sliding_window::{LimiterBuilder, OutageRule, Rejection, backend::Reason, outage::Breaker};

use super::{DUE, Fault, Remote, SECOND, TICK, age, alice, check, on, user};

const THREE: Breaker = Breaker { failures: 3, open_for: SECOND };

/// Alice has used up everything, and one more was denied.
async fn known(
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
async fn while_the_breaker_is_open_what_is_known_is_denied_and_what_is_not_is_an_outage() {
    let (remote, limiter) =
        known(|builder| builder.breaker(THREE).deny_cache(age(2 * SECOND)).outage(OutageRule::FailOpen))
            .await;
    advance(SECOND).await;
    remote.fail(Fault::Down);
    for _ in 0..3 {
        assert_eq!(reason(&limiter).await, Reason::Connection);
    }
    let asked = remote.asked();
    assert!(!limiter.check(user("bob"), 1).await.unwrap_err().was_asked());
    assert!(check(&limiter, 1).await.is_cached());
    assert!(matches!(limiter.admit(alice(), 1).await, Err(Rejection::Denied(denied)) if denied.is_cached()));
    // Due, and there is no leave to ask.
    advance(2 * DUE - SECOND).await;
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!(remote.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn while_nobody_answers_what_is_known_is_denied_at_once_as_long_as_it_holds() {
    let (remote, limiter) = known(|builder| builder.breaker(None)).await;
    let denied = Instant::now();
    remote.fail(Fault::Hang);
    for _ in 0..800 {
        assert!(check(&limiter, 1).await.is_cached());
        advance(TICK).await;
    }
    assert_eq!((denied.elapsed(), remote.asked()), (800 * TICK, 2));
    advance(DUE - 800 * TICK).await;
    // The one who asks waits as long as anybody would.
    assert!(check(&limiter, 1).await.is_cached());
    assert_eq!((denied.elapsed(), remote.asked()), (DUE + 100 * TICK, 3));
    // The next one asks too long.
    assert_eq!(limiter.check(alice(), 1).await.unwrap_err().reason(), Reason::Timeout);
    assert_eq!(denied.elapsed(), DUE + 200 * TICK);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_no_answer_of_the_store_and_no_failure() {
    let (remote, limiter) = known(|builder| builder.breaker(THREE)).await;
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
async fn what_is_known_takes_no_place_and_is_not_shed() {
    let (remote, limiter) = known(|builder| builder.max_in_flight(1).breaker(None)).await;
    remote.fail(Fault::Hang);
    let waiting = tokio::spawn(limiter.check(user("bob"), 1));
    yield_now().await;
    assert_eq!(reason(&limiter).await, Reason::Overloaded);
    assert!(check(&limiter, 1).await.is_cached());
    advance(DUE).await;
    waiting.abort();
    let waiting = tokio::spawn(limiter.check(user("bob"), 1));
    yield_now().await;
    // It should ask, and must not.
    assert!(check(&limiter, 1).await.is_cached());
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_not_remembered() {
    let (remote, limiter) = known(|builder| builder.breaker(None)).await;
    remote.fail(Fault::Down);
    assert_eq!(reason(&limiter).await, Reason::Connection);
    remote.fail(None);
    assert!(limiter.check(user("bob"), 1).await.unwrap().is_admitted());
}
