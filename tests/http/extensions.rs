//! What an outer layer (logs, metrics) finds in the extensions of a response, whoever made its body.

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use tower::ServiceExt;
use tower_sliding_window::{
    Decision, MemoryBackend, RateLimitLayer, Rejection,
    backend::Reason,
    key::KeyError,
    peer_ip,
    testing::{FakeBackend, ManualClock},
};

use super::{MINUTE, SECOND, api_key, policy};

async fn ask(app: &Router, key: Option<&str>) -> Response<Body> {
    let mut request = Request::get("/");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

fn app() -> Router {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    Router::new().route("/", get(async || "")).layer(limits)
}

#[tokio::test]
async fn an_admitted_answer_has_the_decision_and_no_refusal() {
    let response = ask(&app(), Some("alice")).await;
    let decision = response.extensions().get::<Decision>().unwrap();
    assert!(decision.is_admitted());
    assert_eq!((decision.statuses()[0].policy().name(), decision.statuses()[0].remaining()), ("two", 1));
    assert!(response.extensions().get::<Rejection>().is_none());
}

#[tokio::test]
async fn a_denial_has_the_decision_and_the_refusal_that_holds_it() {
    let app = app();
    for _ in 0..2 {
        assert_eq!(ask(&app, Some("alice")).await.status(), StatusCode::OK);
    }
    let response = ask(&app, Some("alice")).await;
    let decision = response.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.violated().map(|policy| policy.name()).collect::<Vec<_>>(), ["two"]);
    let refusal = response.extensions().get::<Rejection>().unwrap();
    assert!(matches!(refusal, Rejection::Denied(held) if held == decision), "{refusal:?}");
}

#[tokio::test]
async fn a_custom_rejection_has_them_too() {
    let limits = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .rejection(|_, _| Response::new(Body::from("slow down")))
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = ask(&app, Some("alice")).await;
    assert_eq!(response.status(), StatusCode::OK, "what the closure said stands");
    assert!(!response.extensions().get::<Decision>().unwrap().is_admitted());
    assert!(matches!(response.extensions().get::<Rejection>(), Some(Rejection::Denied(_))));
}

#[tokio::test]
async fn an_outage_has_its_reason_and_no_decision() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::OutOfMemory))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = ask(&app, Some("alice")).await;
    assert!(response.extensions().get::<Decision>().is_none());
    let refusal = response.extensions().get::<Rejection>();
    assert!(
        matches!(refusal, Some(Rejection::Unavailable(error)) if error.reason() == Reason::OutOfMemory),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn a_request_without_a_key_has_why_and_no_decision() {
    let response = ask(&app(), None).await;
    assert!(response.extensions().get::<Decision>().is_none());
    let refusal = response.extensions().get::<Rejection>();
    assert!(matches!(refusal, Some(Rejection::Key(KeyError::Missing))), "{refusal:?}");
}

#[tokio::test]
async fn what_is_wrong_with_the_server_is_here_though_the_client_does_not_read_it() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("two", 2, MINUTE))
        .key(peer_ip())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = ask(&app, None).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let refusal = response.extensions().get::<Rejection>();
    assert!(
        matches!(refusal, Some(Rejection::Key(KeyError::Misconfigured { what })) if what.contains("into_make_service_with_connect_info")),
        "{refusal:?}"
    );
}
