//! `Decision` and `Reservation` as axum extractors.

use std::convert::Infallible;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{FromRequestParts, OptionalFromRequestParts},
    routing::get,
};
use http::Request;
use tower::ServiceExt;
use tower_sliding_window::{
    Decision, MemoryBackend, OutageRule, RateLimitLayer, RedisBackend, Reservation,
    answer::{NoDecision, NoReservation},
    backend::{Backend, Reason},
    outage::Share,
    settle::by_hand,
    testing::{FakeBackend, ManualClock},
};

use super::{ALICE, MINUTE, api_key, policy, wire::Site};
use crate::support::events::Events;

/// Builds a layer that fails open.
fn failing_open(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE));
    builder.outage(OutageRule::FailOpen).key(api_key()).build().unwrap()
}

/// Builds a layer that settles by hand, with an exempt path.
fn settling(backend: impl Backend) -> RateLimitLayer {
    RateLimitLayer::builder(backend)
        .policy(policy("ten", 10, MINUTE))
        .outage(OutageRule::FailOpen)
        .key(api_key())
        .exempt(|head| head.uri.path().starts_with("/free/"))
        .settle_by(by_hand)
        .build()
        .unwrap()
}

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
        .exempt(|head| head.uri.path().starts_with("/free/"))
        .build()
        .unwrap();
    Site::serve(app().layer(limits)).await
}

#[tokio::test]
async fn handler_extracts_decision_of_its_request() {
    let site = site().await;
    for (path, body) in [("/required", "9 left"), ("/optional", "8 left"), ("/required", "7 left")] {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body), (200, body));
    }
}

#[tokio::test]
async fn exempt_request_yields_no_optional_decision() {
    let answer = site().await.get("/free/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"));
}

/// The body of the response to a handler that needs what its request does not have.
const SERVER_ERROR: &str = r#"{"title":"Internal Server Error","status":500}"#;

/// Sends a request to a handler that takes a `Decision`, which the request does not have. Returns all events.
async fn fail(app: Router, path: &str) -> Vec<String> {
    let (events, _guard) = Events::collect();
    for _ in 0..3 {
        let request = Request::get(path).header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let content_type = response.headers()["content-type"].clone();
        assert_eq!(
            (response.status().as_u16(), content_type.as_bytes()),
            (500, &b"application/problem+json"[..])
        );
        let body = to_bytes(response.into_body(), 1_000).await.unwrap();
        assert_eq!(body, SERVER_ERROR, "the body does not state the cause");
    }
    events.take().into_iter().filter(|event| event.contains("a handler needs")).collect()
}

fn assert_one_warning(events: &[String], cause: &str, name: &str) {
    assert_eq!(events.len(), 1, "{name}: one warning for three requests: {events:?}");
    assert!(events[0].starts_with("WARN ") && events[0].contains(cause), "{name}: {events:?}");
}

// In this process, only this test causes these warnings: they are logged once per minute.
#[tokio::test]
async fn missing_decision_causes_server_error_and_warning() {
    let exempting = RateLimitLayer::builder(MemoryBackend::new())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .exempt(|head| head.uri.path().starts_with("/free/"))
        .build()
        .unwrap();
    let events = fail(app().layer(exempting), "/free/required").await;
    assert_one_warning(&events, "it is exempt, its route is outside of the layer", "exempt");
    assert_eq!(
        fail(app(), "/required").await,
        [""; 0],
        "outside of the layer: the cause of this minute's warning"
    );

    let unavailable = || FakeBackend::unavailable(Reason::Connection);
    let events = fail(app().layer(failing_open(unavailable())), "/required").await;
    assert_one_warning(
        &events,
        "the outage rule has admitted it unchecked; take an `Option<Decision>`",
        "fail open",
    );
    assert!(events[0].contains(&Reason::Connection.to_string()), "the reason of the outage: {events:?}");

    let local = RateLimitLayer::builder(unavailable())
        .policy(policy("ten", 10, MINUTE))
        .outage(OutageRule::LocalFallback(Share::whole()))
        .key(api_key())
        .build()
        .unwrap();
    let events = fail(app().layer(local), "/required").await;
    assert_one_warning(
        &events,
        "the local fallback has admitted it; take an `Option<Decision>`",
        "local fallback",
    );

    let events = fail(reserving_app().layer(settling(FakeBackend::admitting())), "/free/required").await;
    assert_one_warning(&events, "take an `Option<Reservation>`", "reservation");
    // A layer that does not settle creates no reservation. The cause has been logged in this minute.
    let events = fail(reserving_app().layer(failing_open(FakeBackend::admitting())), "/required").await;
    assert_eq!(events, [""; 0], "no second warning about reservations");
}

#[tokio::test]
async fn optional_decision_is_missing_outside_layer() {
    let answer = Site::serve(app()).await.get("/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"), "no layer decides the request");
}

/// The documented handler takes an `Option<Decision>`.
#[tokio::test]
async fn documented_handler_answers_in_outage_of_redis() {
    // No server listens at this address.
    let redis = RedisBackend::lazy("redis://127.0.0.1:1/").unwrap();
    let site = Site::serve(app().layer(failing_open(redis))).await;
    for _ in 0..3 {
        let answer = site.get("/optional", &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body), (200, "uncounted"), "the layer fails open");
    }
}

async fn reserved(reservation: Reservation) -> &'static str {
    if reservation.decision().is_some() { "reserved" } else { "unchecked" }
}

async fn maybe_reserved(reservation: Option<Reservation>) -> &'static str {
    match reservation {
        Some(reservation) => reserved(reservation).await,
        None => "none",
    }
}

fn reserving_app() -> Router {
    Router::new()
        .route("/required", get(reserved))
        .route("/optional", get(maybe_reserved))
        .route("/free/required", get(reserved))
        .route("/free/optional", get(maybe_reserved))
}

#[tokio::test]
async fn handler_takes_reservation_of_counted_request() {
    let site = Site::serve(reserving_app().layer(settling(FakeBackend::admitting()))).await;
    for (path, status, body) in
        [("/required", 200, "reserved"), ("/optional", 200, "reserved"), ("/free/optional", 200, "none")]
    {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body), (status, body), "{path}");
    }
}

#[tokio::test]
async fn handler_takes_reservation_after_fail_open() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let site = Site::serve(reserving_app().layer(settling(backend))).await;
    for path in ["/required", "/optional"] {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body), (200, "unchecked"), "{path}");
    }
}

#[tokio::test]
async fn extractors_return_their_own_rejection_types() {
    let (mut parts, ()) = Request::new(()).into_parts();
    let no_decision: NoDecision =
        <Decision as FromRequestParts<()>>::from_request_parts(&mut parts, &()).await.unwrap_err();
    let no_reservation: NoReservation =
        <Reservation as FromRequestParts<()>>::from_request_parts(&mut parts, &()).await.unwrap_err();
    let errors: [&dyn std::error::Error; 2] = [&no_decision, &no_reservation];
    assert!(errors.iter().all(|error| !error.to_string().is_empty()));
    let decision: Result<Option<Decision>, Infallible> =
        <Decision as OptionalFromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert!(matches!(decision, Ok(None)));
    let reservation: Result<Option<Reservation>, Infallible> =
        <Reservation as OptionalFromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert!(matches!(reservation, Ok(None)));
}
