//! The response extensions that an outer layer reads, for example for logs and metrics.

use axum::{
    Router,
    body::{Body, to_bytes},
    middleware::{Next, from_fn},
    routing::get,
};
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

async fn send(app: &Router, key: Option<&str>) -> Response<Body> {
    let mut request = Request::get("/");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

fn limits() -> RateLimitLayer {
    RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .build()
        .unwrap()
}

fn app() -> Router {
    Router::new().route("/", get(async || "")).layer(limits())
}

#[tokio::test]
async fn inner_middleware_copies_decision_to_response() {
    async fn copy_decision(request: Request<Body>, next: Next) -> Response<Body> {
        let decision = request.extensions().get::<Decision>().cloned().unwrap();
        let mut response = next.run(request).await;
        response.extensions_mut().insert(decision);
        response
    }
    let response = send(&app(), Some("alice")).await;
    assert!(response.extensions().get::<Decision>().is_none(), "the header fields state it");
    let inner = Router::new().route("/", get(async || "")).layer(from_fn(copy_decision));
    let response = send(&inner.layer(limits()), Some("alice")).await;
    let decision = response.extensions().get::<Decision>().unwrap();
    assert!(decision.is_admitted());
    assert_eq!((decision.statuses()[0].policy().name(), decision.statuses()[0].remaining()), ("two", 1));
    assert!(response.extensions().get::<Rejection>().is_none());
}

#[tokio::test]
async fn omitted_decision_changes_no_field_and_no_rejection() {
    async fn has_decision(request: Request<Body>) -> String {
        format!("{}", request.extensions().get::<Decision>().is_some())
    }
    let layer = |omits: bool| {
        let builder = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()));
        let builder = builder.policy(policy("two", 2, MINUTE)).key(api_key());
        if omits { builder.omit_decision() } else { builder }.build().unwrap()
    };
    let [usual, omitting] =
        [false, true].map(|omits| Router::new().route("/", get(has_decision)).layer(layer(omits)));
    for admitted in [true, true, false] {
        let [usual, omitting] = [send(&usual, Some("alice")).await, send(&omitting, Some("alice")).await];
        assert_eq!((usual.status(), usual.status() == 200), (omitting.status(), admitted));
        let [headers, expected] = [&omitting, &usual].map(|response| {
            let mut headers = response.headers().clone();
            headers.remove("content-length");
            headers
        });
        assert_eq!(headers, expected);
        let has_rejection = |response: &Response<Body>| response.extensions().get::<Rejection>().is_some();
        assert_eq!((has_rejection(&usual), has_rejection(&omitting)), (!admitted, !admitted));
        if admitted {
            let [usual, omitting] = [usual, omitting].map(|response| to_bytes(response.into_body(), 100));
            assert_eq!(
                (&usual.await.unwrap()[..], &omitting.await.unwrap()[..]),
                (&b"true"[..], &b"false"[..])
            );
        }
    }
}

#[tokio::test]
async fn denied_response_holds_rejection_with_decision() {
    let app = app();
    for _ in 0..2 {
        assert_eq!(send(&app, Some("alice")).await.status(), StatusCode::OK);
    }
    let response = send(&app, Some("alice")).await;
    let Some(Rejection::Denied(decision)) = response.extensions().get() else { panic!("{response:?}") };
    assert_eq!(decision.violated().map(|policy| policy.name()).collect::<Vec<_>>(), ["two"]);
    assert!(response.extensions().get::<Decision>().is_none(), "the rejection contains it");
}

#[tokio::test]
async fn custom_rejection_response_holds_reason() {
    let limits = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .rejection(|_, _| Response::new(Body::from("slow down")))
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = send(&app, Some("alice")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "the closure has set no status");
    assert!(matches!(response.extensions().get::<Rejection>(), Some(Rejection::Denied(_))));
}

#[tokio::test]
async fn outage_response_holds_reason_without_decision() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::OutOfMemory))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = send(&app, Some("alice")).await;
    assert!(response.extensions().get::<Decision>().is_none());
    let rejection = response.extensions().get::<Rejection>();
    assert!(
        matches!(rejection, Some(Rejection::Unavailable(error)) if error.reason() == Reason::OutOfMemory),
        "{rejection:?}"
    );
}

#[tokio::test]
async fn missing_key_response_holds_rejection_without_decision() {
    let response = send(&app(), None).await;
    assert!(response.extensions().get::<Decision>().is_none());
    let rejection = response.extensions().get::<Rejection>();
    assert!(matches!(rejection, Some(Rejection::Key(KeyError::Missing { .. }))), "{rejection:?}");
}

#[tokio::test]
async fn response_extensions_hold_server_misconfiguration() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("two", 2, MINUTE))
        .key(peer_ip())
        .build()
        .unwrap();
    let app = Router::new().route("/", get(async || "")).layer(limits);
    let response = send(&app, None).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let rejection = response.extensions().get::<Rejection>();
    assert!(
        matches!(rejection, Some(Rejection::Key(KeyError::Misconfigured { what, .. })) if what.contains("into_make_service_with_connect_info")),
        "{rejection:?}"
    );
}
