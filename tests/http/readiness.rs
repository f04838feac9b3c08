//! The readiness of the inner service, which may be a permit.
//!
//! The layer uses the permit for the request that acquired it. If it rejects that request, it returns the permit.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tokio::{sync::Notify, task::yield_now};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_sliding_window::{
    MemoryBackend, RateLimit, RateLimitLayer,
    backend::Backend,
    testing::{FakeBackend, ManualClock},
};

use super::{
    Later, MINUTE, api_key, policy,
    probe::{Probe, is_ready, request_of},
};

type Limited<S> = RateLimit<ConcurrencyLimit<S>>;

fn limits(backend: impl Backend) -> RateLimitLayer {
    RateLimitLayer::builder(backend).policy(policy("two", 2, MINUTE)).key(api_key()).build().unwrap()
}

/// Builds a layer over one permit that exempts every request.
fn exempting(backend: impl Backend) -> Limited<Probe> {
    let builder = RateLimitLayer::builder(backend).policy(policy("two", 2, MINUTE)).key(api_key());
    let limits = builder.exempt(|_| true).build().unwrap();
    limits.layer(ConcurrencyLimit::new(Probe::new().0, 1))
}

/// Builds a service of two requests per minute, one at a time, whose backend decides at once.
fn immediate() -> Limited<Probe> {
    over_one_permit(memory())
}

/// Builds the same service over a backend that decides after a delay.
fn delayed() -> Limited<Probe> {
    over_one_permit(Later(memory()))
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

fn over_one_permit(backend: impl Backend) -> Limited<Probe> {
    limits(backend).layer(ConcurrencyLimit::new(Probe::new().0, 1))
}

#[tokio::test]
async fn layer_calls_ready_service_and_no_clone() {
    // Both the probe and the concurrency limit panic if the layer calls them unready.
    for mut service in [immediate(), delayed()] {
        for _ in 0..2 {
            let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        }
        let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        // A rejection does not leave the service ready.
        let response = service.ready().await.unwrap().call(request_of("bob")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn rejected_request_returns_permit() {
    for mut service in [immediate(), delayed()] {
        for user in ["alice", "alice", "alice", "", "alice"] {
            let answer = service.ready().await.unwrap().call(request_of(user));
            let status = answer.await.unwrap().status();
            // The test keeps the service, as a connection does. Another service cannot use a permit in it.
            let mut other = service.clone();
            assert!(is_ready(&mut other).await, "after a {status}");
        }
    }
}

#[tokio::test]
async fn immediate_rejection_returns_permit_before_first_poll() {
    let mut service = immediate();
    for _ in 0..2 {
        service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
    }
    let answer = service.ready().await.unwrap().call(request_of("alice"));
    let mut other = service.clone();
    assert!(is_ready(&mut other).await, "before the first poll of the response");
    assert_eq!(answer.await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn dropped_request_returns_permit() {
    let backend = FakeBackend::hanging();
    let mut service = over_one_permit(backend.clone());
    let mut other = service.clone();
    let mut answer = Box::pin(service.ready().await.unwrap().call(request_of("alice")));
    tokio::select! {
        biased;
        _ = &mut answer => panic!("the backend never answers"),
        () = yield_now() => {}
    }
    assert_eq!(backend.checks().len(), 1);
    assert!(
        !is_ready(&mut other).await,
        "the check keeps the permit, because the backend may admit the request"
    );
    drop(answer);
    assert!(is_ready(&mut other).await);
}

#[tokio::test]
async fn admitted_request_keeps_permit_until_response() {
    let go_on = Arc::new(Notify::new());
    let wait = go_on.clone();
    let inner = service_fn(move |_: Request<()>| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok::<_, Infallible>(Response::new(Bytes::new()))
        }
    });
    let mut service = ServiceBuilder::new()
        .layer(limits(memory()))
        .layer_fn(|inner| ConcurrencyLimit::new(inner, 1))
        .service(inner);
    let answer = tokio::spawn(service.ready().await.unwrap().call(request_of("alice")));
    yield_now().await;
    assert!(!is_ready(&mut service).await);
    go_on.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::OK);
    assert!(is_ready(&mut service).await);
}

#[tokio::test(start_paused = true)]
async fn layer_sends_no_check_before_readiness() {
    let backend = FakeBackend::hanging();
    let mut service = over_one_permit(backend.clone());
    let mut other = service.clone();
    assert!(is_ready(&mut other).await);
    let waiting = tokio::time::timeout(Duration::from_secs(3_600), service.ready()).await;
    assert!(waiting.is_err(), "another service has the only permit");
    assert_eq!(backend.checks(), []);
}

#[tokio::test]
async fn exempt_request_calls_ready_service_without_check() {
    let backend = FakeBackend::hanging();
    let mut service = exempting(backend.clone());
    let mut other = service.clone();
    for user in ["alice", "", "alice"] {
        // The probe panics if the layer calls it unready.
        let answer = service.ready().await.unwrap().call(request_of(user));
        assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
        assert!(is_ready(&mut other).await, "the permit is free again");
        other = service.clone();
    }
    assert_eq!(backend.checks(), []);
}

/// A service that fails to become ready.
#[derive(Clone)]
struct Broken;

impl Service<Request<()>> for Broken {
    type Response = Response<Bytes>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Bytes>, &'static str>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Err("the service is broken"))
    }

    fn call(&mut self, _request: Request<()>) -> Self::Future {
        panic!("the service was called unready")
    }
}

#[tokio::test]
async fn layer_passes_error_of_readiness() {
    let backend = FakeBackend::admitting();
    let mut service = limits(backend.clone()).layer(Broken);
    assert_eq!(service.ready().await.map(drop), Err("the service is broken"));
    assert_eq!(backend.checks(), []);
}
