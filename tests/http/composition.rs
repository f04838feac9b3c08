//! Settings that add up, and failures of the layer's own closures.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_sliding_window::{
    MemoryBackend, Policies, RateLimitLayer,
    testing::{FakeBackend, ManualClock},
};

use super::{
    MINUTE, SECOND, api_key, policy,
    probe::{now, request_of},
};

async fn answer(_: Request<()>) -> Result<Response<()>, Infallible> {
    Ok(Response::new(()))
}

#[tokio::test]
async fn selectors_add_their_policies() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policies(Policies::from(policy("strict", 1, MINUTE)))
        .policies_by(|_| policy("loose", 9, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let service = limits.layer(service_fn(answer));
    let first = service.clone().oneshot(request_of("alice")).await.unwrap();
    assert_eq!(first.headers()["ratelimit-policy"], r#""strict";q=1;w=60, "loose";q=9;w=60"#);
    assert_eq!(service.oneshot(request_of("alice")).await.unwrap().status(), 429);
}

#[tokio::test]
async fn exemptions_add_up() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .exempt(|head| head.uri.path() == "/health")
        .exempt(|head| head.uri.path() == "/ready")
        .build()
        .unwrap();
    for (path, checks) in [("/health", 0), ("/ready", 0), ("/", 1)] {
        let request = Request::get(path).header("x-api-key", "alice").body(()).unwrap();
        limits.layer(service_fn(answer)).oneshot(request).await.unwrap();
        assert_eq!(backend.checks().len(), checks, "{path}");
    }
}

/// The inner service admits one request at a time. A permit that is lost blocks it.
#[test]
fn panicking_rejection_returns_permit_of_inner_service() {
    let limits = RateLimitLayer::builder(FakeBackend::denying(SECOND))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .rejection(|_, _| -> Response<String> { panic!("the rejection panics") })
        .build()
        .unwrap();
    let mut service = limits.layer(ConcurrencyLimit::new(service_fn(answer), 1));
    let mut other = service.clone();
    now(ServiceExt::<Request<()>>::ready(&mut service)).unwrap();
    let panics = catch_unwind(AssertUnwindSafe(|| drop(service.call(request_of("alice")))));
    assert!(panics.is_err());
    now(ServiceExt::<Request<()>>::ready(&mut other)).unwrap();
}
