//! The settings of the builder, each through a layer, and layers that share one limiter.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::advance;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    ConfigError, Costs, Decision, Limiter, MemoryBackend, OutageRule, PartitionKey, Policies, RateLimitLayer,
    RateLimitLayerBuilder, Rejection, RouteCosts, Wait,
    answer::ProblemDetails,
    backend::{Backend, BackendError, Check, Pair, Reason},
    key::{KeyError, MissingKey},
    limit,
    outage::{Breaker, DenyCacheConfig, Share},
    peer_ip,
    policy::Tier,
    settle::{ActualCost, actual_cost},
    testing::{
        FakeAnswer::{Admit, Deny, Unavailable},
        FakeBackend, ManualClock,
    },
};

use super::{
    Later, MINUTE, SECOND, api_key, policy,
    probe::{Probe, request_of},
};

/// Builds a layer of ten units per API key, with these settings.
fn limits(
    backend: impl Backend,
    set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> RateLimitLayer {
    set(RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE))).key(api_key()).build().unwrap()
}

/// Builds the same layer with every setting after the key.
fn limits_with_key_first(backend: impl Backend) -> RateLimitLayer {
    RateLimitLayer::builder(backend)
        .key(api_key())
        .outage(OutageRule::FailOpen)
        .namespace("shop")
        .deadline(SECOND)
        .breaker(None)
        .max_checks_in_flight(7)
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
    set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> RateLimitLayer {
    let builder = set(RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE))).key(api_key());
    builder.settle_by(|_| Some(0)).build().unwrap()
}

/// Builds a layer over a limiter that other layers share.
fn limits_over(limiter: &Limiter, cost: u32) -> RateLimitLayer {
    builder_over(limiter, cost).build().unwrap()
}

/// Builds a layer over a shared limiter that settles by the actual cost.
fn settling_limits_over(limiter: &Limiter, cost: u32) -> RateLimitLayer {
    builder_over(limiter, cost).settle_by(actual_cost).build().unwrap()
}

fn builder_over(limiter: &Limiter, cost: u32) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(limiter.clone()).key(api_key()).cost(cost)
}

fn limiter(backend: impl Backend) -> Limiter {
    Limiter::builder(backend).policy(policy("ten", 10, MINUTE)).namespace("shop").build().unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

/// Returns status and `RateLimit` field of the response to one request of Alice.
async fn send(limits: &RateLimitLayer) -> (u16, Option<String>) {
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
    let breaker = Breaker::new(2, SECOND);
    let guarded = limits(Later(failing.clone()), |builder| builder.breaker(breaker));
    for _ in 0..4 {
        assert_eq!(send(&guarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 2);
    advance(SECOND).await;
    for _ in 0..2 {
        assert_eq!(send(&guarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 3, "one probe");

    let failing = down();
    let unguarded = limits(Later(failing.clone()), |builder| builder.breaker(None));
    for _ in 0..20 {
        assert_eq!(send(&unguarded).await.0, 503);
    }
    assert_eq!(failing.checks().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn builder_sets_deny_cache() {
    let denying = || FakeBackend::denying(30 * SECOND);
    let short = DenyCacheConfig::new(Duration::from_millis(10), DenyCacheConfig::default().max_entries);
    let checks_of = async |cache: Option<DenyCacheConfig>| {
        let backend = denying();
        let limits = limits(Holds(backend.clone()), |builder| builder.deny_cache(cache));
        for _ in 0..3 {
            assert_eq!(send(&limits).await.0, 429);
        }
        advance(Duration::from_millis(20)).await;
        assert_eq!(send(&limits).await.0, 429);
        backend.checks().len()
    };
    assert_eq!(checks_of(Some(DenyCacheConfig::default())).await, 1);
    assert_eq!(checks_of(Some(short)).await, 2);
    assert_eq!(checks_of(None).await, 4);
}

#[tokio::test]
async fn builder_sets_local_memory() {
    let memory = MemoryBackend::new().with_clock(&ManualClock::new());
    let half = OutageRule::LocalFallback(Share::among(2).unwrap());
    let down = || FakeBackend::unavailable(Reason::Connection);
    let shared = || limits(down(), |builder| builder.outage(half).local_memory(memory.clone()));
    let (one, other, alone) = (shared(), shared(), limits(down(), |builder| builder.outage(half)));
    for _ in 0..5 {
        assert_eq!(send(&one).await, (200, None));
    }
    assert_eq!(send(&other).await, (503, None));
    assert_eq!(send(&alone).await, (200, None));
    assert_eq!(memory.keys(), 1);
}

#[tokio::test(start_paused = true)]
async fn builder_sets_settlement_queue() {
    let lost = async |set: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
        let backend = FakeBackend::admitting().hanging_settlements();
        let limits = limits_that_refund(backend, set);
        // No task runs in between, so that every settlement waits.
        for _ in 0..3 {
            assert_eq!(send(&limits).await, left(9));
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
    assert_eq!(send(&shop).await, left(9));
    assert_eq!(send(&blog).await, left(9));
    assert_eq!(send(&shop_again).await, left(8));
}

#[tokio::test]
async fn regions_count_separately_on_one_store() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let per_address =
        || limit(peer_ip()).policy(policy("per-address", 5, MINUTE)).missing_key(MissingKey::Exempt);
    let of = |region: &'static str| {
        let limits = limits(backend.clone(), |builder| builder.region(region));
        (limits.clone(), limits.limiter().clone())
    };
    let ((eu, limiter), (us, _)) = (of("eu"), of("us"));
    assert_eq!(send(&eu).await, left(9));
    assert_eq!(send(&us).await, left(9));
    assert_eq!(send(&eu).await, left(8));
    // The limiter adds the region to the key.
    assert_eq!(limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(), 8);
    let pair = Pair::new(alice(), policy("ten", 10, MINUTE), 1);
    assert!(limiter.check([pair]).await.unwrap().is_admitted());
    assert_eq!(send(&eu).await, left(6));
    limiter.reset(alice()).await.unwrap();
    assert_eq!((send(&eu).await, send(&us).await), (left(9), left(8)));

    let fake = FakeBackend::admitting();
    let with_address = limits(fake.clone(), |builder| builder.region("eu").also(per_address()));
    let mut request = request_of("alice");
    request.extensions_mut().insert("192.0.2.1:1".parse::<SocketAddr>().unwrap());
    assert_eq!(with_address.layer(Probe::new().0).oneshot(request).await.unwrap().status(), 200);
    let keys: Vec<_> = fake.checks()[0].pairs.iter().map(|pair| pair.key.clone()).collect();
    let region = PartitionKey::new("region", "eu");
    assert_eq!(keys, [region.and(&alice()), region.and(&PartitionKey::new("peer-ip", "192.0.2.1"))]);

    for name in ["", "ü", &"x".repeat(65)] {
        let text = format!("region {name:?}: it must be 1 to 64 printable ASCII characters (space to `~`)");
        assert_eq!(
            error(
                RateLimitLayer::builder(fake.clone())
                    .policy(policy("p", 1, MINUTE))
                    .key(api_key())
                    .region(name)
            )
            .to_string(),
            text
        );
    }
}

#[test]
fn constant_cost_above_quota_is_an_error() {
    let builder =
        || RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 10, MINUTE)).key(api_key());
    let text = |builder: RateLimitLayerBuilder| error(builder).to_string();
    let routes = |units: u32| RouteCosts::new().get("/search", units).unwrap().post("/", 5).unwrap();
    let range = "it must be 0 to 10, the quota of policy \"ten\"";
    assert_eq!(text(builder().cost(11)), format!("cost 11: {range}"));
    assert_eq!(text(builder().cost(Costs::new().policy("ten", 12))), format!("cost 12: {range}"));
    assert_eq!(text(builder().cost(routes(13))), format!("cost 13 of GET /search: {range}"));
    assert_eq!(
        text(builder().cost(routes(1).otherwise(14))),
        format!("cost 14 of all other routes: {range}")
    );
    let per_address = || limit(peer_ip()).policy(policy("per-address", 20, MINUTE));
    assert_eq!(
        text(builder().also(per_address().cost(21))),
        "cost 21: it must be 0 to 20, the quota of policy \"per-address\""
    );
    assert_eq!(text(builder_over(&limiter(FakeBackend::admitting()), 11)), format!("cost 11: {range}"));
    for valid in [
        builder().cost(10),
        builder().cost_by(|_| 11),
        builder().cost(routes(10)).also(per_address().cost(20)),
        builder().policies_by(|_| Tier::Unlimited).cost(10),
    ] {
        valid.build().unwrap();
    }
}

#[test]
fn constant_cost_for_unknown_policy_is_an_error() {
    let builder =
        || RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 10, MINUTE)).key(api_key());
    let per_address = || limit(peer_ip()).policy(policy("per-address", 20, MINUTE));
    let of = |name: &'static str| Costs::new().policy(name, 2);
    let text = |builder: RateLimitLayerBuilder| error(builder).to_string();
    let known = "no such policy; the policies are [\"ten\", \"per-address\"]";
    assert_eq!(
        text(builder().also(per_address()).cost(of("tne"))),
        format!("cost for policy \"tne\": {known}")
    );
    assert_eq!(
        text(builder().also(per_address().cost(of("tne")))),
        format!("cost for policy \"tne\": {known}")
    );
    let routes = RouteCosts::new().delete("/x", of("tne")).unwrap();
    assert_eq!(
        text(builder().also(per_address()).cost(routes)),
        format!("cost for policy \"tne\" of DELETE /x: {known}")
    );
    for valid in [
        builder().also(per_address()).cost(of("ten")),
        builder().also(per_address()).cost(of("per-address")),
        // A selector may choose a policy of this name.
        builder().policies_by(|_| Tier::Unlimited).cost(of("chosen")),
        builder().also(per_address().policies_by(|_| Tier::Unlimited)).cost(of("chosen")),
        builder().cost_by(move |_| of("unknown")),
    ] {
        valid.build().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn builder_accepts_settings_after_key() {
    let backend = FakeBackend::hanging();
    let limits = limits_with_key_first(backend.clone());
    let start = tokio::time::Instant::now();
    assert_eq!(send(&limits).await, (200, None), "the outage rule admits");
    assert!((SECOND..2 * SECOND).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!((backend.checks()[0].namespace.as_str(), limits.limiter().namespace()), ("shop", "shop"));
    assert_eq!(backend.checks()[0].pairs[0].policy, policy("ten", 10, MINUTE));
}

type Call = fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;

/// Returns every rotation of these calls, in their order and in reverse order.
fn orders(calls: &[Call]) -> Vec<Vec<Call>> {
    let rotated = (0..calls.len()).map(|first| [&calls[first..], &calls[..first]].concat());
    rotated.flat_map(|order| [order.clone(), order.into_iter().rev().collect()]).collect()
}

#[tokio::test]
async fn builder_accepts_calls_in_any_order() {
    let calls: &[Call] = &[
        |builder| builder.policy(policy("ten", 10, MINUTE)),
        |builder| builder.key(api_key()),
        |builder| builder.missing_key(MissingKey::Shared(alice())),
        |builder| builder.cost_by(|head| if head.uri.path() == "/expensive" { 4 } else { 3 }),
        |builder| builder.policies_by(|_| policy("chosen", 20, MINUTE)),
        |builder| builder.also(limit(peer_ip()).policy(policy("per-address", 30, MINUTE))),
        |builder| builder.exempt(|head| head.uri.path() == "/health"),
        |builder| builder.outage(OutageRule::FailOpen),
        |builder| {
            builder.outage_by(|head| match head.uri.path() {
                "/expensive" => OutageRule::FailClosed,
                _ => OutageRule::FailOpen,
            })
        },
        |builder| builder.settle_by(|_| Some(1)),
        |builder| builder.answer(ProblemDetails),
        |builder| {
            builder.rejection(|rejection, _| {
                let status = if matches!(rejection, Rejection::Unavailable(_)) { 502 } else { 418 };
                Response::builder().status(status).body(()).unwrap()
            })
        },
        |builder| {
            builder.namespace("shop").deadline(SECOND).breaker(None).max_checks_in_flight(7).deny_cache(None)
        },
        |builder| builder.local_memory(MemoryBackend::new()).settlement_queue(7),
    ];
    let (deny, down) = (Deny(Wait::For(SECOND)), Unavailable(Reason::Connection));
    for (i, calls) in orders(calls).into_iter().enumerate() {
        let backend = FakeBackend::scripted([Admit, Admit, deny, down, down]);
        let builder = RateLimitLayer::builder(backend.clone());
        let limits = calls.into_iter().fold(builder, |builder, call| call(builder)).build().unwrap();
        let mut statuses = Vec::new();
        for path in ["/health", "/", "/expensive", "/", "/", "/expensive"] {
            let mut request = Request::get(path).body(()).unwrap();
            request.extensions_mut().insert("192.0.2.1:1".parse::<SocketAddr>().unwrap());
            statuses.push(limits.layer(Probe::new().0).oneshot(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 418, 200, 502], "order {i}");
        let checks = backend.checks();
        assert_eq!((checks.len(), checks[0].namespace.as_str()), (5, "shop"), "order {i}");
        let costs = |check: usize| {
            let pair = |pair: &Pair| (pair.policy.name().to_owned(), pair.cost);
            let mut costs: Vec<_> = checks[check].pairs.iter().map(pair).collect();
            costs.sort();
            costs
        };
        let expected = |cost| {
            [("chosen", cost), ("per-address", 1), ("ten", cost)].map(|(name, cost)| (name.to_owned(), cost))
        };
        assert_eq!((costs(0), costs(1)), (expected(3).to_vec(), expected(4).to_vec()), "order {i}");
        assert!(
            checks[0].pairs.iter().all(|pair| pair.policy.name() == "per-address" || pair.key == alice())
        );
        let refunds: Vec<u32> =
            backend.refunds().iter().map(|refund| refund.pairs.iter().map(|pair| pair.units).sum()).collect();
        assert_eq!(refunds, [4, 6], "order {i}");
    }
}

/// Returns the error of this builder.
fn error(builder: RateLimitLayerBuilder) -> ConfigError {
    builder.build().unwrap_err()
}

#[test]
fn builder_requires_key() {
    let builder = || RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 10, MINUTE));
    let per_address = || limit(peer_ip()).policy(policy("per-address", 10, MINUTE));
    let over_limiter = || RateLimitLayer::builder(limiter(FakeBackend::admitting()));
    for builder in [
        builder(),
        builder().cost(2).missing_key(MissingKey::Exempt),
        builder().exempt(|_| true),
        builder().also(per_address()),
        over_limiter(),
    ] {
        let error = error(builder);
        assert!(matches!(error, ConfigError::NoKey), "{error:?}");
        assert_eq!(
            error.to_string(),
            "missing partition key: set it with `.key(..)`, `.key_by(..)` or `.plan_by(..)`"
        );
    }
    builder().key(api_key()).build().unwrap();
    builder().key_by(|_| alice()).build().unwrap();
    builder().plan_by(|_| alice()).build().unwrap();
    over_limiter().plan_by(|_| alice()).build().unwrap();
}

#[test]
fn builder_rejects_plan_beside_replaced_part() {
    let over_backend = || RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 10, MINUTE));
    let over_limiter = || RateLimitLayer::builder(limiter(FakeBackend::admitting()));
    let plan = |builder: RateLimitLayerBuilder| builder.plan_by(|_| alice());
    let chosen = || Policies::from(policy("chosen", 9, MINUTE));
    let parts: [(&str, &dyn Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder); 7] = [
        ("key", &|builder| builder.key(api_key())),
        ("key", &|builder| builder.key_by(|_| alice())),
        ("missing_key", &|builder| builder.missing_key(MissingKey::Exempt)),
        ("cost", &|builder| builder.cost(2)),
        ("cost_by", &|builder| builder.cost_by(|_| 2)),
        ("policies", &|builder| builder.policies(chosen())),
        ("policies_by", &|builder| builder.policies_by(|_| Tier::Unlimited)),
    ];
    for (name, set) in parts {
        for builder in [over_backend, over_limiter] {
            for error in [error(plan(set(builder()))), error(set(plan(builder())))] {
                assert!(
                    matches!(error, ConfigError::PlanAndPart { method, .. } if method == name),
                    "{error:?}"
                );
                let text =
                    format!("`.{name}(..)` has no effect together with `.plan_by(..)`: remove one of them");
                assert_eq!(error.to_string(), text);
            }
        }
    }
    // A plan checks against the policies of the limiter, which a layer over a shared limiter cannot add to.
    let error = error(plan(over_limiter().policy(policy("more", 9, MINUTE))));
    assert!(matches!(error, ConfigError::PlanAndPart { method: "policy", .. }), "{error:?}");

    let others = |builder: RateLimitLayerBuilder| {
        builder.also(limit(peer_ip()).policy(policy("per-address", 9, MINUTE)))
    };
    let others =
        |builder| others(builder).exempt(|_| false).outage(OutageRule::FailOpen).settle_by(|_| Some(0));
    plan(others(over_backend())).build().unwrap();
    plan(others(over_limiter())).build().unwrap();
}

#[test]
fn builder_rejects_settings_of_shared_limiter() {
    let limiter = limiter(FakeBackend::admitting());
    let settings: [(&str, Call); 8] = [
        ("region", |builder| builder.region("eu")),
        ("namespace", |builder| builder.namespace("shop")),
        ("deadline", |builder| builder.deadline(SECOND)),
        ("breaker", |builder| builder.breaker(None)),
        ("max_checks_in_flight", |builder| builder.max_checks_in_flight(7)),
        ("deny_cache", |builder| builder.deny_cache(None)),
        ("local_memory", |builder| builder.local_memory(MemoryBackend::new())),
        ("settlement_queue", |builder| builder.settlement_queue(7)),
    ];
    for (name, set) in settings {
        let error = error(set(builder_over(&limiter, 1)));
        assert!(matches!(error, ConfigError::SharedLimiter { method, .. } if method == name), "{error:?}");
        let text =
            format!("`.{name}(..)` has no effect on a shared limiter: set it with `Limiter::builder(..)`");
        assert_eq!(error.to_string(), text);
    }
}

#[tokio::test]
async fn layer_over_limiter_adds_policies_and_outage_rule() {
    let backend = FakeBackend::scripted([Admit, Unavailable(Reason::Connection)]);
    let limiter = limiter(backend.clone());
    let builder = builder_over(&limiter, 3).policy(policy("more", 20, MINUTE)).outage(OutageRule::FailOpen);
    let limits = builder.build().unwrap();
    let both = r#""ten";r=7;t=60, "more";r=17;t=60"#.to_owned();
    assert_eq!(send(&limits).await, (200, Some(both)));
    assert_eq!(send(&limits).await, (200, None));
    assert_eq!(send(&limits_over(&limiter, 1)).await, (503, None), "another layer has the limiter's rule");
    assert_eq!(backend.checks()[2].pairs.len(), 1);

    let twice = error(builder_over(&limiter, 1).policy(policy("ten", 9, MINUTE)));
    assert!(matches!(twice, ConfigError::DuplicatePolicy { name, .. } if name == "ten"));
    let of_none = Limiter::builder(backend).without_policies().build().unwrap();
    assert!(matches!(error(builder_over(&of_none, 1)), ConfigError::NoPolicies { .. }));
}

#[tokio::test]
async fn layers_over_one_limiter_share_its_count() {
    let limiter = limiter(MemoryBackend::new().with_clock(&ManualClock::new()));
    let (cheap, expensive) = (limits_over(&limiter, 1), limits_over(&limiter, 4));
    assert_eq!(send(&cheap).await, left(9));
    assert_eq!(send(&expensive).await, left(5));
    assert!(limiter.check((alice(), 2)).await.unwrap().is_admitted());
    assert_eq!(send(&expensive).await, (429, Some(r#""ten";r=3;t=60"#.to_owned())));
    assert_eq!(send(&cheap).await, left(2));
}

#[tokio::test(start_paused = true)]
async fn layers_over_one_limiter_share_its_circuit_breaker() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = limiter(Later(backend.clone()));
    let (one, other) = (limits_over(&limiter, 1), limits_over(&limiter, 2));
    let failures = Breaker::default().failures as usize;
    for _ in 0..failures {
        assert_eq!(send(&one).await.0, 503);
    }
    assert_eq!(send(&other).await.0, 503);
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
    assert_eq!(send(&plain).await, left(7));
}

#[tokio::test]
async fn layer_returns_its_limiter() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limits = limits(backend, |builder| builder.namespace("shop"));
    assert_eq!(send(&limits).await, left(9));
    let limiter = limits.limiter();
    assert_eq!((limiter.policies(), limiter.namespace()), (&[policy("ten", 10, MINUTE)][..], "shop"));
    assert_eq!(limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(), 9);
    limiter.reset(alice()).await.unwrap();
    assert_eq!(send(&limits.clone()).await, left(9));
}

#[tokio::test]
async fn layer_over_limiter_rejects_missing_key() {
    let backend = FakeBackend::admitting();
    let limits = limits_over(&limiter(backend.clone()), 1);
    let response = limits.layer(Probe::new().0).oneshot(Request::new(())).await.unwrap();
    assert_eq!((response.status().as_u16(), backend.checks().len()), (400, 0));
    let rejection = response.extensions().get::<Rejection>();
    assert!(matches!(rejection, Some(Rejection::Key(KeyError::Missing { .. }))), "{rejection:?}");
}

#[test]
fn layer_over_limiter_rejects_policies_of_further_limits() {
    let limiter = limiter(FakeBackend::admitting());
    let per_address = |name: &str| limit(peer_ip()).policy(policy(name, 9, MINUTE));
    let builder = || builder_over(&limiter, 1).policy(policy("more", 20, MINUTE));
    for (builder, duplicate) in [
        (builder().also(per_address("ten")), "ten"),
        (builder().also(per_address("more")), "more"),
        (builder().also(per_address("p")).also(per_address("p")), "p"),
    ] {
        let error = error(builder);
        assert!(
            matches!(&error, ConfigError::DuplicatePolicy { name, .. } if name == duplicate),
            "{error:?}"
        );
    }
    let with =
        |count: u32| (0..count).fold(builder(), |builder, i| builder.also(per_address(&i.to_string())));
    with(6).build().unwrap();
    assert!(matches!(error(with(7)), ConfigError::TooManyPolicies { given: 9, .. }));
}

#[tokio::test]
async fn limiter_of_layer_applies_outage_rule_of_layer() {
    let down = || FakeBackend::unavailable(Reason::Connection);
    let admits = async |limits: RateLimitLayer| limits.limiter().admit(alice()).await.is_ok();
    assert!(!admits(limits(down(), |builder| builder)).await);
    assert!(admits(limits(down(), |builder| builder.outage(OutageRule::FailOpen))).await);
    // A shared limiter keeps its own rule.
    let shared = builder_over(&limiter(down()), 1).outage(OutageRule::FailOpen);
    assert!(!admits(shared.build().unwrap()).await);
}
