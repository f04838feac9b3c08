//! The cost of requests.

use axum::{
    Router,
    routing::{get, post},
};
use tower_sliding_window::{
    Algorithm, ConfigError, CostFunction, Costs, Limiter, MemoryBackend, Policy, RateLimitLayer,
    RateLimitLayerBuilder, RouteCosts, cost, limit,
    testing::{FakeBackend, ManualClock},
};

use super::{
    ALICE, MINUTE, api_key, policy,
    wire::{Site, request_with_body},
};

fn app() -> Router {
    Router::new()
        .route("/", get(async || "").post(async || ""))
        .route("/search", get(async || ""))
        .route("/free", get(async || ""))
        .route("/users/{id}", get(async || ""))
}

/// Returns the costs of the checks that these requests cause.
async fn recorded_costs(cost: impl CostFunction, requests: &[(&str, &str)]) -> Vec<u32> {
    recorded_costs_with(|builder| builder.cost(cost), requests).await
}

/// Returns the costs of the checks that these requests cause in a layer with these settings.
async fn recorded_costs_with(
    set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
    requests: &[(&str, &str)],
) -> Vec<u32> {
    let backend = FakeBackend::admitting();
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE)).key(api_key());
    let limits = set(builder).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for (method, path) in requests {
        assert_eq!(site.send(method, path, &[ALICE]).await.status, 200, "{method} {path}");
    }
    backend.checks().iter().map(|check| check.pairs[0].cost).collect()
}

/// The router of axum compares paths in the same way, so it has no handler for such a path.
#[tokio::test]
async fn path_in_other_spelling_costs_otherwise() {
    let backend = FakeBackend::admitting();
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE)).key(api_key());
    let costs = RouteCosts::new().route("/search", 5).unwrap().otherwise(9);
    let site = Site::serve(app().layer(builder.cost(costs).build().unwrap())).await;
    let paths = ["/search", "/%73earch", "//search", "/search/", "/./search", "/Search"];
    for path in paths {
        let (status, cost) = if path == "/search" { (200, 5) } else { (404, 9) };
        assert_eq!(site.get(path, &[ALICE]).await.status, status, "{path}");
        assert_eq!(backend.checks().last().unwrap().pairs[0].cost, cost, "{path}");
    }
}

#[tokio::test]
async fn layer_accepts_route_table_number_and_closure_as_cost() {
    let table = RouteCosts::new().route("/search", 5).unwrap().route("/users/{id}", 2).unwrap();
    let requests = [("GET", "/"), ("GET", "/search?q=%2F"), ("GET", "/users/7")];
    assert_eq!(recorded_costs(table, &requests).await, [1, 5, 2]);

    assert_eq!(recorded_costs(3, &requests).await, [3, 3, 3]);

    let by_method = cost::from_fn(|head| if head.method.is_safe() { 1 } else { 4 });
    assert_eq!(recorded_costs(by_method, &[("GET", "/"), ("POST", "/")]).await, [1, 4]);

    let requests = [("GET", "/"), ("GET", "/search")];
    let costs_by_closure =
        recorded_costs_with(|builder| builder.cost_by(|head| head.uri.path().len() as u32), &requests);
    assert_eq!(costs_by_closure.await, [1, 7]);
}

#[tokio::test]
async fn layer_admits_smaller_cost_after_denying_larger_cost() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .cost(RouteCosts::new().route("/search", 5).unwrap().route("/free", 0).unwrap())
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for (path, status, left) in [
        ("/search", 200, 5),
        ("/", 200, 4),
        ("/search", 429, 4),
        ("/", 200, 3),
        ("/", 200, 2),
        ("/", 200, 1),
        ("/", 200, 0),
        ("/", 429, 0),
        // The store always admits a cost of 0.
        ("/free", 200, 0),
    ] {
        let answer = site.get(path, &[ALICE]).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert_eq!(answer.header("ratelimit"), Some(&*format!(r#""ten";r={left};t=60"#)), "{path}");
    }
}

#[test]
fn constant_cost_that_overfills_log_is_error() {
    const MAX: u32 = 1 << 20;
    let with = |policy: Policy| RateLimitLayer::builder(MemoryBackend::new()).policy(policy).key(api_key());
    let of = |quota| policy("many", quota, MINUTE);
    let text = |builder: RateLimitLayerBuilder| builder.build().map(drop).map_err(|error| error.to_string());
    assert_eq!(
        text(with(of(MAX + 1))),
        Err("cost 1: the quota of 1048577 of policy \"many\" allows 1048577 charges in a window, and a sliding log holds \
             1048576; use `Algorithm::SlidingBuckets`, or a quota of at most 1048576"
            .to_owned())
    );
    assert_eq!(text(with(of(MAX))), Ok(()), "a log holds this number of charges");
    assert_eq!(text(with(of(2 * MAX)).cost(2)), Ok(()), "fewer charges fit into the quota");
    // The cost of all other routes is 1.
    let routes = || RouteCosts::new().route("/search", 3).unwrap();
    let error = text(with(of(2 * MAX)).cost(routes())).unwrap_err();
    assert!(error.starts_with("cost 1 of all other routes: "), "{error}");
    let error = text(with(of(4 * MAX)).cost(routes().otherwise(4))).unwrap_err();
    assert!(error.starts_with("cost 3 of /search: the quota of 4194304 "), "{error}");

    let is_error =
        |builder: RateLimitLayerBuilder| matches!(builder.build(), Err(ConfigError::TooManyCharges { .. }));
    assert!(is_error(with(of(u32::MAX).shadow())), "a full log of a shadow policy fails requests, too");
    let further = limit(api_key()).policy(policy("further", u32::MAX, MINUTE));
    assert!(is_error(with(of(10)).also(further)), "a further limit has the same rule");
    let limiter = Limiter::builder(MemoryBackend::new()).policy(of(u32::MAX)).build();
    let limiter = limiter.expect("a limiter does not know the costs of its calls");
    assert!(is_error(RateLimitLayer::builder(limiter.clone()).key(api_key())), "a shared limiter");

    for algorithm in [
        Algorithm::SlidingBuckets { precision: MINUTE / 60 },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
    ] {
        assert_eq!(text(with(of(u32::MAX).with_algorithm(algorithm).unwrap())), Ok(()), "{algorithm:?}");
    }
    assert_eq!(text(with(of(u32::MAX)).cost(0)), Ok(()), "a cost of 0 is not recorded");
    assert_eq!(text(with(of(u32::MAX)).cost_by(|_| 1)), Ok(()), "the cost of a closure is not constant");
}

#[tokio::test]
async fn route_table_distinguishes_methods() {
    let costs = RouteCosts::new().get("/", 2).unwrap().route("/", 3).unwrap();
    let costs = costs.get("/users/{id}", 4).unwrap().otherwise(9);
    let requests = [
        ("GET", "/?a"),
        ("HEAD", "/"),
        ("POST", "/"),
        ("GET", "/users/7"),
        ("HEAD", "/users/7"),
        ("GET", "/free"),
    ];
    assert_eq!(recorded_costs(costs, &requests).await, [2, 2, 3, 4, 4, 9]);
}

#[tokio::test]
async fn content_length_sets_cost_of_upload() {
    let backend = FakeBackend::admitting();
    let by_size = cost::by_content_length(1024).unwrap();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("units", 100, MINUTE))
        .key(api_key())
        .cost(
            RouteCosts::new()
                .post("/upload/{id}", by_size)
                .unwrap()
                .post("/strict", by_size.otherwise(50))
                .unwrap(),
        )
        .build()
        .unwrap();
    let upload = || post(async |_: String| "");
    let app = Router::new().route("/upload/{id}", upload()).route("/strict", upload());
    let site = Site::serve(app.layer(limits)).await;
    for (path, length) in
        [("/upload/7", 1), ("/upload/7", 1024), ("/upload/7", 1025), ("/strict", 2500), ("/strict", 0)]
    {
        let body = "x".repeat(length);
        assert_eq!(request_with_body(site.address(), "POST", path, &[ALICE], &body).await.status, 200);
    }
    let costs: Vec<u32> = backend.checks().iter().map(|check| check.pairs[0].cost).collect();
    assert_eq!(costs, [1, 1, 2, 3, 50]);
}

#[tokio::test]
async fn each_policy_charges_its_own_cost() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("requests", 3, MINUTE))
        .policy(policy("tokens", 1_000, MINUTE))
        .key(api_key())
        .cost_by(|head| {
            let tokens = head.headers.get("x-tokens").and_then(|value| value.to_str().ok()?.parse().ok());
            Costs::new().policy("tokens", tokens.unwrap_or(0))
        })
        .build()
        .unwrap();
    let site = Site::serve(app().layer(limits)).await;
    for (tokens, status, left) in [
        ("700", 200, (2, 300)),
        ("301", 429, (2, 300)),
        ("300", 200, (1, 0)),
        ("0", 200, (0, 0)),
        ("0", 429, (0, 0)),
    ] {
        let answer = site.get("/", &[ALICE, ("x-tokens", tokens)]).await;
        assert_eq!(answer.status, status, "{tokens}: {answer:?}");
        let (requests, tokens) = left;
        let expected = format!(r#""requests";r={requests};t=60, "tokens";r={tokens};t=60"#);
        assert_eq!(answer.header("ratelimit"), Some(&*expected));
    }
}

#[tokio::test]
async fn layer_accepts_costs_per_policy_and_per_route() {
    let of_tokens = |units| Costs::new().policy("ten", units).otherwise(9);
    assert_eq!(recorded_costs(of_tokens(4), &[("GET", "/")]).await, [4]);
    let table = RouteCosts::new().route("/search", of_tokens(7)).unwrap().otherwise(of_tokens(2));
    assert_eq!(recorded_costs(table, &[("GET", "/search"), ("GET", "/")]).await, [7, 2]);
    let requests = [("GET", "/")];
    assert_eq!(recorded_costs_with(|builder| builder.cost_by(move |_| of_tokens(5)), &requests).await, [5]);
}
