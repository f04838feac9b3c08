//! Known mistakes of other rate limit layers, and the tests that detect them here.
//!
//! - The layer calls a clone of the inner service that is not ready: [`readiness`](super::readiness).
//! - The layer calls the inner service before the decision: this module, and over the wire [`responses`](super::responses).
//! - The layer rounds a wait down, or to 0: [`retry_after`](super::retry_after) and, over gRPC, [`grpc`](super::grpc).
//! - A feature adds a required method: this module.
//! - All clients without an address share one key: this module, and for every rule [`missing_key`](super::missing_key).
//! - A key of the store has no time to live, or one in the wrong unit: `tests/redis`.
//! - A script compares a number with a string in Lua: `tests/redis`.
//! - The store keeps one record per unit of cost: `tests/redis`.
//! - A client repeats a check that may have run: `tests/redis`, and for the layer [`fake_backend`](super::fake_backend).
//! - A denial needs more work than an admission: this module.
//! - A write after the expiry of a key leaves a counter without a time to live: `tests/redis`.
//! - Each clone counts for itself: this module.
//! - The cleanup has an owner, or stops when a clone is dropped: this module.

use std::{net::SocketAddr, sync::Arc, thread};

use allocation_counter::measure;
use axum::{Router, routing::get};
use http::{Request, StatusCode};
use tokio::{sync::Notify, task::yield_now};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, RateLimit, RateLimitLayer, Rejection, Status, Wait,
    backend::{Backend, BackendError, Check},
    key::KeyError,
    peer_ip,
    testing::{FakeBackend, ManualClock},
};

use super::{
    ALICE, MINUTE, SECOND, api_key, policy,
    probe::{Probe, is_ready, now, request_of},
    wire::Site,
};

fn limits(backend: impl Backend, quota: u32) -> RateLimitLayer {
    RateLimitLayer::builder(backend).policy(policy("limit", quota, MINUTE)).key(api_key()).build().unwrap()
}

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// Sends one request without a runtime, to a service that answers at once.
fn send(service: &mut RateLimit<Probe>, user: &str) -> StatusCode {
    assert!(now(is_ready(service)));
    now(service.call(request_of(user))).unwrap().status()
}

#[test]
fn layer_calls_inner_service_only_for_admitted_requests() {
    let (inner, counter) = Probe::new();
    let mut service = limits(memory(), 2).layer(inner);
    let statuses = [(); 4].map(|()| send(&mut service, "alice").as_u16());
    assert_eq!((statuses, counter.calls()), ([200, 200, 429, 429], 2));
}

/// A backend that decides when the test notifies it.
#[derive(Clone)]
struct Undecided(Arc<Notify>);

impl Backend for Undecided {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.notified().await;
        Ok(Decision::new(0, [Status::new(&check.pairs()[0], 1, Wait::ZERO, SECOND, SECOND)]))
    }
}

#[tokio::test(start_paused = true)]
async fn layer_calls_inner_service_after_decision() {
    let decide = Arc::new(Notify::new());
    let (inner, counter) = Probe::new();
    let service = limits(Undecided(decide.clone()), 2).layer(inner);
    let answer = tokio::spawn(service.oneshot(request_of("alice")));
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(counter.calls(), 0);
    decide.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(counter.calls(), 1);
}

/// A backend with the method `check` only. This binary enables all features, so a further required method would be missing.
struct OnlyCheck;

impl Backend for OnlyCheck {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        Ok(Decision::new(0, [Status::new(&check.pairs()[0], 7, Wait::ZERO, SECOND, SECOND)]))
    }
}

#[tokio::test]
async fn backend_requires_only_check_method() {
    let limiter = Limiter::builder(OnlyCheck).policy(policy("limit", 10, MINUTE)).build().unwrap();
    let decision = limiter.check(PartitionKey::new("user", "alice")).await.unwrap();
    assert_eq!(decision.statuses()[0].remaining(), 7);
}

#[test]
fn layer_rejects_request_without_peer_address() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("limit", 1, MINUTE))
        .key(peer_ip())
        .build()
        .unwrap();
    let (inner, counter) = Probe::new();
    let response = now(limits.layer(inner).oneshot(Request::new(()))).unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let rejection = response.extensions().get::<Rejection>();
    assert!(matches!(rejection, Some(Rejection::Key(KeyError::Misconfigured { .. }))), "{rejection:?}");
    assert_eq!((counter.calls(), backend.checks().len()), (0, 0));
}

#[test]
fn peer_addresses_have_separate_limits() {
    let backend = memory();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("limit", 1, MINUTE))
        .key(peer_ip())
        .build()
        .unwrap();
    let mut service = limits.layer(Probe::new().0);
    let mut statuses = Vec::new();
    for peer in ["192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.2]:1", "192.0.2.2:1", "[2001:db8::1]:1"] {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<SocketAddr>().unwrap());
        assert!(now(is_ready(&mut service)));
        statuses.push(now(service.call(request)).unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 200, 429, 200]);
    assert_eq!(backend.keys(), 3);
}

/// The work of the layer for one request.
#[derive(Debug, PartialEq)]
struct Work {
    allocations: u64,
    bytes: u64,
    clones_of_inner: usize,
}

/// Returns the work of one request after `used` units of the quota. Counts do not depend on the machine, unlike times.
fn work(quota: u32, used: u32, expected: StatusCode) -> Work {
    let (inner, counter) = Probe::new();
    let mut service = limits(memory(), quota).layer(inner);
    for _ in 0..used {
        assert_eq!(send(&mut service, "alice"), StatusCode::OK);
    }
    // This request does the one-time work.
    let _ = send(&mut service, "alice");
    let clones = counter.clones();
    let request = request_of("alice");
    assert!(now(is_ready(&mut service)));
    let mut answer = None;
    let counted = measure(|| answer = Some(now(service.call(request))));
    assert_eq!(answer.unwrap().unwrap().status(), expected);
    let clones_of_inner = counter.clones() - clones;
    Work { allocations: counted.count_total, bytes: counted.bytes_total, clones_of_inner }
}

#[test]
fn denial_needs_at_most_twice_the_work_of_admission() {
    let admission = work(100, 10, StatusCode::OK);
    let denial = work(10, 10, StatusCode::TOO_MANY_REQUESTS);
    // The inner service makes an empty response to an admitted request. The layer makes the response to a denied one.
    assert!(denial.allocations <= 2 * admission.allocations, "{denial:?} {admission:?}");
    assert!(denial.bytes <= 2 * admission.bytes, "{denial:?} {admission:?}");
    // An immediate admission clones nothing. A denial clones the inner service once, to return the permit.
    assert_eq!((admission.clones_of_inner, denial.clones_of_inner), (0, 1));
}

#[test]
fn denial_needs_same_work_for_any_number_of_records() {
    let denial = |records| work(records, records, StatusCode::TOO_MANY_REQUESTS);
    let (few, many) = (denial(1_000), denial(9_000));
    // Both quotas have four digits, so that the headers are of one length.
    assert_eq!(few, many);
}

#[test]
fn clones_of_layer_and_service_share_one_limit() {
    let layer = limits(memory(), 10);
    let (inner, counter) = Probe::new();
    let service = layer.layer(inner.clone());
    let threads: Vec<_> = (0..50)
        .map(|i| {
            // The threads alternate between a clone of the service and a new service of a clone of the layer.
            let mut service = if i % 2 == 0 { service.clone() } else { layer.clone().layer(inner.clone()) };
            thread::spawn(move || [(); 4].map(|()| send(&mut service, "alice").as_u16()))
        })
        .collect();
    let statuses: Vec<u16> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(200), count(429)), (10, 190));
    assert_eq!(counter.calls(), 10);
}

#[tokio::test]
async fn routes_and_connections_share_one_limit() {
    // axum clones the layer for every route, and the services for every connection.
    let app = (0..5).fold(Router::new(), |app, i| app.route(&format!("/{i}"), get(async || "")));
    let site = Site::serve(app.layer(limits(memory(), 10))).await;
    let mut statuses = Vec::new();
    for i in 0..50 {
        statuses.push(site.get(&format!("/{}", i % 5), &[ALICE]).await.status);
    }
    assert_eq!(statuses, [vec![200; 10], vec![429; 40]].concat());
}

#[test]
fn checks_remove_idle_keys_without_runtime() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let layer = limits(backend.clone(), 10);
    let mut first = layer.layer(Probe::new().0);
    for i in 0..1_000 {
        assert_eq!(send(&mut first, &i.to_string()), StatusCode::OK);
    }
    assert_eq!(backend.keys(), 1_000);

    // The service that made these keys and its layer are dropped. Only a later service remains.
    let mut last = layer.clone().layer(Probe::new().0);
    drop((first, layer));
    clock.advance(MINUTE);
    for i in 0..2_000 {
        assert_eq!(send(&mut last, &format!("new {i}")), StatusCode::OK);
    }
    // Each check removes up to two idle keys, so no old key remains.
    assert_eq!(backend.keys(), 2_000);
}
