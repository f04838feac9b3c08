//! Values that the layer leaves for the handler.

use axum::{Extension, Router, body::to_bytes, routing::get};
use tower::ServiceExt;
use tower_sliding_window::{
    Decision, OutageRule, PartitionKey, RateLimitLayer, Reservation, backend::Reason, outage::Unchecked,
    settle::by_hand, testing::FakeBackend,
};

use crate::support::{builders, each, policy, request, verify};

#[tokio::test]
async fn decision_reaches_handler() {
    async fn by_extension(Extension(decision): Extension<Decision>) -> &'static str {
        if decision.is_admitted() { "hello" } else { "denied" }
    }
    async fn by_extractor(decision: Decision) -> &'static str {
        if decision.is_admitted() { "hello" } else { "denied" }
    }
    each(|limits| Router::new().route("/", get(by_extension)).layer(limits)).await;
    each(|limits| Router::new().route("/", get(by_extractor)).layer(limits)).await;
}

#[tokio::test]
async fn reservation_reaches_handler() {
    async fn settle(reservation: Reservation, Extension(same): Extension<Reservation>) -> &'static str {
        drop(reservation.settle(0));
        if same.is_settled() { "hello" } else { "unsettled" }
    }
    for (builder, verdicts) in builders() {
        let limits = builder.settle_by(by_hand).build().unwrap();
        let app: Router = Router::new().route("/", get(settle)).layer(limits.clone());
        let statuses = async || app.clone().oneshot(request()).await.unwrap();
        // The memory counts nothing, because each charge is settled to 0.
        let is_refunded = verdicts == [true, true, false, false];
        for is_admitted in verdicts {
            verify(statuses().await, is_admitted || is_refunded).await;
            limits.limiter().drain().await;
        }
    }
}

#[tokio::test]
async fn mark_of_unchecked_request_reaches_handler() {
    async fn reason(Extension(unchecked): Extension<Unchecked>) -> String {
        format!("{:?}", unchecked.reason())
    }
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Connection))
        .policy(policy("burst", 2))
        .key_by(|_| PartitionKey::new("service", "stacks"))
        .outage(OutageRule::FailOpen)
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", get(reason)).layer(limits);
    let response = app.oneshot(request()).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "Connection");
}
