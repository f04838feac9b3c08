//! The mistakes of the guide's page "Limits that limit nothing", each beside its remedy, and the warnings about them.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Request},
    middleware::{Next, from_fn},
    routing::{any, get},
};
use http::{Method, StatusCode, request::Builder as RequestBuilder};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;
use tower_sliding_window::{
    ConfigError, Costs, Head, KeyExtractor, Limiter, MemoryBackend, PartitionKey, Policy, PolicyTable,
    RateLimitLayer, RateLimitLayerBuilder, RouteCosts,
    backend::BackendError,
    by,
    key::{MissingKey, TrustedProxies, client_ip},
    limit, peer_ip,
    policy::Tier,
    protocol::Draft,
    settle::by_hand,
    testing::ManualClock,
    wait::WaitLayer,
};

use super::{Later, MINUTE, api_key, policy};
use crate::{docs, support::events::Events};

/// The requests of each test, and the quota of each layer.
const REQUESTS: usize = 100;
const QUOTA: usize = 5;

/// The requests after which a layer warns.
const FIRST_REQUESTS: usize = 1_000;

const CLIENT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// Returns the builder of a layer with the quota.
fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(memory()).policy(five())
}

fn five() -> Policy {
    policy("five", 5, MINUTE)
}

fn app() -> Router {
    Router::new().route("/", get(async || "hello")).route("/users/{id}", get(async || "a user"))
}

fn limited(limits: RateLimitLayerBuilder) -> Router {
    app().layer(limits.build().unwrap())
}

/// Returns a request from the address of this peer.
fn request(peer: impl Into<IpAddr>, head: RequestBuilder) -> Request {
    let mut request = head.body(Body::empty()).unwrap();
    request.extensions_mut().insert(SocketAddr::new(peer.into(), 1234));
    request
}

/// Returns a request that a client sends directly.
fn direct() -> Request {
    request(CLIENT, Request::get("/"))
}

/// Returns a request that a proxy on the same host passes on.
fn proxied() -> Request {
    request(Ipv4Addr::LOCALHOST, Request::get("/").header("x-forwarded-for", CLIENT.to_string()))
}

/// Sends this many requests, and returns how many of them the handler has answered.
async fn send(app: &Router, requests: usize, request: impl Fn(usize) -> Request) -> usize {
    let mut admitted = 0;
    for i in 0..requests {
        let response = app.clone().oneshot(request(i)).await.unwrap();
        admitted += usize::from(response.status() == 200);
    }
    admitted
}

/// Sends the requests to the app with the mistake of this heading of the page, and to the app with the remedy.
async fn compare(heading: &str, mistake: Router, remedy: Router, request: impl Fn(usize) -> Request) {
    assert_is_heading(heading);
    assert_eq!(send(&mistake, REQUESTS, &request).await, REQUESTS, "{heading}: the mistake limits nothing");
    assert_eq!(send(&remedy, REQUESTS, &request).await, QUOTA, "{heading}: the remedy limits");
}

fn headings() -> Vec<String> {
    let page = docs::read("src/guide/limits_nothing.md");
    // Every second part is a block of code.
    let prose = page.split("```").step_by(2).flat_map(str::lines);
    let headings: Vec<_> = prose.filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect();
    // The last section is about the warnings.
    headings[..headings.len() - 1].to_vec()
}

fn assert_is_heading(heading: &str) {
    assert!(headings().iter().any(|known| known == heading), "{heading}: {:?}", headings());
}

#[test]
fn every_mistake_of_page_has_test() {
    let source = include_str!("limits_nothing.rs");
    assert!(headings().len() >= 8, "{:?}", headings());
    for heading in headings() {
        assert!(source.contains(&format!("{heading:?}")), "{heading}: no test");
    }
}

/// The compiler warns about such a line: see `tests/front/mistakes/unread_decision.rs`.
#[tokio::test]
async fn unread_decision_limits_nothing() {
    assert_is_heading("Unread decision");
    let limiter = Limiter::builder(memory()).policy(five()).build().unwrap();
    let unread = async |user: &str| {
        let _unread = limiter.check(PartitionKey::new("user", user)).await?;
        Ok::<_, BackendError>(true)
    };
    let read = async |user: &str| Ok(limiter.check(PartitionKey::new("user", user)).await?.is_admitted());
    let admit = async |user: &str| limiter.admit(PartitionKey::new("user", user)).await.is_ok();
    let mut admitted = [0; 3];
    for _ in 0..REQUESTS {
        admitted[0] += usize::from(unread("alice").await.unwrap());
        admitted[1] += usize::from(read("bob").await.unwrap_or_else(|error: BackendError| panic!("{error}")));
        admitted[2] += usize::from(admit("carol").await);
    }
    assert_eq!(admitted, [REQUESTS, QUOTA, QUOTA]);
}

/// A constant estimate of 0 is an error. A closure that returns it is not seen when the layer is built.
#[tokio::test]
async fn estimate_of_zero_limits_nothing() {
    let settling = || builder().key(peer_ip()).settle_by(|_| Some(1));
    compare("Cost of 0", limited(settling().cost_by(|_| 0)), limited(settling().cost(1)), |_| direct()).await;
}

#[test]
fn constant_estimate_of_zero_is_an_error() {
    let text = |policy| {
        format!(
            "cost 0{policy} in a layer that settles: an estimate of 0 units is always admitted; it must be at least 1, such \
             as what a request usually uses"
        )
    };
    let settling = || builder().policy(policy("tokens", 9, MINUTE)).key(api_key()).settle_by(by_hand);
    let free = || Costs::new().policy("tokens", 0);
    let tiers = |cost: Costs| {
        let builder = RateLimitLayer::builder(memory()).policies_by(|_| five());
        builder.key(api_key()).settle_by(by_hand).cost(cost)
    };
    let further = || limit(peer_ip()).policy(policy("per-address", 9, MINUTE));
    let limiter = Limiter::builder(memory()).policy(five()).build().unwrap();
    let shared = || RateLimitLayer::builder(limiter.clone()).key(api_key()).cost(0);
    for (builder, policy) in [
        (settling().cost(0), r#" for policy "five""#),
        (settling().cost(0).clamp_estimates(), r#" for policy "five""#),
        (settling().cost(free()), r#" for policy "tokens""#),
        (settling().also(further().cost(0)), r#" for policy "per-address""#),
        (shared().settle_by(by_hand), r#" for policy "five""#),
        (tiers(Costs::from(0)), ""),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, ConfigError::ZeroEstimate { .. }), "{error:?}");
        assert_eq!(error.to_string(), text(policy));
    }
    // Without a settlement, the layer may show the usage for free. Some routes may be free.
    for builder in [
        builder().key(api_key()).cost(0),
        shared(),
        settling().cost(RouteCosts::new().route("/status", 0).unwrap()),
        tiers(free()),
    ] {
        builder.build().unwrap();
    }
}

#[tokio::test]
async fn table_by_path_with_unlimited_default_limits_nothing() {
    let limits = |default: Tier, name: for<'a> fn(&Head<'a>) -> Option<&'a str>| {
        let table = PolicyTable::new(default).with("/users/{id}", five());
        limited(RateLimitLayer::builder(memory()).policies(table.choose_by(name)).key(peer_ip()))
    };
    fn of_path<'a>(head: &Head<'a>) -> Option<&'a str> {
        Some(head.uri.path())
    }
    fn of_route<'a>(head: &Head<'a>) -> Option<&'a str> {
        head.extension::<MatchedPath>().map(MatchedPath::as_str)
    }
    let users = |i| request(CLIENT, Request::get(format!("/users/{i}")));
    let heading = "Policy table with an unlimited default";
    compare(heading, limits(Tier::Unlimited, of_path), limits(Tier::Unlimited, of_route), users).await;
    // A limited default covers every path that the table does not name.
    compare(heading, limits(Tier::Unlimited, of_path), limits(five().into(), of_path), users).await;
}

#[tokio::test]
async fn exemption_of_proxy_address_limits_nothing() {
    const INTERNAL: [&str; 2] = ["127.0.0.0/8", "10.0.0.0/8"];
    let behind_proxy = || client_ip().behind(TrustedProxies::networks(["127.0.0.1"]).unwrap());
    let mistake = builder().key(behind_proxy()).exempt(client_ip().is_in(INTERNAL).unwrap());
    let remedy = builder().key(behind_proxy()).exempt(behind_proxy().is_in(INTERNAL).unwrap());
    let heading = "Exemption by address behind a proxy on the same host";
    compare(heading, limited(mistake), limited(remedy), |_| proxied()).await;
}

#[tokio::test]
async fn exemption_of_options_limits_nothing() {
    let handled = Arc::new(AtomicUsize::new(0));
    let app = |limits: RateLimitLayerBuilder| {
        let handled = handled.clone();
        let handler = async move || handled.fetch_add(1, Ordering::Relaxed).to_string();
        Router::new().route("/", any(handler)).layer(limits.build().unwrap())
    };
    let is_preflight = |head: &Head<'_>| {
        let is_named = |name| head.headers.contains_key(name);
        head.method == Method::OPTIONS && is_named("origin") && is_named("access-control-request-method")
    };
    let of = |method: Method| request(CLIENT, Request::builder().method(method).uri("/"));
    let preflight = |_| {
        let head = Request::options("/").header("origin", "https://shop.example");
        request(CLIENT, head.header("access-control-request-method", "GET"))
    };
    let (heading, limits) = ("Exemption of OPTIONS", || builder().key(peer_ip()));
    let exempt = limits().exempt(|head| head.method == Method::OPTIONS);
    compare(heading, app(exempt), app(limits()), |_| of(Method::OPTIONS)).await;
    // A client can write the fields of a preflight request.
    compare(heading, app(limits().exempt(is_preflight)), app(limits()), preflight).await;
    // The CORS layer answers OPTIONS itself.
    let with_cors = app(limits()).layer(CorsLayer::new());
    for (method, expected) in [(Method::OPTIONS, 0), (Method::GET, QUOTA)] {
        handled.store(0, Ordering::Relaxed);
        send(&with_cors, REQUESTS, |_| of(method.clone())).await;
        assert_eq!(handled.load(Ordering::Relaxed), expected, "{method}");
    }
}

#[tokio::test]
async fn layer_before_routes_limits_nothing() {
    let limits = || builder().key(peer_ip()).build().unwrap();
    let mistake = Router::new().layer(limits()).route("/", get(async || "hello"));
    let remedy = Router::new().route("/", get(async || "hello")).layer(limits());
    compare("Layer before the routes", mistake, remedy, |_| direct()).await;
}

#[tokio::test]
async fn merged_and_nested_routers_limit_requests_without_route() {
    assert_is_heading("Merged and nested routers");
    let limits = || {
        let policy = policy("three", 3, MINUTE);
        RateLimitLayer::builder(memory()).policy(policy).key(peer_ip()).build().unwrap()
    };
    let limited = || app().layer(limits());
    let probes = || Router::new().route("/ready", get(async || "ready"));
    let with_fallback = || app().fallback(async || StatusCode::NOT_FOUND).layer(limits());
    let get_six = async |app: Router, path: &'static str| {
        let mut statuses = Vec::new();
        for _ in 0..6 {
            let response = app.clone().oneshot(request(CLIENT, Request::get(path))).await.unwrap();
            statuses.push(response.status().as_u16());
        }
        statuses
    };
    let (nothing, three) = ([404; 6], [404, 404, 404, 429, 429, 429]);
    let routes = [200, 200, 200, 429, 429, 429];
    assert_eq!(get_six(limited().merge(probes()), "/none").await, nothing, "the order of the mistake");
    assert_eq!(get_six(probes().merge(limited()), "/none").await, three, "the order of the remedy");
    assert_eq!(get_six(probes().merge(limited()), "/ready").await, [200; 6], "the probe has no limit");
    for merged in [with_fallback().merge(probes()), probes().merge(with_fallback())] {
        assert_eq!(get_six(merged, "/none").await, three, "a fallback of its own");
    }
    let nested = |app| Router::new().nest("/api", app);
    assert_eq!(get_six(nested(limited()), "/api/none").await, nothing, "the nested mistake");
    let remedy = || nested(app()).layer(limits());
    for path in ["/api/none", "/api/"] {
        assert_eq!(get_six(remedy(), path).await, three, "the nested remedy: {path}");
    }
    assert_eq!(get_six(remedy(), "/api").await, routes);
    // What the section warns of: a fallback after the layer, and `route_layer`.
    let late = app().layer(limits()).fallback(async || StatusCode::NOT_FOUND);
    assert_eq!(get_six(probes().merge(late), "/none").await, nothing, "a fallback after the layer");
    let only_routes = app().route_layer(limits());
    assert_eq!(get_six(probes().merge(only_routes), "/none").await, nothing, "`route_layer`");
    // The routes are limited in any case.
    assert_eq!(get_six(limited().merge(probes()), "/").await, routes);
    assert_eq!(get_six(nested(limited()), "/api").await, routes);
}

/// `nest` removes the prefix from the path that a layer inside reads, and not from the matched path.
#[tokio::test]
async fn only_matched_path_inside_nest_has_prefix() {
    let charged = async |is_inside: bool, table: &str, path: &'static str| {
        let table =
            PolicyTable::new(Tier::Unlimited).lists_exceptions().with(table, policy("exports", 100, MINUTE));
        let limits = builder()
            .policies(table.choose_by(|head| head.extension::<MatchedPath>().map(MatchedPath::as_str)))
            .cost(RouteCosts::new().route(path, 3).unwrap())
            .exempt(move |head| head.uri.path() == path.replace("export", "health"))
            .key(peer_ip())
            .build()
            .unwrap();
        let routes = Router::new().route("/export", get(async || "")).route("/health", get(async || ""));
        let app = match is_inside {
            true => Router::new().nest("/api", routes.layer(limits)),
            false => Router::new().nest("/api", routes).layer(limits),
        };
        let mut fields = Vec::new();
        for path in ["/api/export", "/api/health"] {
            let response = app.clone().oneshot(request(CLIENT, Request::get(path))).await.unwrap();
            let field = response.headers().get("ratelimit").map(|field| field.to_str().unwrap().to_owned());
            fields.push(field.unwrap_or_default());
        }
        fields
    };
    let both = [r#""five";r=2;t=60, "exports";r=97;t=60"#, ""];
    assert_eq!(charged(true, "/api/export", "/export").await, both);
    assert_eq!(charged(false, "/api/export", "/api/export").await, both);
    // The mistakes: a table without the prefix inside, and costs and exemptions without it outside.
    assert_eq!(charged(true, "/export", "/export").await, [r#""five";r=2;t=60"#, ""]);
    let nothing = [r#""five";r=4;t=60, "exports";r=99;t=60"#, r#""five";r=3;t=60"#];
    assert_eq!(charged(false, "/api/export", "/export").await, nothing);
}

#[tokio::test]
async fn exempt_missing_key_alone_limits_nothing() {
    let mistake = || builder().key(api_key()).missing_key(MissingKey::Exempt);
    let shared = MissingKey::Shared(PartitionKey::new("shared", "anonymous"));
    let address = limit(peer_ip()).policy(policy("per-address", 5, MINUTE));
    for remedy in [mistake().also(address), builder().key(api_key()).missing_key(shared)] {
        let heading = "Exempt requests without a key";
        compare(heading, limited(mistake()), limited(remedy), |_| direct()).await;
    }
}

#[tokio::test]
async fn key_of_client_alone_limits_nothing() {
    let mistake = || builder().key(api_key());
    let remedy = mistake().also(limit(peer_ip()).policy(policy("per-address", 5, MINUTE)));
    let invented = |i| request(CLIENT, Request::get("/").header("x-api-key", format!("invented {i}")));
    compare("Key that the client invents", limited(mistake()), limited(remedy), invented).await;
}

#[tokio::test]
async fn layer_for_each_request_limits_nothing() {
    let mistake = app().layer(from_fn(async |request: Request, next: Next| {
        let inner = service_fn(move |request| {
            let next = next.clone();
            async { Ok::<_, Infallible>(next.run(request).await) }
        });
        let limits = builder().key(peer_ip()).build().unwrap().same_body().unwrap();
        limits.layer(inner).oneshot(request).await
    }));
    compare("Layer for each request", mistake, limited(builder().key(peer_ip())), |_| direct()).await;
}

/// Sends the first requests and as many more, and returns the warnings that contain this text.
async fn warnings(app: &Router, text: &str, request: impl Fn(usize) -> Request) -> Vec<String> {
    let (events, _guard) = Events::collect();
    let before = send(app, FIRST_REQUESTS - 1, &request).await;
    assert!(before > 0, "some requests are admitted");
    assert!(!events.text().contains(text), "the layer warns too early: {}", events.text());
    send(app, FIRST_REQUESTS + 1, |i| request(FIRST_REQUESTS - 1 + i)).await;
    events.take().into_iter().filter(|event| event.contains(text)).collect()
}

#[tokio::test]
async fn layer_that_limits_nothing_causes_one_warning() {
    let exempt = || builder().key(peer_ip()).exempt(client_ip().is_in(["127.0.0.1", "203.0.113.7"]).unwrap());
    let table = || PolicyTable::new(Tier::Unlimited).with("/other", five());
    let later = || RateLimitLayer::builder(Later(memory())).policy(five()).key(peer_ip());
    for (name, builder) in [
        ("exempt", exempt()),
        ("missing key", builder().key(api_key()).missing_key(MissingKey::Exempt)),
        ("table", builder().key(peer_ip())),
        ("cost 0", builder().key(peer_ip()).cost_by(|_| 0)),
        ("cost 0 of a store that answers later", later().cost(0)),
        ("plan", builder().plan_by(|_| Draft::exempt())),
    ] {
        // Only the policies of the table apply.
        let builder = match name {
            "table" => RateLimitLayer::builder(memory())
                .policies(table().choose_by(|head| Some(head.uri.path())))
                .key(peer_ip()),
            _ => builder,
        };
        let warnings = warnings(&limited(builder), "limits nothing", |_| direct()).await;
        assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
        assert!(warnings[0].starts_with("WARN "), "{name}: {warnings:?}");
        assert!(warnings[0].contains("`guide::limits_nothing`"), "{name}: {warnings:?}");
        assert!(name == "table" || warnings[0].contains(r#"policies="five""#), "{name}: {warnings:?}");
    }
    // Each layer warns for itself, also over a shared limiter.
    let (events, _guard) = Events::collect();
    let limiter = Limiter::builder(memory()).policy(five()).build().unwrap();
    let layers = [(); 2].map(|()| RateLimitLayer::builder(limiter.clone()).key(peer_ip()));
    for (i, layer) in (1..).zip(layers) {
        send(&limited(layer.exempt(|_| true)), 2 * FIRST_REQUESTS, |_| direct()).await;
        assert_eq!(events.text().matches("limits nothing").count(), i, "{}", events.text());
    }
}

#[tokio::test]
async fn layer_that_limits_one_request_causes_no_warning() {
    for counted in [0, 1, 500, FIRST_REQUESTS - 2] {
        let limits = builder().key(api_key()).missing_key(MissingKey::Exempt);
        let one = |i| match i {
            i if i == counted => request(CLIENT, Request::get("/").header("x-api-key", "alice")),
            _ => direct(),
        };
        let warnings = warnings(&limited(limits), "limits nothing", one).await;
        assert_eq!(warnings, [""; 0], "request {counted} is counted");
    }
    // A denied request and one without a key are limited.
    let (events, _guard) = Events::collect();
    send(&limited(builder().key(peer_ip())), 2 * FIRST_REQUESTS, |_| direct()).await;
    send(&limited(builder().key(api_key())), 2 * FIRST_REQUESTS, |_| direct()).await;
    assert!(!events.text().contains("limits nothing"), "{}", events.text());
}

#[tokio::test]
async fn waiting_layer_that_limits_nothing_causes_one_warning() {
    let (events, _guard) = Events::collect();
    let limiter = Limiter::builder(memory()).policy(five()).build().unwrap();
    let client = WaitLayer::new(limiter, by(|_: &()| Draft::exempt()))
        .layer(service_fn(async |()| Ok::<_, std::io::Error>(())));
    for _ in 0..2 * FIRST_REQUESTS {
        client.clone().oneshot(()).await.unwrap();
    }
    assert_eq!(events.text().matches("limits nothing").count(), 1, "{}", events.text());
}

/// A name, a layer and its requests.
type Case<'a> = (&'a str, RateLimitLayerBuilder, &'a dyn Fn(usize) -> Request);

#[tokio::test]
async fn peer_address_behind_proxy_causes_one_warning() {
    let second = || limit(peer_ip()).policy(policy("per-address", 5, MINUTE));
    let forwarded =
        |_| request(Ipv4Addr::LOCALHOST, Request::get("/").header("forwarded", "for=203.0.113.7"));
    // One request in ten is a health check of the proxy.
    let with_checks = |i| if i % 10 == 0 { direct() } else { proxied() };
    let cases: [Case; 7] = [
        ("peer_ip", builder().key(peer_ip()), &|_| proxied()),
        ("Forwarded", builder().key(peer_ip()), &forwarded),
        ("health checks", builder().key(peer_ip()), &with_checks),
        ("client_ip without proxies", builder().key(client_ip()), &|_| proxied()),
        ("or", builder().key(api_key().or(peer_ip())), &|_| proxied()),
        ("further limit", builder().key_by(|_| PartitionKey::new("a", "b")).also(second()), &|_| proxied()),
        ("two limits", builder().key(peer_ip()).also(second()), &|_| proxied()),
    ];
    for (name, builder, request) in cases {
        let warnings = warnings(&limited(builder), "the peer is a proxy", request).await;
        assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
        assert!(warnings[0].starts_with("WARN "), "{name}: {warnings:?}");
        assert!(warnings[0].contains("`key::client_ip().behind(..)`"), "{name}: {warnings:?}");
        assert!(warnings[0].contains(r#"policies="five"#), "{name}: {warnings:?}");
    }
}

#[tokio::test]
async fn known_or_missing_proxy_causes_no_warning() {
    let proxies = TrustedProxies::networks(["127.0.0.1"]).unwrap();
    let one_in_five_direct = |i| if i % 5 == 0 { direct() } else { proxied() };
    let cases: [Case; 4] = [
        ("trusted proxy", builder().key(client_ip().behind(proxies)), &|_| proxied()),
        ("no proxy", builder().key(peer_ip()), &|_| direct()),
        ("many direct clients", builder().key(peer_ip()), &one_in_five_direct),
        ("another key", builder().key_by(|_| PartitionKey::new("a", "b")), &|_| proxied()),
    ];
    for (name, builder, request) in cases {
        let warnings = warnings(&limited(builder), "the peer is a proxy", request).await;
        assert_eq!(warnings, [""; 0], "{name}");
    }
}
