//! `Retry-After`: the field names the shortest sufficient wait.

use std::time::Duration;

use axum::{Router, routing::get};
use tower_sliding_window::{MemoryBackend, RateLimitLayer, RouteCosts, Wait, testing::ManualClock};

use super::{ALICE, MINUTE, SECOND, api_key, policy, wire::Site};

#[tokio::test]
async fn client_is_admitted_exactly_after_retry_after() {
    for (window, retry_after) in [
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
        assert_eq!(denied.header("retry-after"), Some(&*retry_after.to_string()), "{window:?}");

        clock.advance(Duration::from_secs(retry_after - 1));
        assert_eq!(site.get("/", &[ALICE]).await.status, 429, "{window:?}");
        clock.advance(SECOND);
        assert_eq!(site.get("/", &[ALICE]).await.status, 200, "{window:?}");
    }
}

#[tokio::test]
async fn wait_lasts_until_enough_units_expire() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .cost(RouteCosts::new().route("/five", 5).unwrap().route("/seven", 7).unwrap())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).route("/{cost}", get(async || ""));
    let site = Site::serve(app.layer(limits)).await;

    // The client uses 1 unit at 0 s and 5 units at 10 s. A cost of 7 waits until the second charge expires.
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    clock.advance(10 * SECOND);
    assert_eq!(site.get("/five", &[ALICE]).await.status, 200);
    let denied = site.get("/seven", &[ALICE]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("60")));
    // The first charge expires earlier, and `t` reports that time.
    assert_eq!(denied.header("ratelimit"), Some(r#""ten";r=4;t=50"#));
    assert_eq!(site.get("/", &[ALICE]).await.status, 200, "a smaller cost still fits");

    clock.advance(59 * SECOND);
    assert_eq!(site.get("/seven", &[ALICE]).await.status, 429);
    clock.advance(SECOND);
    // The charge of the smaller request expires at the same instant.
    assert_eq!(site.get("/seven", &[ALICE]).await.status, 200);
}

#[tokio::test]
async fn retry_after_is_longest_wait_of_all_policies() {
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
async fn decision_reports_wait_in_microseconds() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("one", 1, SECOND))
        .key(api_key())
        .build()
        .unwrap();
    let limiter = limits.limiter();
    let alice = tower_sliding_window::PartitionKey::new("user", "alice");
    assert!(limiter.check(alice.clone()).await.unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    let wait = Duration::from_micros(999_999);
    assert_eq!(limiter.check(alice.clone()).await.unwrap().retry_after(), Wait::For(wait));
    clock.advance(wait - Duration::from_micros(1));
    assert!(!limiter.check(alice.clone()).await.unwrap().is_admitted());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check(alice).await.unwrap().is_admitted());
}
