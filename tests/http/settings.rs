//! The settings of the builder, each through a layer, and layers that share one limiter.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    ActualCost, Backend, BackendError, Breaker, Builder, Check, Decision, DenyCache, Draft, FakeBackend,
    Header, Http, KeyError, Keyed, Limiter, ManualClock, MemoryBackend, OutageRule, PartitionKey, Plan,
    RateLimitLayer, ReadActualCost, Reason, Refusal, Respond, Settling, Share, Unkeyed, actual_cost,
};

use super::{
    Later, MINUTE, SECOND, api_key, policy,
    probe::{Probe, request_of},
};

type Settings = Builder<Unkeyed>;
type Limits = RateLimitLayer<Keyed<Header>>;

/// Builds a layer of ten units per API key, with these settings.
fn limits(backend: impl Backend, set: impl FnOnce(Settings) -> Settings) -> Limits {
    set(RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE))).key(api_key()).build().unwrap()
}

/// Builds the same layer with every setting after the key.
fn limits_with_key_first(backend: impl Backend) -> Limits {
    RateLimitLayer::builder(backend)
        .key(api_key())
        .outage(OutageRule::Admit)
        .namespace("shop")
        .deadline(SECOND)
        .breaker(None)
        .max_in_flight(7)
        .deny_cache(None)
        .local_memory(MemoryBackend::new())
        .settlement_queue(7)
        .policy(policy("ten", 10, MINUTE))
        .build()
        .unwrap()
}

/// Builds a layer that makes every request free when its response is ready.
fn limits_that_refund(
    backend: impl Backend,
    set: impl FnOnce(Settings) -> Settings,
) -> RateLimitLayer<Keyed<Header>, impl Respond<Request<()>, Response<Bytes>, Infallible>> {
    let builder = set(RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE))).key(api_key());
    builder.settle(|_: &Response<Bytes>| Some(0)).build().unwrap()
}

/// Builds a layer over a limiter that other layers share.
fn limits_over(limiter: &Limiter, cost: u32) -> RateLimitLayer<impl Plan<Request<()>> + use<>> {
    RateLimitLayer::new(limiter.clone(), by_api_key(cost), Http)
}

/// Builds a layer over a shared limiter that settles by the actual cost.
fn settling_limits_over(
    limiter: &Limiter,
    cost: u32,
) -> RateLimitLayer<impl Plan<Request<()>> + use<>, Settling<ReadActualCost, Http>> {
    RateLimitLayer::new(limiter.clone(), by_api_key(cost), Settling::new(actual_cost(), Http))
}

fn by_api_key(cost: u32) -> impl Fn(&Request<()>) -> Result<Draft, KeyError> {
    move |request| {
        let key = request.headers().get("x-api-key").ok_or(KeyError::Missing)?;
        Ok(Draft::check(PartitionKey::new("header:x-api-key", key), cost))
    }
}

fn limiter(backend: impl Backend) -> Limiter {
    Limiter::builder(backend).policy(policy("ten", 10, MINUTE)).namespace("shop").build().unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

/// Status and `RateLimit` field of the response to one request of Alice.
async fn ask<L>(limits: &L) -> (u16, Option<String>)
where
    L: Layer<Probe>,
    L::Service: Service<Request<()>, Response = Response<Bytes>, Error = Infallible>,
{
    let response = limits.layer(Probe::new().0).oneshot(request_of("alice")).await.unwrap();
    let field = response.headers().get("ratelimit").map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), field)
}

fn left(units: u32) -> (u16, Option<String>) {
    (200, Some(format!(r#""ten";r={units};t=60"#)))
}

/// A backend whose denials hold.
struct Holds(FakeBackend);

impl Backend for Holds {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.check(check).await
    }

    fn denials_hold(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn builder_sets_circuit_breaker() {
    let down = || FakeBackend::unavailable(Reason::Connection);
    let failing = down();
    let breaker = Breaker { failures: 2, open_for: SECOND };
    let guarded = limits(Later(failing.clone()), |builder| builder.breaker(breaker));
    for _ in 0..4 {
        assert_eq!(ask(&guarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 2);
    advance(SECOND).await;
    for _ in 0..2 {
        assert_eq!(ask(&guarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 3, "one probe");

    let failing = down();
    let unguarded = limits(Later(failing.clone()), |builder| builder.breaker(None));
    for _ in 0..20 {
        assert_eq!(ask(&unguarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn builder_sets_deny_cache() {
    let denying = || FakeBackend::denying(30 * SECOND);
    let short = DenyCache { max_age: Duration::from_millis(10), ..DenyCache::default() };
    let checks_of = async |cache: Option<DenyCache>| {
        let backend = denying();
        let limits = limits(Holds(backend.clone()), |builder| builder.deny_cache(cache));
        for _ in 0..3 {
            assert_eq!(ask(&limits).await.0, 429);
        }
        advance(Duration::from_millis(20)).await;
        assert_eq!(ask(&limits).await.0, 429);
        backend.checks().len()
    };
    assert_eq!(checks_of(Some(DenyCache::default())).await, 1);
    assert_eq!(checks_of(Some(short)).await, 2);
    assert_eq!(checks_of(None).await, 4);
}

#[tokio::test]
async fn builder_sets_local_memory() {
    let memory = MemoryBackend::new().with_clock(&ManualClock::new());
    let half = OutageRule::Local(Share::among(2).unwrap());
    let down = || FakeBackend::unavailable(Reason::Connection);
    let shared = || limits(down(), |builder| builder.outage(half).local_memory(memory.clone()));
    let (one, other, alone) = (shared(), shared(), limits(down(), |builder| builder.outage(half)));
    for _ in 0..5 {
        assert_eq!(ask(&one).await, (200, None));
    }
    assert_eq!(ask(&other).await, (503, None));
    assert_eq!(ask(&alone).await, (200, None));
    assert_eq!(memory.keys(), 1);
}

#[tokio::test(start_paused = true)]
async fn builder_sets_settlement_queue() {
    let lost = async |set: fn(Settings) -> Settings| {
        let backend = FakeBackend::admitting().hanging_settlements();
        let limits = limits_that_refund(backend, set);
        // No task runs in between, so that every settlement waits.
        for _ in 0..3 {
            assert_eq!(ask(&limits).await, left(9));
        }
        limits.limiter().lost_settlements()
    };
    assert_eq!(lost(|builder| builder.settlement_queue(1)).await, 2);
    assert_eq!(lost(|builder| builder).await, 0);
}

#[tokio::test]
async fn namespaces_separate_layers_on_one_store() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let named = |name: &'static str| limits(backend.clone(), |builder| builder.namespace(name));
    let (shop, blog, shop_again) = (named("shop"), named("blog"), named("shop"));
    assert_eq!(ask(&shop).await, left(9));
    assert_eq!(ask(&blog).await, left(9));
    assert_eq!(ask(&shop_again).await, left(8));
}

#[tokio::test(start_paused = true)]
async fn builder_accepts_settings_after_key() {
    let backend = FakeBackend::hanging();
    let limits = limits_with_key_first(backend.clone());
    let start = tokio::time::Instant::now();
    assert_eq!(ask(&limits).await, (200, None), "the outage rule admits");
    assert!((SECOND..2 * SECOND).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!((backend.checks()[0].namespace.as_str(), limits.limiter().namespace()), ("shop", "shop"));
    assert_eq!(backend.checks()[0].pairs[0].policy, policy("ten", 10, MINUTE));
}

#[tokio::test]
async fn layers_over_one_limiter_share_its_count() {
    let limiter = limiter(MemoryBackend::new().with_clock(&ManualClock::new()));
    let (cheap, dear) = (limits_over(&limiter, 1), limits_over(&limiter, 4));
    assert_eq!(ask(&cheap).await, left(9));
    assert_eq!(ask(&dear).await, left(5));
    assert!(limiter.check(alice(), 2).await.unwrap().is_admitted());
    assert_eq!(ask(&dear).await, (429, Some(r#""ten";r=3;t=60"#.to_owned())));
    assert_eq!(ask(&cheap).await, left(2));
}

#[tokio::test(start_paused = true)]
async fn layers_over_one_limiter_share_its_circuit_breaker() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = limiter(Later(backend.clone()));
    let (one, other) = (limits_over(&limiter, 1), limits_over(&limiter, 2));
    let failures = Breaker::default().failures as usize;
    for _ in 0..failures {
        assert_eq!(ask(&one).await.0, 503);
    }
    assert_eq!(ask(&other).await.0, 503);
    assert_eq!(backend.checks().len(), failures);
}

#[tokio::test]
async fn layers_over_one_limiter_share_settlements() {
    let limiter = limiter(MemoryBackend::new().with_clock(&ManualClock::new()));
    let (plain, settling) = (limits_over(&limiter, 1), settling_limits_over(&limiter, 6));
    let inner = service_fn(async |_: Request<()>| {
        let mut response = Response::new(Bytes::new());
        response.extensions_mut().insert(ActualCost::new(2));
        Ok::<_, Infallible>(response)
    });
    let response = settling.layer(inner).oneshot(request_of("alice")).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], r#""ten";r=4;t=60"#);
    assert_eq!(ask(&plain).await, left(7));
}

#[tokio::test]
async fn layer_returns_its_limiter() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limits = limits(backend, |builder| builder.namespace("shop"));
    assert_eq!(ask(&limits).await, left(9));
    let limiter = limits.limiter();
    assert_eq!((limiter.policies(), limiter.namespace()), (&[policy("ten", 10, MINUTE)][..], "shop"));
    assert_eq!(limiter.peek(alice(), 0).await.unwrap().statuses()[0].remaining(), 9);
    limiter.reset(alice()).await.unwrap();
    assert_eq!(ask(&limits.clone()).await, left(9));
}

#[tokio::test]
async fn layer_over_limiter_rejects_missing_key() {
    let backend = FakeBackend::admitting();
    let limits = limits_over(&limiter(backend.clone()), 1);
    let response = limits.layer(Probe::new().0).oneshot(Request::new(())).await.unwrap();
    assert_eq!((response.status().as_u16(), backend.checks().len()), (400, 0));
    let refusal = response.extensions().get::<Refusal>();
    assert!(matches!(refusal, Some(Refusal::NoKey(KeyError::Missing))), "{refusal:?}");
}
