//! `Retry-After` keeps its word.

use std::time::Duration;

use axum::{Router, routing::get};
use tower_sliding_window::{MemoryBackend, RateLimitLayer, RouteCosts, Wait, testing::ManualClock};

use super::{ALICE, MINUTE, SECOND, api_key, policy, wire::Site};

#[tokio::test]
async fn a_client_that_waits_exactly_retry_after_is_admitted_and_one_second_less_is_too_early() {
    for (window, told) in [
        (Duration::from_millis(1), 1),
        (SECOND - Duration::from_micros(1), 1),
        (SECOND, 1),
        (SECOND + Duration::from_micros(1), 2),
        (Duration::from_millis(2_500), 3),
        (MINUTE, 60),
    ] {
        let clock = ManualClock::new();
        let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
            .policy(policy("one", 1, window))
            .key(api_key())
            .build()
            .unwrap();
        let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;

        assert_eq!(site.get("/", &[ALICE]).await.status, 200);
        let denied = site.get("/", &[ALICE]).await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("retry-after"), Some(&*told.to_string()), "{window:?}");

        clock.advance(Duration::from_secs(told - 1));
        assert_eq!(site.get("/", &[ALICE]).await.status, 429, "{window:?}");
        clock.advance(SECOND);
        assert_eq!(site.get("/", &[ALICE]).await.status, 200, "{window:?}");
    }
}

#[tokio::test]
async fn the_wait_is_until_enough_has_left_and_not_until_something_has() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .cost(RouteCosts::new().route("/five", 5).unwrap().route("/seven", 7).unwrap())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).route("/{cost}", get(async || ""));
    let site = Site::serve(app.layer(limits)).await;

    // 1 unit at 0 s, 5 at 10 s; a cost of 7 needs 3 of them to leave, so it has to wait for the second charge.
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    clock.advance(10 * SECOND);
    assert_eq!(site.get("/five", &[ALICE]).await.status, 200);
    let denied = site.get("/seven", &[ALICE]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("60")));
    // Something leaves sooner, and `t` says when.
    assert_eq!(denied.header("ratelimit"), Some(r#""ten";r=4;t=50"#));
    assert_eq!(site.get("/", &[ALICE]).await.status, 200, "a smaller cost still fits");

    clock.advance(59 * SECOND);
    assert_eq!(site.get("/seven", &[ALICE]).await.status, 429);
    clock.advance(SECOND);
    // The unit of the smaller request has left too, at this very instant.
    assert_eq!(site.get("/seven", &[ALICE]).await.status, 200);
}

#[tokio::test]
async fn the_wait_is_the_longest_of_all_policies() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("short", 1, SECOND))
        .policy(policy("long", 1, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("60")));
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["short", "long"]));
    clock.advance(SECOND);
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("59")));
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["long"]));
}

#[tokio::test]
async fn a_decision_tells_the_wait_to_the_microsecond() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("one", 1, SECOND))
        .key(api_key())
        .build()
        .unwrap();
    let limiter = limits.limiter();
    let alice = tower_sliding_window::PartitionKey::new("user", "alice");
    assert!(limiter.check(alice.clone(), 1).await.unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    let wait = Duration::from_micros(999_999);
    assert_eq!(limiter.check(alice.clone(), 1).await.unwrap().retry_after(), Wait::For(wait));
    clock.advance(wait - Duration::from_micros(1));
    assert!(!limiter.check(alice.clone(), 1).await.unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check(alice, 1).await.unwrap().is_admitted());
}
