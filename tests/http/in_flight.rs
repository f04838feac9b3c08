//! Units in flight over HTTP: held until the body has ended, however that happens.

use std::{
    convert::Infallible,
    env,
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sliding_window::{
    ConfigError, Decision, Limiter, MemoryBackend, OutageRule, PartitionKey, Policies, Policy, PolicyTable,
    RateLimitLayer, RedisBackend, Wait,
    backend::{Backend, BackendError, Check, Pair, Reason},
    by,
    hold::Hold,
    key::{Header, constant},
    limit,
    outage::Share,
    settle::{Unsettled, by_hand},
    testing::{FakeAnswer, FakeBackend, ManualClock},
    wait::WaitLayer,
};

use super::{ALICE, Later, SECOND, api_key};
use crate::support::server::{Engine, Server};

fn exports(quota: u32) -> Policy {
    Policy::in_flight("exports", quota).unwrap()
}

fn layer(backend: impl tower_sliding_window::backend::Backend, quota: u32) -> RateLimitLayer {
    RateLimitLayer::builder(backend).policy(exports(quota)).key(api_key()).build().unwrap()
}

fn request(path: &str) -> Request<Body> {
    Request::get(path).header(ALICE.0, ALICE.1).body(Body::empty()).unwrap()
}

fn alice() -> PartitionKey {
    use tower_sliding_window::key::KeyExtractor;
    let request = request("/");
    Header::extract(&api_key(), &(&request).into()).unwrap().unwrap()
}

/// Returns how many units remain.
async fn remaining(limits: &RateLimitLayer) -> u32 {
    limits.limiter().drain().await;
    let decision = limits.limiter().peek((alice(), 0)).await.unwrap();
    decision.statuses()[0].remaining()
}

/// Returns a handler that moves the hold of its request out, as a WebSocket does.
fn moving_hold() -> (Router, mpsc::UnboundedReceiver<Hold>) {
    let (holds, moved) = mpsc::unbounded_channel();
    let handler = async move |hold: Option<Hold>| {
        if let Some(hold) = hold {
            holds.send(hold).unwrap();
        }
    };
    (Router::new().route("/", get(handler)), moved)
}

/// A handler for each way in which a request ends.
fn router() -> Router {
    let endless = || async { Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()) };
    let two_frames = || async {
        let frames = ["a", "b"].map(|text| Ok::<_, Infallible>(Bytes::from(text)));
        Body::from_stream(stream::iter(frames))
    };
    let fails = || async {
        let failed = stream::iter([Ok(Bytes::from("a")), Err(std::io::Error::other("no more"))]);
        Body::from_stream(failed)
    };
    let panics = || async {
        tokio::task::yield_now().await;
        if true {
            panic!("a handler panics");
        }
    };
    Router::new()
        .route("/two", get(two_frames))
        .route("/endless", get(endless))
        .route("/fails", get(fails))
        .route("/panics", get(panics))
        .route("/hangs", get(pending::<()>))
}

#[tokio::test]
async fn unit_is_held_until_body_has_ended() {
    let limits = layer(MemoryBackend::new(), 2);
    let service = limits.layer(router());
    let first = service.clone().oneshot(request("/two")).await.unwrap();
    assert_eq!(first.headers()["ratelimit-policy"], r#""exports";q=2;qu="concurrent-requests""#);
    assert_eq!(first.headers()["ratelimit"], r#""exports";r=1"#);
    let second = service.clone().oneshot(request("/endless")).await.unwrap();
    assert_eq!(second.headers()["ratelimit"], r#""exports";r=0"#);
    let denied = service.clone().oneshot(request("/two")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "1");
    let text = to_bytes(Body::new(denied.into_body()), 1_000).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("Try again in 1 s."), "{text:?}");
    // The second body stays.
    assert_eq!(to_bytes(Body::new(first.into_body()), 10).await.unwrap(), "ab");
    assert_eq!(remaining(&limits).await, 1);
    drop(second);
    assert_eq!(remaining(&limits).await, 2);
}

#[tokio::test]
async fn body_at_its_end_releases_before_it_is_dropped() {
    use http_body::Body as _;
    let limits = layer(MemoryBackend::new(), 1);
    for path in ["/two", "/fails"] {
        let response = limits.layer(router()).oneshot(request(path)).await.unwrap();
        let mut body = Box::pin(response.into_body());
        while let Some(Ok(_)) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            assert_eq!(remaining(&limits).await, 0, "{path}");
        }
        assert_eq!(remaining(&limits).await, 1, "{path}");
    }
}

/// The head of a response may live longer than its body, such as in a log of requests.
#[tokio::test]
async fn head_of_response_holds_no_unit() {
    for backend in [FakeBackend::admitting(), FakeBackend::unavailable(Reason::Connection)] {
        let limits = RateLimitLayer::builder(backend)
            .policy(exports(1))
            .key(api_key())
            .outage(OutageRule::LocalFallback(Share::whole()))
            .build()
            .unwrap();
        let send = async || limits.layer(router()).oneshot(request("/two")).await.unwrap();
        let (_head, body) = send().await.into_parts();
        drop(body);
        assert_eq!(send().await.status(), StatusCode::OK);
    }
}

/// As a caller does that has pinned the future for a `select!`.
#[tokio::test]
async fn completed_future_holds_no_unit() {
    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .policy(exports(1))
        .policy(Policy::new("hourly", 10, SECOND * 3_600).unwrap())
        .key(api_key())
        .settle_by(by_hand)
        .unsettled(Unsettled::Refund)
        .build()
        .unwrap();
    let inner = service_fn(async |request: Request<Body>| match request.uri().path() {
        "/fails" => Err("no answer"),
        _ => Ok(Response::new(Body::empty())),
    });
    for path in ["/", "/fails"] {
        let mut future = Box::pin(limits.layer(inner).call(request(path)));
        let result = (&mut future).await;
        assert_eq!(result.is_err(), path == "/fails");
        drop(result);
        assert_eq!(remaining(&limits).await, 1, "{path}");
        let decision = limits.limiter().peek((alice(), 0)).await.unwrap();
        assert_eq!(decision.statuses()[1].remaining(), 10, "the reservation is dropped and refunded: {path}");
        drop(future);
    }
}

/// Drops requests in every state: waiting for the handler, half of the body sent, a panic. `DROPPED_REQUESTS` sets another number.
async fn drop_requests(limits: &RateLimitLayer) {
    let count = env::var("DROPPED_REQUESTS").map_or(400, |count| count.parse().unwrap());
    for _ in 0..count / 4 {
        let service = limits.layer(router());
        let _ = timeout(Duration::ZERO, service.clone().oneshot(request("/hangs"))).await;
        let Ok(response) = service.clone().oneshot(request("/endless")).await;
        drop(response);
        let panicked = tokio::spawn(service.clone().oneshot(request("/panics"))).await;
        assert!(panicked.is_err());
        // The check itself is dropped.
        let _ = timeout(Duration::ZERO, service.oneshot(request("/two"))).await;
    }
}

#[tokio::test]
async fn dropped_requests_release_in_memory() {
    let limits = layer(MemoryBackend::new(), 1_000);
    drop_requests(&limits).await;
    assert_eq!(remaining(&limits).await, 1_000);
}

#[tokio::test]
async fn dropped_requests_release_in_redis() {
    let server = Server::start(Engine::Redis);
    let limits = layer(RedisBackend::connect(&server.url()).await.unwrap(), 1_000);
    drop_requests(&limits).await;
    assert_eq!(remaining(&limits).await, 1_000);
}

/// As a WebSocket does: the work goes on after the response.
#[tokio::test]
async fn hold_that_handler_moves_outlives_response() {
    let limits = layer(MemoryBackend::new(), 1);
    let (app, mut moved) = moving_hold();
    drop(app.layer(limits.clone()).oneshot(request("/")).await.unwrap());
    assert_eq!(remaining(&limits).await, 0);
    drop(moved.recv().await);
    assert_eq!(remaining(&limits).await, 1);
}

/// The decision of the inner layer replaces that of the outer one.
#[tokio::test]
async fn moved_hold_has_units_of_all_nested_layers() {
    let [first, middle, last] = [3, 2, 1].map(|quota| layer(MemoryBackend::new(), quota));
    let requests = Policy::new("requests", 9, SECOND).unwrap();
    let rate = RateLimitLayer::builder(MemoryBackend::new()).policy(requests).key(api_key()).build().unwrap();
    let (app, mut moved) = moving_hold();
    let app =
        app.layer(rate.clone()).layer(last.clone()).layer(rate).layer(middle.clone()).layer(first.clone());
    drop(app.oneshot(request("/")).await.unwrap());
    let remaining = async || [remaining(&first).await, remaining(&middle).await, remaining(&last).await];
    assert_eq!(remaining().await, [2, 1, 0]);
    drop(moved.recv().await.unwrap());
    assert_eq!(remaining().await, [3, 2, 1]);
}

#[tokio::test]
async fn handler_moves_hold_in_outage() {
    for (rule, is_held) in [(OutageRule::LocalFallback(Share::whole()), true), (OutageRule::FailOpen, false)]
    {
        let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Connection));
        let limits = limits.policy(exports(1)).key(api_key()).outage(rule).build().unwrap();
        let (app, mut moved) = moving_hold();
        let app = app.layer(limits);
        let send = async || app.clone().oneshot(request("/")).await.unwrap().status();
        assert_eq!(send().await, StatusCode::OK);
        let hold = moved.try_recv().ok();
        assert_eq!(hold.is_some(), is_held);
        assert_eq!(send().await == StatusCode::OK, !is_held);
        drop(hold);
        assert_eq!(send().await, StatusCode::OK);
    }
}

#[tokio::test]
async fn service_without_http_holds_until_its_future_ends() {
    let limiter = Limiter::builder(MemoryBackend::new()).policy(exports(1)).build().unwrap();
    let by_job = by(|_: &u32| PartitionKey::new("tenant", "a"));
    let (started, mut starts) = mpsc::unbounded_channel();
    let inner = service_fn(move |job: u32| {
        started.send(()).unwrap();
        async move { if job == 0 { pending().await } else { Ok::<_, tower::BoxError>(job) } }
    });
    let service = ServiceBuilder::new().layer(RateLimitLayer::new(limiter, by_job)).service(inner);
    let running = tokio::spawn(service.clone().oneshot(0));
    starts.recv().await.unwrap();
    assert!(service.clone().oneshot(1).await.is_err());
    running.abort();
    assert!(running.await.is_err());
    assert_eq!(service.clone().oneshot(1).await.unwrap(), 1);
    assert_eq!(service.oneshot(2).await.unwrap(), 2);
}

#[test]
fn same_body_rejects_policy_in_flight() {
    let text = |error: ConfigError| error.to_string();
    let error = layer(MemoryBackend::new(), 1).same_body().unwrap_err();
    assert_eq!(
        text(error),
        r#"policy "exports" in flight: `same_body` does not see the end of a body; use the layer without it"#
    );
    let requests = Policies::from(Policy::new("requests", 5, SECOND).unwrap());
    let table = PolicyTable::new(requests);
    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .policies(table.clone().choose_by(|_| None::<&str>))
        .key(api_key())
        .build()
        .unwrap();
    let kept = limits.same_body().unwrap();
    let other = || PolicyTable::new(Policies::from(exports(5)));
    let error = table.replace(other()).unwrap_err();
    assert!(error.to_string().contains("same_body"), "{error}");
    drop((kept, limits));
    table.replace(other()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_wakes_waiting_requests_in_order() {
    let exports = exports(1).retry_after(3_600 * SECOND).unwrap();
    let limiter = Limiter::builder(MemoryBackend::new()).policy(exports).build().unwrap();
    let alice = || PartitionKey::new("user", "alice");
    let first = limiter.check(alice()).await.unwrap();
    let (order, mut turns) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    for number in 0..5 {
        let (limiter, order) = (limiter.clone(), order.clone());
        waiting.spawn(async move {
            let admission = limiter.wait(alice(), (60 - 10 * number) * SECOND).await.unwrap();
            order.send(number).unwrap();
            tokio::time::sleep(SECOND).await;
            drop(admission);
        });
        tokio::task::yield_now().await;
    }
    let start = tokio::time::Instant::now();
    drop(first);
    for number in 0..5 {
        assert_eq!(turns.recv().await, Some(number));
    }
    assert_eq!(start.elapsed().as_secs(), 4, "each release wakes the next one at once");
    while waiting.join_next().await.is_some() {}

    // Without a release, it gives up at its end.
    let _held = limiter.check(alice()).await.unwrap();
    let start = tokio::time::Instant::now();
    assert!(limiter.wait(alice(), 7 * SECOND).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 7);
}

/// Any backend makes its holds by `Hold::new`, which wakes the next request.
#[tokio::test(start_paused = true)]
async fn release_of_any_backend_wakes_waiting_request() {
    let backend =
        FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(Wait::Unknown), FakeAnswer::Admit]);
    let exports = exports(1).retry_after(3_600 * SECOND).unwrap();
    let limiter = Limiter::builder(backend).policy(exports).build().unwrap();
    let alice = || PartitionKey::new("user", "alice");
    let held = limiter.check(alice()).await.unwrap();
    let start = tokio::time::Instant::now();
    let waiting = tokio::spawn(limiter.wait(alice(), 7_200 * SECOND));
    tokio::time::sleep(SECOND).await;
    drop(held);
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// The deadline drops a check whose units are held already.
#[tokio::test(start_paused = true)]
async fn dropped_check_of_backend_around_memory_wakes_waiting_request() {
    struct FirstHangs(MemoryBackend, AtomicUsize);
    impl Backend for FirstHangs {
        async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
            let decision = self.0.check(check).await;
            if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
                pending::<()>().await;
            }
            decision
        }
        fn holds_units(&self) -> bool {
            true
        }
    }
    let exports = exports(1).retry_after(3_600 * SECOND).unwrap();
    let backend = FirstHangs(MemoryBackend::new(), AtomicUsize::new(0));
    let limiter = Limiter::builder(backend).policy(exports).deadline(SECOND).build().unwrap();
    let alice = || PartitionKey::new("user", "alice");
    let start = tokio::time::Instant::now();
    let dropped = tokio::spawn(limiter.check(alice()));
    tokio::task::yield_now().await;
    let waiting = tokio::spawn(limiter.wait(alice(), 7_200 * SECOND));
    assert!(dropped.await.unwrap().is_err());
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// Tiers may have times of their own, and a reload may change them.
#[tokio::test(start_paused = true)]
async fn release_wakes_request_of_policy_with_other_times() {
    let limiter = Limiter::builder(MemoryBackend::new()).without_policies().build().unwrap();
    let pair = |policy| [Pair::new(PartitionKey::new("user", "alice"), policy, 1)];
    let held = limiter.check(pair(exports(1))).await.unwrap();
    let other = exports(1).retry_after(3_600 * SECOND).unwrap().hold_time(60 * SECOND).unwrap();
    let start = tokio::time::Instant::now();
    let waiting = tokio::spawn(limiter.wait(pair(other), 7_200 * SECOND));
    tokio::time::sleep(SECOND).await;
    drop(held);
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// The requests of each tenant have a queue, and all of them need a unit of the host. A release wakes those that have room.
#[tokio::test(start_paused = true)]
async fn request_without_room_passes_release_on() {
    let limiter = Limiter::builder(MemoryBackend::new()).without_policies().build().unwrap();
    let pair = |kind: &'static str, name: &'static str, quota, cost| {
        let policy = Policy::in_flight(kind, quota).unwrap().retry_after(3_600 * SECOND).unwrap();
        Pair::new(PartitionKey::new(kind, name), policy, cost)
    };
    let [host, two_of_host] = [1, 2].map(|cost| pair("host", "api", 2, cost));
    let wait =
        |tenant| tokio::spawn(limiter.wait([pair("tenant", tenant, 1, 1), host.clone()], 7_200 * SECOND));
    let of_a = limiter.check([pair("tenant", "a", 1, 1)]).await.unwrap();
    let both = limiter.check([two_of_host]).await.unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(wait);
    tokio::time::sleep(SECOND).await;
    let start = tokio::time::Instant::now();
    // One release of two units. Tenant a has no room.
    drop(both);
    let [of_b, of_c] = [b.await.unwrap().unwrap(), c.await.unwrap().unwrap()];
    assert!(!a.is_finished() && !d.is_finished());
    // The woken request leaves before it has asked.
    drop(of_b);
    a.abort();
    let of_d = d.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop((of_a, of_c, of_d));
}

/// A memory that answers after 10 ms. It counts the checks of two pairs.
#[derive(Clone)]
struct SlowMemory(MemoryBackend, Arc<AtomicUsize>);

impl Backend for SlowMemory {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.1.fetch_add(check.pairs().len() / 2, Ordering::SeqCst);
        tokio::time::sleep(SECOND / 100).await;
        self.0.check(check).await
    }

    fn holds_units(&self) -> bool {
        true
    }
}

/// An inner service whose clone that has been called panics when it is dropped.
struct PanicsWhenDropped(bool);

impl Clone for PanicsWhenDropped {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(!self.0, "an inner service panics");
    }
}

impl Service<Request<Body>> for PanicsWhenDropped {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.0 = true;
        ready(Ok(Response::new(Body::empty())))
    }
}

/// Otherwise, its unit would be held for ever.
#[tokio::test(start_paused = true)]
async fn panic_in_drop_of_inner_service_releases_unit() {
    let limits = layer(SlowMemory(MemoryBackend::new(), Arc::default()), 1);
    let service = limits.layer(PanicsWhenDropped(false));
    let panicked = tokio::spawn(service.oneshot(request("/"))).await;
    assert!(panicked.is_err_and(|error| error.is_panic()));
    assert!(limits.limiter().check(alice()).await.unwrap().is_admitted());
}

/// The tenant has no room, and units of its host are released all the time.
#[tokio::test(start_paused = true)]
async fn release_of_other_pair_causes_no_check() {
    for cached in [false, true] {
        let backend = SlowMemory(MemoryBackend::new(), Arc::default());
        let limiter = Limiter::builder(backend.clone()).without_policies().build().unwrap();
        let host = || Pair::new(PartitionKey::new("host", "api"), exports(10), 1);
        let policy = if cached { Policy::new("calls", 1, 60 * SECOND).unwrap() } else { exports(1) };
        let tenant = || Pair::new(PartitionKey::new("tenant", "a"), policy.clone(), 1);
        let of_tenant = limiter.check([tenant()]).await.unwrap();
        if cached {
            assert!(!limiter.check([tenant()]).await.unwrap().is_admitted());
        }
        let waiting = tokio::spawn(limiter.wait([tenant(), host()], 600 * SECOND));
        for _ in 0..500 {
            drop(limiter.check([host()]).await.unwrap());
        }
        // In 5 s, a denial without a known wait is asked for again after half a second to a second.
        let (asked, most) = (backend.1.load(Ordering::SeqCst), if cached { 1 } else { 11 });
        assert!(asked <= most, "{asked} checks, cached: {cached}");
        waiting.abort();
        drop(of_tenant);
    }
}

/// The host has no room either. But no release of its units admits the request before the wait of the tenant has passed.
#[tokio::test(start_paused = true)]
async fn release_before_end_of_known_wait_causes_no_check() {
    let clock = ManualClock::new();
    let backend = SlowMemory(MemoryBackend::new().with_clock(&clock), Arc::default());
    let builder = Limiter::builder(backend.clone()).without_policies().deny_cache(None);
    let limiter = builder.build().unwrap();
    let asked = || backend.1.load(Ordering::SeqCst);
    let host = Pair::new(PartitionKey::new("host", "api"), exports(1), 1);
    let calls = Policy::new("calls", 1, 60 * SECOND).unwrap();
    let tenant = Pair::new(PartitionKey::new("tenant", "a"), calls, 1);
    let start = tokio::time::Instant::now();
    assert!(limiter.check([tenant.clone()]).await.unwrap().is_admitted());
    let mut held = limiter.check([host.clone()]).await.unwrap();
    let waiting = tokio::spawn(limiter.wait([tenant, host.clone()], 600 * SECOND));
    // Both pairs deny it.
    tokio::time::sleep(SECOND).await;
    for _ in 0..500 {
        drop(held);
        held = limiter.check([host.clone()]).await.unwrap();
        assert!(held.is_admitted());
        tokio::time::sleep(SECOND / 20).await;
    }
    assert_eq!(asked(), 1);
    drop(held);
    clock.advance(60 * SECOND);
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!((asked(), start.elapsed().as_secs()), (2, 60));
}

/// Another process returns the unit, so only the poll finds it.
#[tokio::test]
async fn wait_layer_polls_for_units_of_other_processes() {
    let server = Server::start(Engine::Redis);
    let exports = || exports(1).retry_after(SECOND / 20).unwrap();
    let limiter = async || {
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        Limiter::builder(backend).policy(exports()).deadline(SECOND).build().unwrap()
    };
    let (other, own) = (limiter().await, limiter().await);
    let key = || PartitionKey::new("tenant", "a");
    let held = other.check(key()).await.unwrap();
    let client = service_fn(async |_: ()| Ok::<_, Infallible>(Response::new(())));
    let by_tenant = by(move |_: &()| key());
    let service = ServiceBuilder::new().layer(WaitLayer::new(own, by_tenant)).service(client);
    let waiting = tokio::spawn(service.oneshot(()));
    tokio::time::sleep(SECOND / 5).await;
    assert!(!waiting.is_finished());
    drop(held);
    assert!(timeout(SECOND, waiting).await.unwrap().unwrap().is_ok());
}

#[test]
fn backend_without_holds_rejects_policy_in_flight() {
    let cannot_hold = |error| matches!(error, ConfigError::CannotHold { policy, .. } if policy == "exports");
    let limiter = || Limiter::builder(Later(FakeBackend::admitting()));
    assert!(cannot_hold(limiter().policy(exports(1)).build().unwrap_err()));
    let shared = limiter().policy(Policy::new("calls", 9, SECOND).unwrap()).build().unwrap();
    let layer = || RateLimitLayer::builder(shared.clone()).key(constant("user", "alice"));
    assert!(cannot_hold(layer().policy(exports(1)).build().unwrap_err()));
    let also = limit(constant("user", "bob")).policy(exports(1));
    assert!(cannot_hold(layer().also(also).build().unwrap_err()));
}

#[tokio::test]
async fn fake_backend_counts_held_units() {
    let backend = FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(Wait::Unknown)]);
    let limits = layer(backend.clone(), 7);
    let response = limits.layer(router()).oneshot(request("/two")).await.unwrap();
    assert_eq!(backend.held_units(), 1);
    let denied = limits.layer(router()).oneshot(request("/two")).await.unwrap();
    assert_eq!((denied.status(), backend.held_units()), (StatusCode::TOO_MANY_REQUESTS, 1));
    drop(response);
    assert_eq!(backend.held_units(), 0);
}

#[tokio::test]
async fn local_fallback_holds_units_of_its_share() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Connection))
        .policy(exports(4))
        .outage(OutageRule::LocalFallback(Share::among(2).unwrap()))
        .key(api_key())
        .build()
        .unwrap();
    let service = limits.layer(router());
    let mut responses = Vec::new();
    for expected in [StatusCode::OK, StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
        let response = service.clone().oneshot(request("/endless")).await.unwrap();
        assert_eq!(response.status(), expected);
        responses.push(response);
    }
    responses.clear();
    let response = service.clone().oneshot(request("/two")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}
