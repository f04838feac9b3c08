//! The HTTP responses of the layer: statuses, header fields and bodies.

use std::time::Duration;

use axum::{Router, http::StatusCode, routing::get};
use serde_json::json;
use tower_sliding_window::{
    Decision, MemoryBackend, RateLimitLayer, RouteCosts, Wait,
    backend::Reason,
    cost,
    testing::{
        FakeAnswer::{Admit, Deny},
        FakeBackend, ManualClock,
    },
};

use super::{ALICE, BOB, Later, MINUTE, SECOND, api_key, policy, wire::Site};

/// Serves an app with limits of two requests per second and five per minute, on a stopped clock.
async fn site() -> Site {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("burst", 2, SECOND))
        .policy(policy("sustained", 5, MINUTE))
        .key(api_key())
        // A constant cost above the quota would be an error.
        .cost(RouteCosts::new().route("/three", cost::from_fn(|_| 3)).unwrap())
        .build()
        .unwrap();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route("/three", get(async || "never"))
        .route("/broken", get(async || (StatusCode::INTERNAL_SERVER_ERROR, "broken")))
        .layer(limits);
    Site::serve(app).await
}

#[tokio::test]
async fn admitted_response_lists_policies_and_remaining_units() {
    let answer = site().await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "hello"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""burst";q=2;w=1, "sustained";q=5;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""burst";r=1;t=1, "sustained";r=4;t=60"#));
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn error_response_of_handler_lists_remaining_units() {
    let answer = site().await.get("/broken", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, "broken"));
    assert_eq!(answer.header("ratelimit"), Some(r#""burst";r=1;t=1, "sustained";r=4;t=60"#));
}

#[tokio::test]
async fn denied_response_names_violated_policy_and_wait() {
    let site = site().await;
    for _ in 0..2 {
        assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    }
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""burst";q=2;w=1, "sustained";q=5;w=60"#));
    // The denial charged nothing to the other policy.
    assert_eq!(answer.header("ratelimit"), Some(r#""burst";r=0;t=1, "sustained";r=3;t=60"#));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(
        answer.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too many requests",
            "status": 429,
            "detail": "Try again in 1 s.",
            "violated-policies": ["burst"],
        })
    );
    assert_eq!(site.get("/", &[BOB]).await.status, 200, "another key has its own quota");
}

#[tokio::test]
async fn cost_above_quota_omits_retry_after() {
    let answer = site().await.get("/three", &[ALICE]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("ratelimit"), Some(r#""burst";r=2;t=1, "sustained";r=5;t=60"#));
    let body = answer.json();
    assert_eq!(body["detail"], "This request costs more than the whole quota.");
    assert_eq!(body["violated-policies"], json!(["burst"]));
}

#[tokio::test]
async fn outage_response_omits_limit_fields() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Connection))
        .policy(policy("burst", 2, SECOND))
        .key(api_key())
        .build()
        .unwrap();
    let site = Site::serve(Router::new().route("/", get(async || "never")).layer(limits)).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!(answer.status, 503);
    assert!(!answer.has_limit_fields(), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(
        answer.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Service unavailable",
            "status": 503,
            "detail": "The rate limit of the request could not be checked.",
        })
    );
}

#[tokio::test]
async fn delayed_backend_produces_same_responses() {
    let wait = Wait::For(Duration::from_micros(6_000_001));
    let limits = RateLimitLayer::builder(Later(FakeBackend::scripted([Admit, Deny(wait)])))
        .policy(policy("burst", 10, SECOND))
        .key(api_key())
        .build()
        .unwrap();
    let hello = async |decision: Decision| format!("hello, {} left", decision.statuses()[0].remaining());
    let site = Site::serve(Router::new().route("/", get(hello)).layer(limits)).await;

    let admitted = site.get("/", &[ALICE]).await;
    assert_eq!((admitted.status, &*admitted.body), (200, "hello, 9 left"));
    assert_eq!(admitted.header("ratelimit-policy"), Some(r#""burst";q=10;w=1"#));
    assert_eq!(admitted.header("ratelimit"), Some(r#""burst";r=9;t=1"#));
    assert_eq!(admitted.header("retry-after"), None);

    let denied = site.get("/", &[ALICE]).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""burst";q=10;w=1"#));
    assert_eq!(denied.header("ratelimit"), Some(r#""burst";r=0;t=7"#));
    assert_eq!(denied.header("retry-after"), Some("7"));
    assert_eq!(denied.json()["detail"], "Try again in 7 s.");
}
