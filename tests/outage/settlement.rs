//! Settlement of reservations that an outage rule admitted.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    MemoryBackend, OutageRule, RateLimitLayer, RateLimitLayerBuilder, Reservation,
    backend::Reason,
    header,
    settle::{Settled, Unsettled, by_hand},
    testing::FakeAnswer::{Admit, Unavailable},
    testing::FakeBackend,
};

use super::{local, policy};
use crate::http::Later;

const DOWN: FakeBackendAnswer = Unavailable(Reason::Connection);
type FakeBackendAnswer = tower_sliding_window::testing::FakeAnswer;

fn builder(backend: &FakeBackend, rule: OutageRule) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(Later(backend.clone())).policy(policy("ten", 10)).outage(rule)
}

fn request() -> Request<()> {
    Request::get("/").header("x-api-key", "alice").body(()).unwrap()
}

/// An inner service that moves the reservation of its request into its response.
async fn keep(mut request: Request<()>) -> Result<Response<Bytes>, Infallible> {
    let reservation =
        request.extensions_mut().remove::<Reservation>().expect("every counted request has one");
    let mut response = Response::new(Bytes::new());
    response.extensions_mut().insert(reservation);
    Ok(response)
}

#[tokio::test]
async fn unchecked_reservation_settles_nothing() {
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
        assert_eq!(response.status(), StatusCode::OK, "the outage and the store admit");
        reservations.push(response.extensions().get::<Reservation>().unwrap().clone());
    }
    let [unchecked, checked] = reservations.try_into().unwrap();
    assert!(unchecked.decision().is_none(), "fail open makes no decision");
    assert!(
        checked.decision().is_some_and(|it| it.receipts().len() == 1),
        "the store has charged the second request"
    );
    assert!(matches!(unchecked.settle(0).await, Settled::Uncharged), "an unchecked request is not charged");
    assert!(matches!(unchecked.settle(100).await, Settled::Already), "a reservation is settled once");
    assert_eq!(
        (backend.refunds().len(), backend.checks().len()),
        (0, 2),
        "the store gets no settlement of an unchecked request"
    );
    assert!(matches!(checked.settle(0).await, Settled::Done { .. }), "a charge of the store is settled");
    assert_eq!(
        (backend.refunds().len(), limits.limiter().lost_settlements()),
        (1, 0),
        "the store gets one refund"
    );
}

#[tokio::test]
async fn local_reservation_settles_in_local_memory_only() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limits = builder(&backend, local(2)).key(header("x-api-key").unwrap()).cost(5).settle_by(by_hand);
    let limits = limits.build().unwrap();
    let mut service = limits.layer(service_fn(keep));
    let mut send = async || service.ready().await.unwrap().call(request()).await.unwrap();
    let first = send().await.extensions().get::<Reservation>().unwrap().clone();
    assert!(first.decision().is_none(), "the store has not decided");
    // The share is exhausted until the refund.
    assert_eq!(send().await.status(), StatusCode::SERVICE_UNAVAILABLE, "the share is used");
    assert!(matches!(first.settle(0).await, Settled::Done { .. }), "the local memory is refunded");
    let second = send().await.extensions().get::<Reservation>().unwrap().clone();
    // The overage is charged beyond the share.
    assert!(
        matches!(second.settle(8).await, Settled::Done { .. }),
        "the local memory is charged the overage"
    );
    assert_eq!(send().await.status(), StatusCode::SERVICE_UNAVAILABLE, "the overage exceeds the share");
    assert_eq!(backend.refunds().len(), 0, "the store gets no settlement of a local charge");
    assert!(
        backend.checks().iter().all(|check| check.purpose == tower_sliding_window::backend::Purpose::Reserve),
        "the store gets no overage of a local charge"
    );
    assert_eq!(limits.limiter().lost_settlements(), 0, "every settlement takes effect");
}

#[tokio::test]
async fn local_fallback_clamps_estimate_to_share() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    for (clamps, status) in [(false, StatusCode::SERVICE_UNAVAILABLE), (true, StatusCode::OK)] {
        let limits =
            builder(&backend, local(2)).key(header("x-api-key").unwrap()).cost(10).settle_by(by_hand);
        let limits = if clamps { limits.clamp_estimates() } else { limits };
        let mut service = limits.build().unwrap().layer(service_fn(keep));
        let mut send = async || service.ready().await.unwrap().call(request()).await.unwrap();
        let response = send().await;
        assert_eq!(response.status(), status, "an estimate above the share fits only if it is clamped");
        if let Some(reservation) = response.extensions().get::<Reservation>() {
            assert_eq!(send().await.status(), StatusCode::SERVICE_UNAVAILABLE, "the share is used");
            assert!(
                matches!(reservation.settle(0).await, Settled::Done { .. }),
                "the local memory is refunded"
            );
            assert_eq!(send().await.status(), StatusCode::OK, "the share is free again");
        }
    }
}

#[tokio::test]
async fn dropped_local_reservation_is_refunded_in_local_memory() {
    for (rule, statuses) in [(Unsettled::Keep, [200, 503]), (Unsettled::Refund, [200, 200])] {
        let backend = FakeBackend::unavailable(Reason::Connection);
        let limits = builder(&backend, local(2)).key(header("x-api-key").unwrap()).cost(5);
        let limits = limits.settle_by(by_hand).unsettled(rule).build().unwrap();
        let mut service = limits.layer(service_fn(keep));
        for status in statuses {
            // The response holds the reservation.
            let response = service.ready().await.unwrap().call(request()).await.unwrap();
            assert_eq!(response.status(), status, "{rule:?}");
        }
        assert_eq!(backend.refunds().len(), 0, "{rule:?}: the store gets no settlement of a local charge");
    }
}

#[tokio::test]
async fn layer_settles_response_where_charge_was_made() {
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
            assert!(
                response.extensions().get::<Reservation>().unwrap().is_settled(),
                "{rule:?}: the layer settles the response"
            );
        }
        assert_eq!(
            (backend.refunds().len(), limits.limiter().lost_settlements()),
            (0, 0),
            "{rule:?}: the store gets no settlement"
        );
    }
}
