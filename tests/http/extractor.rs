//! `Decision` as an axum extractor.

use axum::{Router, routing::get};
use tower_sliding_window::{Decision, ManualClock, MemoryBackend, RateLimitLayer, from_head};

use super::{ALICE, MINUTE, api_key, policy, wire::Site};

async fn required(decision: Decision) -> String {
    format!("{} left", decision.statuses()[0].remaining())
}

async fn optional(decision: Option<Decision>) -> String {
    match decision {
        Some(decision) => required(decision).await,
        None => "uncounted".to_owned(),
    }
}

fn app() -> Router {
    Router::new()
        .route("/required", get(required))
        .route("/optional", get(optional))
        .route("/free/required", get(required))
        .route("/free/optional", get(optional))
}

async fn site() -> Site {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .exempt(from_head(|head| head.uri.path().starts_with("/free/")))
        .build()
        .unwrap();
    Site::serve(app().layer(limits)).await
}

#[tokio::test]
async fn a_handler_sees_the_decision_on_its_request() {
    let site = site().await;
    for (path, body) in [("/required", "9 left"), ("/optional", "8 left"), ("/required", "7 left")] {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body), (200, body));
    }
}

#[tokio::test]
async fn an_optional_decision_is_none_where_the_request_is_exempt() {
    let answer = site().await.get("/free/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"));
}

#[tokio::test]
async fn a_handler_that_needs_a_decision_and_has_none_answers_500_and_does_not_say_why() {
    let answer = site().await.get("/free/required", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, ""));

    let unlimited = Site::serve(app()).await;
    let answer = unlimited.get("/required", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, ""));
    let answer = unlimited.get("/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"));
}
