//! Reservations that were admitted although the store could not decide.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{Builder, MemoryBackend, OutageRule, RateLimitLayer, Reservation, header, backend::Reason, settle::{Settled, by_hand}, testing::FakeBackend, testing::FakeAnswer::{Admit, Unavailable}};

use super::{local, policy};
use crate::http::Later;

const DOWN: FakeBackendAnswer = Unavailable(Reason::Connection);
type FakeBackendAnswer = tower_sliding_window::testing::FakeAnswer;

fn builder(backend: &FakeBackend, rule: OutageRule) -> Builder {
    RateLimitLayer::builder(Later(backend.clone())).policy(policy("ten", 10)).outage(rule)
}

fn request() -> Request<()> {
    Request::get("/").header("x-api-key", "alice").body(()).unwrap()
}

/// Leaves the reservation of its request in its response.
async fn keep(mut request: Request<()>) -> Result<Response<Bytes>, Infallible> {
    let reservation =
        request.extensions_mut().remove::<Reservation>().expect("every counted request has one");
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(reservation);
    Ok(response)
}

#[tokio::test]
async fn an_unchecked_one_has_nothing_to_settle_and_no_decision() {
    let backend = FakeBackend::scripted([DOWN, Admit]);
    let limits = builder(&backend, OutageRule::FailOpen)
        .key(header("x-api-key").unwrap())
        .settle_by(by_hand)
        .build()
        .unwrap();
    let mut service = limits.layer(service_fn(keep));
    let mut reservations = Vec::new();
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(request()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        reservations.push(response.extensions().get::<Reservation>().unwrap().clone());
    }
    let [unchecked, checked] = reservations.try_into().unwrap();
    assert!(unchecked.decision().is_none());
    assert!(checked.decision().is_some_and(|it| it.receipts().len() == 1));
    assert!(matches!(unchecked.settle(0).await, Settled::Uncharged));
    assert!(matches!(unchecked.settle(100).await, Settled::Already));
    assert_eq!((backend.refunds().len(), backend.checks().len()), (0, 2));
    assert!(matches!(checked.settle(0).await, Settled::Done));
    assert_eq!((backend.refunds().len(), limits.limiter().lost_settlements()), (1, 0));
}

#[tokio::test]
async fn a_local_one_is_settled_in_the_local_memory_and_never_in_the_store() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limits = builder(&backend, local(2)).key(header("x-api-key").unwrap()).cost(5).settle_by(by_hand);
    let limits = limits.build().unwrap();
    let mut service = limits.layer(service_fn(keep));
    let mut ask = async || service.ready().await.unwrap().call(request()).await.unwrap();
    let first = ask().await.extensions().get::<Reservation>().unwrap().clone();
    assert!(first.decision().is_none());
    // The share is used up, until it is given back.
    assert_eq!(ask().await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(first.settle(0).await, Settled::Done));
    let second = ask().await.extensions().get::<Reservation>().unwrap().clone();
    // More than it was is charged, past the share.
    assert!(matches!(second.settle(8).await, Settled::Done));
    assert_eq!(ask().await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(backend.refunds().len(), 0);
    assert!(backend.checks().iter().all(|check| check.purpose == tower_sliding_window::backend::Purpose::Reserve));
    assert_eq!(limits.limiter().lost_settlements(), 0);
}

#[tokio::test]
async fn a_layer_that_settles_by_the_response_settles_where_the_charge_is() {
    for (rule, costs) in [(OutageRule::FailOpen, 1), (local(1), 10)] {
        let backend = FakeBackend::unavailable(Reason::Timeout);
        let limits = builder(&backend, rule)
            .local_memory(MemoryBackend::new())
            .key(header("x-api-key").unwrap())
            .cost(costs)
            .settle_by(|_| Some(0))
            .build()
            .unwrap();
        let mut service = limits.layer(service_fn(keep));
        for _ in 0..3 {
            let response = service.ready().await.unwrap().call(request()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{rule:?}");
            assert!(response.extensions().get::<Reservation>().unwrap().is_settled());
        }
        assert_eq!((backend.refunds().len(), limits.limiter().lost_settlements()), (0, 0));
    }
}
