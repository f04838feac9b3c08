//! `Decision` and `Reservation` as axum extractors.

use std::convert::Infallible;

use axum::{
    Router,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::IntoResponse,
    routing::get,
};
use http::{Request, StatusCode};
use tower_sliding_window::{
    Decision, MemoryBackend, OutageRule, RateLimitLayer, Reservation,
    answer::{NoDecision, NoReservation},
    backend::{Backend, Reason},
    settle::by_hand,
    testing::{FakeBackend, ManualClock},
};

use super::{ALICE, MINUTE, api_key, policy, wire::Site};

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

#[tokio::test]
async fn missing_decision_causes_empty_server_error() {
    let answer = site().await.get("/free/required", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, ""));

    let unlimited = Site::serve(app()).await;
    let answer = unlimited.get("/required", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, ""));
    let answer = unlimited.get("/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"));
}

#[tokio::test]
async fn handler_has_no_decision_after_fail_open() {
    let app = app().layer(failing_open(FakeBackend::unavailable(Reason::Connection)));
    let site = Site::serve(app).await;
    let answer = site.get("/optional", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "uncounted"));
    let answer = site.get("/required", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (500, ""));
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
    for (path, status, body) in [
        ("/required", 200, "reserved"),
        ("/optional", 200, "reserved"),
        ("/free/optional", 200, "none"),
        ("/free/required", 500, ""),
    ] {
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
    assert_eq!(no_decision.into_response().status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(no_reservation.into_response().status(), StatusCode::INTERNAL_SERVER_ERROR);
    let errors: [&dyn std::error::Error; 2] = [&no_decision, &no_reservation];
    assert!(errors.iter().all(|error| !error.to_string().is_empty()));
    let decision: Result<Option<Decision>, Infallible> =
        <Decision as OptionalFromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert!(matches!(decision, Ok(None)));
    let reservation: Result<Option<Reservation>, Infallible> =
        <Reservation as OptionalFromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert!(matches!(reservation, Ok(None)));
}
