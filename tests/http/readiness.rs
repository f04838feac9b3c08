//! The inner service's readiness, which may be a permit: it is used for the request that it was got for, and given back
//! if that request is refused.

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

/// Two requests a minute, one at a time; it decides at once.
fn at_once() -> Limited<Probe> {
    over_one_permit(memory())
}

/// The same; it decides later.
fn later() -> Limited<Probe> {
    over_one_permit(Later(memory()))
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

fn over_one_permit(backend: impl Backend) -> Limited<Probe> {
    limits(backend).layer(ConcurrencyLimit::new(Probe::new().0, 1))
}

#[tokio::test]
async fn the_service_that_was_made_ready_is_called_and_no_clone_of_it() {
    // Both the probe and the concurrency limit panic if they are called unready.
    for mut service in [at_once(), later()] {
        for _ in 0..2 {
            let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        }
        let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        // After a refusal the service is not ready by accident.
        let response = service.ready().await.unwrap().call(request_of("bob")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_refused_request_gives_its_permit_back() {
    for mut service in [at_once(), later()] {
        for user in ["alice", "alice", "alice", "", "alice"] {
            let answer = service.ready().await.unwrap().call(request_of(user));
            let status = answer.await.unwrap().status();
            // The service itself is kept, as a connection keeps it: what it holds, others do not get.
            let mut other = service.clone();
            assert!(is_ready(&mut other).await, "after a {status}");
        }
    }
}

#[tokio::test]
async fn a_request_that_is_refused_at_once_gives_its_permit_back_at_once() {
    let mut service = at_once();
    for _ in 0..2 {
        service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
    }
    let answer = service.ready().await.unwrap().call(request_of("alice"));
    let mut other = service.clone();
    assert!(is_ready(&mut other).await, "while the answer has not even been asked for");
    assert_eq!(answer.await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_request_that_is_dropped_during_its_check_gives_its_permit_back() {
    let backend = FakeBackend::hanging();
    let mut service = over_one_permit(backend.clone());
    let mut other = service.clone();
    let mut answer = Box::pin(service.ready().await.unwrap().call(request_of("alice")));
    tokio::select! {
        biased;
        _ = &mut answer => panic!("nobody can have answered"),
        () = yield_now() => {}
    }
    assert_eq!(backend.checks().len(), 1);
    assert!(!is_ready(&mut other).await, "it is kept during the check, for the request may be admitted");
    drop(answer);
    assert!(is_ready(&mut other).await);
}

#[tokio::test]
async fn an_admitted_request_keeps_its_permit_until_it_is_answered() {
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
async fn the_layer_is_ready_when_the_inner_service_is_and_asks_nobody_before() {
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
        // The probe panics if it is called unready.
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
        Poll::Ready(Err("it is broken"))
    }

    fn call(&mut self, _request: Request<()>) -> Self::Future {
        panic!("it was called unready")
    }
}

#[tokio::test]
async fn layer_passes_error_of_readiness() {
    let backend = FakeBackend::admitting();
    let mut service = limits(backend.clone()).layer(Broken);
    assert_eq!(service.ready().await.map(drop), Err("it is broken"));
    assert_eq!(backend.checks(), []);
}
