//! The methods of the builder: their closures, their order, and the type of what they build.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::ConnectInfo,
    response::IntoResponse,
    routing::get,
};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::ServiceExt;
use tower_sliding_window::{
    ConfigError, Head, KeyExtractor, MemoryBackend, OutageRule, PartitionKey, Policies, PolicyTable,
    RateLimit, RateLimitLayer, RateLimitLayerBuilder, ResponseHead, RouteCosts, answer, extension, header,
    key,
    key::MissingKey,
    limit,
    outage::Breaker,
    peer_ip,
    policy::Tier,
    protocol::{By, Draft},
    testing::FakeBackend,
};

use crate::support::{MINUTE, admitting, hello, policy, request};

#[derive(Clone)]
struct User(String);

fn tenant(head: &Head<'_>) -> Option<PartitionKey> {
    Some(PartitionKey::new("tenant", head.headers.get("x-tenant")?))
}

/// All methods that take a closure, and all settings. No two of them set the same part.
const METHODS: [fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder; 20] = [
    |builder| builder.policy(policy("first", 100)),
    |builder| builder.policy(policy("second", 200)),
    |builder| builder.key_by(tenant),
    |builder| builder.missing_key(MissingKey::Shared(PartitionKey::new("tenant", "none"))),
    |builder| {
        builder
            .policies_by(|head| head.header("x-tier").map_or(Tier::Unlimited, |_| policy("tier", 300).into()))
    },
    |builder| builder.cost_by(|head| if head.method.is_safe() { 1 } else { 5 }),
    |builder| builder.also(limit(key::from_fn(tenant)).policy(policy("third", 300)).cost_by(|_| 7)),
    |builder| {
        let user = extension("user", |user: &User| user.0.clone());
        builder.also(limit(user).missing_key(MissingKey::Exempt).policy(policy("fourth", 400)).cost(3))
    },
    |builder| builder.exempt(|head| head.uri.path() == "/health"),
    |builder| builder.outage(OutageRule::FailOpen),
    |builder| {
        builder.outage_by(
            |head| if head.method.is_safe() { OutageRule::FailOpen } else { OutageRule::FailClosed },
        )
    },
    |builder| builder.settle_by(|response| response.status.is_success().then_some(0)),
    |builder| builder.rejection(|rejection, head| Response::new(format!("{}: {rejection}", head.uri))),
    |builder| builder.answer(answer::HttpOrGrpc),
    |builder| builder.namespace("stacks"),
    |builder| builder.deadline(MINUTE),
    |builder| builder.breaker(Breaker::default()),
    |builder| builder.max_checks_in_flight(10),
    |builder| builder.deny_cache(None),
    |builder| builder.local_memory(MemoryBackend::new()).settlement_queue(10),
];

/// Sends requests that the methods treat differently. Returns what the backend was asked, regardless of the order of policies.
async fn asked(
    methods: impl Iterator<Item = &fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder>,
) -> Vec<String> {
    let backend = FakeBackend::admitting();
    let limits = methods.fold(RateLimitLayer::builder(backend.clone()), |builder, method| method(builder));
    let app: Router = Router::new().fallback(hello).layer(limits.build().unwrap());
    let mut with_user = Request::post("/").header("x-tenant", "acme").body(Body::empty()).unwrap();
    with_user.extensions_mut().insert(User("alice".into()));
    let with_tier = Request::get("/").header("x-tier", "gold").header("x-tenant", "acme");
    let health = Request::get("/health");
    for request in [with_user, with_tier.body(<_>::default()).unwrap(), health.body(<_>::default()).unwrap()]
    {
        assert_eq!(app.clone().oneshot(request).await.unwrap().status().as_u16(), 200);
    }
    let checks = backend.checks().into_iter().flat_map(|check| {
        let mut pairs: Vec<String> = check.pairs.iter().map(|pair| format!("{pair:?}")).collect();
        pairs.sort();
        [vec![format!("{} {:?}", check.namespace, check.purpose)], pairs].concat()
    });
    checks.chain([backend.refunds().len().to_string()]).collect()
}

#[tokio::test]
async fn methods_are_called_in_any_order() {
    let first = asked(METHODS.iter()).await;
    // Two checks with their pairs, and the number of refunds.
    assert_eq!(first.len(), (1 + 4) + (1 + 4) + 1, "{first:#?}");
    assert_eq!(asked(METHODS.iter().rev()).await, first);
    for start in 1..METHODS.len() {
        assert_eq!(asked(METHODS.iter().cycle().skip(start).take(METHODS.len())).await, first);
    }
}

#[tokio::test]
async fn methods_take_values() {
    let tiers = PolicyTable::new(policy("tier", 300));
    let by_path = |head: &Head<'_>| PartitionKey::new("path", head.uri.path());
    let user = key::from_fn(|head| head.extension::<User>().map(|user| PartitionKey::new("user", &user.0)));
    let shared: Arc<dyn KeyExtractor> =
        Arc::new(header("x-tenant").unwrap().or(user).or(key::from_fn(tenant)).or(key::from_fn(by_path)));
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(backend.clone())
        .cost(RouteCosts::new().route("/search", 10).unwrap())
        .policies(tiers.choose_by(|head| head.header("x-tier")))
        .key(shared)
        .also(limit(peer_ip()).policies(Policies::from(policy("address", 9))).cost(3))
        .build()
        .unwrap();
    let app: Router = Router::new().route("/search", get(hello)).layer(limits);
    let mut search = Request::get("/search").body(Body::empty()).unwrap();
    search.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 80))));
    assert_eq!(app.oneshot(search).await.unwrap().status().as_u16(), 200);
    let checks = backend.checks();
    let costs: Vec<_> = checks[0].pairs.iter().map(|pair| (pair.policy.name(), pair.cost)).collect();
    assert_eq!(costs, [("tier", 10), ("address", 3)]);

    let missing = RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("burst", 2)).build();
    assert!(matches!(missing, Err(ConfigError::NoKey)));
}

#[tokio::test]
async fn plan_replaces_key_in_any_order() {
    let methods: [fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder; 4] = [
        |builder| builder.policy(policy("first", 100)),
        |builder| builder.plan_by(|head| tenant(head).map_or(Draft::exempt(), |key| Draft::check(key, 2))),
        |builder| {
            builder
                .also(limit(key::from_fn(tenant)).missing_key(MissingKey::Exempt).policy(policy("second", 9)))
        },
        |builder| builder.exempt(|head| head.uri.path() == "/health"),
    ];
    let first = asked(methods.iter()).await;
    // Two checks with their pairs, and the number of refunds.
    assert_eq!(first.len(), (1 + 2) + (1 + 2) + 1, "{first:#?}");
    for start in 1..methods.len() {
        assert_eq!(asked(methods.iter().cycle().skip(start).take(methods.len())).await, first);
    }
}

#[tokio::test]
async fn rejection_is_response_of_axum_handler() {
    let limits = RateLimitLayer::builder(FakeBackend::denying(MINUTE))
        .policy(policy("burst", 2))
        .key_by(tenant)
        .missing_key(MissingKey::Shared(PartitionKey::new("tenant", "none")))
        .rejection(|_, head| {
            (StatusCode::TOO_MANY_REQUESTS, [("x-path", head.uri.path().to_owned())], Json("no"))
                .into_response()
        })
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", get(hello)).layer(limits);
    let response = app.oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(
        (&response.headers()["x-path"], &response.headers()["retry-after"]),
        (&"/".parse().unwrap(), &"60".parse().unwrap())
    );
    assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "\"no\"");
}

/// The types of layers and services in a struct, whatever closures they contain.
struct App {
    limits: RateLimitLayer,
    jobs: RateLimitLayer<By<String>>,
    service: RateLimit<Router>,
}

#[tokio::test]
async fn struct_holds_layers_with_closures() {
    let (prefix, quota) = (String::from("/internal"), policy("burst", 2));
    let unit = |head: &Head<'_>| u32::from(!head.method.is_safe());
    let used =
        |response: &ResponseHead<'_>| response.headers.get("x-used")?.to_str().ok()?.parse::<u32>().ok();
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(quota)
        .key_by(|_| PartitionKey::new("service", "stacks"))
        .cost_by(unit)
        .exempt(move |head| head.uri.path().starts_with(&prefix))
        .outage_by(|_| OutageRule::FailOpen)
        .settle_by(used)
        .build()
        .unwrap();
    let jobs = tower_sliding_window::by(|job: &String| PartitionKey::new("job", job));
    let app = App {
        service: tower::Layer::layer(&limits, Router::new().route("/", get(hello))),
        jobs: RateLimitLayer::new(limits.limiter().clone(), jobs),
        limits,
    };
    assert_eq!(app.limits.limiter().policies(), app.jobs.limiter().policies());
    assert_eq!(app.service.oneshot(request()).await.unwrap().status().as_u16(), 200);
}

#[test]
fn layers_services_and_bodies_are_send_and_sync() {
    fn is_send_and_sync<T: Send + Sync + 'static>(_: Option<T>) {}
    is_send_and_sync(Some(admitting()));
    is_send_and_sync(None::<RateLimit<Router>>);
    is_send_and_sync(None::<RateLimitLayerBuilder>);
    is_send_and_sync(None::<tower_sliding_window::LimitedBody<Full<bytes::Bytes>>>);
}
