//! Mistakes that others have made, each with a test that would catch it here.
//!
//! 1. A clone of the inner service is called that was never made ready: [`readiness`](super::readiness).
//! 2. The inner service is called before the decision: here, and over the wire in [`answers`](super::answers).
//! 3. A wait is rounded down, or to 0: [`waits`](super::waits) and, over gRPC, [`grpc`](super::grpc).
//! 4. A feature adds a required method: here.
//! 5. Everybody without an address shares one key: here, and by every rule in [`without_key`](super::without_key).
//! 6. A key of the store has no time to live, or one in the wrong unit: `tests/redis`.
//! 7. A number is compared with a string in Lua: `tests/redis`.
//! 8. A record is stored per unit of cost: `tests/redis`.
//! 9. A check is sent again that may have run: `tests/redis`; that nobody above asks twice, [`fake`](super::fake).
//! 10. A denial is dearer than an admission: here.
//! 11. Something lands after its key has expired, and leaves a counter for ever: `tests/redis`.
//! 12. Every clone counts for itself: here.
//! 13. A cleaner must be owned, or is stopped by any clone that is dropped: here.

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
fn trap_2_the_inner_service_is_called_for_admitted_requests_and_no_others() {
    let (inner, seen) = Probe::new();
    let mut service = limits(memory(), 2).layer(inner);
    let statuses = [(); 4].map(|()| send(&mut service, "alice").as_u16());
    assert_eq!((statuses, seen.calls()), ([200, 200, 429, 429], 2));
}

/// Decides when it is told to.
#[derive(Clone)]
struct Undecided(Arc<Notify>);

impl Backend for Undecided {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.notified().await;
        Ok(Decision::new(0, [Status::new(&check.pairs()[0], 1, Wait::ZERO, SECOND, SECOND)]))
    }
}

#[tokio::test(start_paused = true)]
async fn trap_2_the_inner_service_is_not_called_before_the_decision() {
    let decide = Arc::new(Notify::new());
    let (inner, seen) = Probe::new();
    let service = limits(Undecided(decide.clone()), 2).layer(inner);
    let answer = tokio::spawn(service.oneshot(request_of("alice")));
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(seen.calls(), 0);
    decide.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(seen.calls(), 1);
}

/// All features are on in this binary, so a method that one of them required would be missing here.
struct OnlyCheck;

impl Backend for OnlyCheck {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        Ok(Decision::new(0, [Status::new(&check.pairs()[0], 7, Wait::ZERO, SECOND, SECOND)]))
    }
}

#[tokio::test]
async fn trap_4_a_backend_needs_no_more_than_check_whatever_features_are_on() {
    let limiter = Limiter::builder(OnlyCheck).policy(policy("limit", 10, MINUTE)).build().unwrap();
    let decision = limiter.check(PartitionKey::new("user", "alice"), 1).await.unwrap();
    assert_eq!(decision.statuses()[0].remaining(), 7);
}

#[test]
fn trap_5_those_whose_address_is_unknown_are_refused_and_share_no_key() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("limit", 1, MINUTE))
        .key(peer_ip())
        .build()
        .unwrap();
    let (inner, seen) = Probe::new();
    let response = now(limits.layer(inner).oneshot(Request::new(()))).unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let refusal = response.extensions().get::<Rejection>();
    assert!(matches!(refusal, Some(Rejection::Key(KeyError::Misconfigured { .. }))), "{refusal:?}");
    assert_eq!((seen.calls(), backend.checks().len()), (0, 0));
}

#[test]
fn trap_5_addresses_are_told_apart() {
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

/// What one request costs the layer.
#[derive(Debug, PartialEq)]
struct Work {
    allocations: u64,
    bytes: u64,
    clones_of_inner: usize,
}

/// The work of one request, when `used` units of the quota are used. It is counted and not timed, so that it is the same
/// on every machine; and work of this kind is what made denials dear elsewhere.
fn work(quota: u32, used: u32, expected: StatusCode) -> Work {
    let (inner, seen) = Probe::new();
    let mut service = limits(memory(), quota).layer(inner);
    for _ in 0..used {
        assert_eq!(send(&mut service, "alice"), StatusCode::OK);
    }
    // What is made only once need not be cheap.
    let _ = send(&mut service, "alice");
    let clones = seen.clones();
    let request = request_of("alice");
    assert!(now(is_ready(&mut service)));
    let mut answer = None;
    let counted = measure(|| answer = Some(now(service.call(request))));
    assert_eq!(answer.unwrap().unwrap().status(), expected);
    let clones_of_inner = seen.clones() - clones;
    Work { allocations: counted.count_total, bytes: counted.bytes_total, clones_of_inner }
}

#[test]
fn trap_10_a_denial_is_no_more_work_than_twice_the_admission_of_an_empty_request() {
    let admission = work(100, 10, StatusCode::OK);
    let denial = work(10, 10, StatusCode::TOO_MANY_REQUESTS);
    // An admission has an answer made by the inner service, which here makes an empty one; a denial makes its own.
    assert!(denial.allocations <= 2 * admission.allocations, "{denial:?} {admission:?}");
    assert!(denial.bytes <= 2 * admission.bytes, "{denial:?} {admission:?}");
    // Decided at once, an admission clones nothing; and a denial one, to give the permit back.
    assert_eq!((admission.clones_of_inner, denial.clones_of_inner), (0, 1));
}

#[test]
fn trap_10_a_denial_is_the_same_work_however_much_is_stored() {
    let denial = |records| work(records, records, StatusCode::TOO_MANY_REQUESTS);
    let (few, many) = (denial(1_000), denial(9_000));
    // Both quotas have four digits, so that the headers are of one length.
    assert_eq!(few, many);
}

#[test]
fn trap_12_fifty_clones_of_the_layer_and_of_its_services_are_one_limit() {
    let layer = limits(memory(), 10);
    let (inner, seen) = Probe::new();
    let service = layer.layer(inner.clone());
    let threads: Vec<_> = (0..50)
        .map(|i| {
            // By turns a clone of the service, and a new service of a clone of the layer.
            let mut service = if i % 2 == 0 { service.clone() } else { layer.clone().layer(inner.clone()) };
            thread::spawn(move || [(); 4].map(|()| send(&mut service, "alice").as_u16()))
        })
        .collect();
    let statuses: Vec<u16> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let count = |status| statuses.iter().filter(|it| **it == status).count();
    assert_eq!((count(200), count(429)), (10, 190));
    assert_eq!(seen.calls(), 10);
}

#[tokio::test]
async fn trap_12_all_routes_and_connections_of_an_app_are_one_limit() {
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
fn trap_13_idle_keys_go_without_a_task_or_a_runtime_and_whichever_clones_are_gone() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let layer = limits(backend.clone(), 10);
    let mut first = layer.layer(Probe::new().0);
    for i in 0..1_000 {
        assert_eq!(send(&mut first, &i.to_string()), StatusCode::OK);
    }
    assert_eq!(backend.keys(), 1_000);

    // The one that has made them goes, and so does the layer; a later one is left.
    let mut last = layer.clone().layer(Probe::new().0);
    drop((first, layer));
    clock.advance(MINUTE);
    for i in 0..2_000 {
        assert_eq!(send(&mut last, &format!("new {i}")), StatusCode::OK);
    }
    // Clearing goes along with the checks, two idle keys at each, so all thousand are gone by now.
    assert_eq!(backend.keys(), 2_000);
}
