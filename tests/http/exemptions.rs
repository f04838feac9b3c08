//! Requests that are exempt from the limit.

use axum::{Router, routing::get};
use tower_sliding_window::{
    PartitionKey, RateLimitLayer, key::KeyError, protocol::Draft, testing::FakeBackend,
};

use super::{ALICE, MINUTE, SECOND, api_key, policy, wire::Site};

fn app() -> Router {
    Router::new().route("/", get(async || "hello")).route("/health", get(async || "well"))
}

#[tokio::test]
async fn exempt_request_needs_no_key_and_causes_no_check() {
    // This backend denies every check.
    let backend = FakeBackend::denying(7 * SECOND);
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .exempt(|head| head.uri.path() == "/health")
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for headers in [&[][..], &[ALICE], &[ALICE, ALICE]] {
        let answer = site.get("/health", headers).await;
        assert_eq!((answer.status, &*answer.body), (200, "well"));
        assert!(!answer.has_limit_fields(), "{answer:?}");
    }
    assert_eq!(backend.checks(), []);
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
    assert_eq!(backend.checks().len(), 1);
}

#[tokio::test]
async fn exemption_reads_header_of_request() {
    let limits = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .exempt(|head| head.headers.contains_key("x-internal"))
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    assert_eq!(site.get("/", &[ALICE, ("x-internal", "yes")]).await.status, 200);
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
}

#[tokio::test]
async fn plan_sets_key_cost_and_exemption() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .plan_by(|head| match head.uri.path() {
            "/health" => Ok(Draft::exempt()),
            "/" => Ok(Draft::check(PartitionKey::new("all", "all"), 3)),
            _ => Err(KeyError::missing("")),
        })
        .build()
        .unwrap();
    let site = Site::serve(app().route("/other", get(async || "never")).layer(limits)).await;
    let mut statuses = Vec::new();
    for path in ["/health", "/", "/other"] {
        statuses.push(site.get(path, &[]).await.status);
    }
    assert_eq!(statuses, [200, 200, 400]);
    let pairs: Vec<_> = backend.checks().into_iter().flat_map(|check| check.pairs).collect();
    assert_eq!(pairs.len(), 1);
    assert_eq!((&pairs[0].key, pairs[0].cost), (&PartitionKey::new("all", "all"), 3));
}
