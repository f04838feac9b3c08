//! Nested layers: a limit for one API inside a limit for all requests.

use axum::{Router, body::Body, response::AppendHeaders, routing::get};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_sliding_window::{
    Costs, Decision, Limiter, MemoryBackend, Policy, RateLimitLayer, Rejection, Reservation,
    answer::Dialect,
    backend::{Backend, Reason},
    header,
    settle::by_hand,
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

use super::{ALICE, BOB, Later, MINUTE, SECOND, api_key, policy, wire::Site};
use crate::support::events::Events;

/// Returns the policy name of the extracted decision, which is that of the innermost layer.
async fn handler(decision: Decision) -> String {
    decision.statuses()[0].policy().name().to_owned()
}

fn nested(inner: FakeBackend, outer: FakeBackend) -> Router {
    let layer = |backend, name, quota, window| {
        let limits = RateLimitLayer::builder(backend).policy(policy(name, quota, window)).key(api_key());
        limits.build().unwrap()
    };
    Router::new()
        .route("/", get(handler))
        .layer(layer(inner, "inner", 5, SECOND))
        .layer(layer(outer, "outer", 100, MINUTE))
}

/// Builds a layer with one policy of this name.
fn limits(name: &str) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(FakeBackend::admitting()).policy(policy(name, 9, MINUTE));
    builder.key(api_key()).build().unwrap()
}

/// Wraps a router in a layer with one policy of this name, whose handler settles.
fn settled_by_hand(app: Router, name: &str, backend: FakeBackend) -> Router {
    let builder = RateLimitLayer::builder(backend).policy(policy(name, 9, MINUTE)).key(api_key()).cost(5);
    app.layer(builder.settle_by(by_hand).build().unwrap())
}

fn request() -> Request<Body> {
    Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn admitted_response_lists_policies_of_all_layers() {
    let site = Site::serve(nested(FakeBackend::admitting(), FakeBackend::admitting())).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "inner"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""inner";q=5;w=1, "outer";q=100;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""inner";r=4;t=1, "outer";r=99;t=60"#));
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn outer_layer_passes_denial_of_inner_layer() {
    let app = nested(FakeBackend::denying(7 * SECOND), FakeBackend::admitting());
    let site = Site::serve(app.clone()).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""inner";q=5;w=1, "outer";q=100;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""inner";r=0;t=7, "outer";r=99;t=60"#));
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["inner"]));

    let request = Request::get("/").header("x-api-key", "alice").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert!(
        matches!(response.extensions().get::<Rejection>(), Some(Rejection::Denied(_))),
        "the outer admission does not hide the denial"
    );
}

#[tokio::test]
async fn denial_of_outer_layer_skips_inner_layer() {
    let inner = FakeBackend::admitting();
    let site = Site::serve(nested(inner.clone(), FakeBackend::denying(7 * SECOND))).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
    assert_eq!(answer.header("ratelimit"), Some(r#""outer";r=0;t=7"#));
    assert_eq!(inner.checks(), []);
}

#[tokio::test]
async fn outer_layer_passes_outage_of_inner_layer() {
    let inner = FakeBackend::unavailable(Reason::Connection);
    let app = nested(inner, FakeBackend::scripted([FakeAnswer::Admit]));
    let request = Request::get("/").header("x-api-key", "alice").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(response.headers()["ratelimit"], r#""outer";r=99;t=60"#);
    assert!(matches!(response.extensions().get::<Rejection>(), Some(Rejection::Unavailable(_))));
}

#[tokio::test]
async fn policy_names_separate_layers_on_one_backend() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let layer = |name, quota| {
        let limits = RateLimitLayer::builder(backend.clone()).policy(policy(name, quota, MINUTE));
        limits.key(api_key()).build().unwrap()
    };
    let app = Router::new()
        .route("/narrow", get(async || "").layer(layer("narrow", 1)))
        .route("/", get(async || ""))
        .layer(layer("wide", 3));
    let site = Site::serve(app).await;
    let mut statuses = Vec::new();
    for (path, key) in [("/narrow", ALICE), ("/narrow", ALICE), ("/", ALICE), ("/", ALICE), ("/narrow", BOB)]
    {
        statuses.push(site.get(path, &[key]).await.status);
    }
    // The outer layer admitted and charged the second request before the inner layer denied it.
    assert_eq!(statuses, [200, 429, 200, 429, 200]);
}

#[tokio::test]
async fn denial_of_outer_layer_reaches_response() {
    let app = nested(FakeBackend::admitting(), FakeBackend::denying(7 * SECOND));
    let response = app.oneshot(request()).await.unwrap();
    let Some(Rejection::Denied(decision)) = response.extensions().get() else { panic!("{response:?}") };
    assert_eq!(decision.violated().map(|policy| policy.name()).collect::<Vec<_>>(), ["outer"]);
}

#[tokio::test]
async fn request_holds_reservation_of_inner_layer() {
    let (inner, outer) = (FakeBackend::admitting(), FakeBackend::admitting());
    let app = Router::new().route(
        "/",
        get(async |reservation: Reservation| {
            reservation.settle(1);
        }),
    );
    let app = settled_by_hand(settled_by_hand(app, "inner", inner.clone()), "outer", outer.clone());
    assert_eq!(app.oneshot(request()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(inner.refunds()[0].pairs[0].units, 4);
    assert_eq!((inner.refunds().len(), outer.refunds().len()), (1, 0));
}

#[tokio::test]
async fn fields_of_three_layers_and_handler_join_in_order() {
    let handler = async || [("ratelimit", r#""own";r=1"#), ("ratelimit-policy", r#""own";q=2"#)];
    let app = Router::new().route("/", get(handler));
    let app = app.layer(limits("inner")).layer(limits("middle")).layer(limits("outer"));
    let answer = Site::serve(app).await.get("/", &[ALICE]).await;
    assert_eq!(
        answer.header("ratelimit"),
        Some(r#""own";r=1, "inner";r=8;t=60, "middle";r=8;t=60, "outer";r=8;t=60"#)
    );
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""own";q=2, "inner";q=9;w=60, "middle";q=9;w=60, "outer";q=9;w=60"#)
    );
}

#[tokio::test]
async fn field_in_two_lines_becomes_one_line() {
    let handler = async || AppendHeaders([("ratelimit", r#""a";r=1"#), ("ratelimit", r#""b";r=2"#)]);
    let app = Router::new().route("/", get(handler)).layer(limits("ten"));
    let answer = Site::serve(app).await.get("/", &[ALICE]).await;
    assert_eq!(answer.header("ratelimit"), Some(r#""a";r=1, "b";r=2, "ten";r=8;t=60"#));
}

/// A client ignores a field of which any part is malformed (RFC 9651, section 4.2).
#[tokio::test]
async fn value_that_is_no_list_of_dialect_is_replaced() {
    const POLICY: [&str; 2] = [r#""ten";q=9;w=60"#, "9;w=60"];
    const LIMIT: [&str; 2] = [r#""ten";r=8;t=60"#, "limit=9, remaining=8, reset=60"];
    for (dialect, other, form) in [(Dialect::Draft11, 1, 0), (Dialect::Draft7, 0, 1)] {
        let builder = RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 9, MINUTE));
        let layer = builder.key(api_key()).dialect(dialect).build().unwrap();
        for (stated_policy, stated_limit) in [
            (POLICY[other], LIMIT[other]),
            ("unquoted name;q=1", "5 of 9"),
            (r#"("a" "b")"#, r#"("a");r=1"#),
            (r#""a";q=1,"#, r#""a";r=1,"#),
        ] {
            let handler = async move || [("ratelimit-policy", stated_policy), ("ratelimit", stated_limit)];
            let app = Router::new().route("/", get(handler)).layer(layer.clone());
            let answer = Site::serve(app).await.get("/", &[ALICE]).await;
            let fields = (answer.header("ratelimit-policy"), answer.header("ratelimit"));
            assert_eq!(fields, (Some(POLICY[form]), Some(LIMIT[form])), "{dialect:?}, {stated_limit}");
        }
    }
}

#[tokio::test]
async fn admission_keeps_retry_after_of_handler() {
    let handler = async || (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "30")]);
    let app = Router::new().route("/", get(handler)).layer(limits("ten"));
    let answer = Site::serve(app).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("30")));
}

/// Builds a layer of its own limiter with these policies.
fn layer_on(backend: impl Backend, policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).key(api_key());
    policies.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

/// Sends requests through these layers, the innermost first, and returns the events about double charges and the last answer.
async fn double_charges<const N: usize>(layers: [RateLimitLayer; N]) -> (Vec<String>, super::wire::Answer) {
    let (events, _guard) = Events::collect();
    let app = Router::new().route("/", get(async || ""));
    let site = Site::serve(layers.into_iter().fold(app, |app, layer| app.layer(layer))).await;
    for _ in 0..5 {
        assert_eq!(site.get("/", &[ALICE, ("x-project", "a")]).await.status, 200);
    }
    let answer = site.get("/", &[ALICE, ("x-project", "a")]).await;
    (events.take().into_iter().filter(|event| event.contains("charged twice")).collect(), answer)
}

#[tokio::test]
async fn same_pair_in_nested_layers_causes_one_event() {
    let layer = layer_on(MemoryBackend::new(), [policy("hourly", 100, 60 * MINUTE)]);
    let (events, answer) = double_charges([layer.clone(), layer]).await;
    assert_eq!(events.len(), 1, "{events:?}");
    for part in ["WARN", "charged twice", r#"policy="hourly""#, r#"namespace="tsw""#] {
        assert!(events[0].contains(part), "{part}: {events:?}");
    }
    // Each of six requests is charged twice.
    assert!(answer.header("ratelimit").unwrap().contains(r#""hourly";r=88;"#), "{answer:?}");
}

#[tokio::test]
async fn double_charge_causes_one_event_per_policy() {
    let backend = MemoryBackend::new();
    let [one, two, three] = ["one", "two", "three"].map(|name| policy(name, 100, MINUTE));
    // The quota may differ, because both layers count the same usage.
    let two_again = policy("two", 90, MINUTE);
    let inner = layer_on(backend.clone(), [one.clone(), two_again, three]);
    let (events, _) = double_charges([inner, layer_on(backend, [one, two])]).await;
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].contains(r#"policy="one""#) && events[1].contains(r#"policy="two""#), "{events:?}");
}

#[tokio::test]
async fn double_charge_is_found_through_other_layers() {
    let layer = |name| layer_on(MemoryBackend::new(), [policy(name, 100, MINUTE)]);
    let (twice, between) = (layer("outer"), layer("middle"));
    let (events, _) = double_charges([twice.clone(), between, twice]).await;
    assert!(events.len() == 1 && events[0].contains(r#"policy="outer""#), "{events:?}");
}

#[tokio::test]
async fn double_charge_of_waiting_backend_causes_one_event() {
    // The backend has no name, so only one layer has the same store twice.
    let layer = layer_on(Later(MemoryBackend::new()), [policy("hourly", 100, 60 * MINUTE)]);
    let (events, _) = double_charges([layer.clone(), layer]).await;
    assert_eq!(events.len(), 1, "{events:?}");
}

#[tokio::test]
async fn double_charge_of_reservations_causes_one_event() {
    let backend = MemoryBackend::new();
    let reserving = |backend: MemoryBackend| {
        let builder = RateLimitLayer::builder(backend).policy(policy("hourly", 100, 60 * MINUTE));
        builder.key(api_key()).settle_by(by_hand).build().unwrap()
    };
    let charging = |backend: MemoryBackend| layer_on(backend, [policy("hourly", 100, 60 * MINUTE)]);
    let (events, _) = double_charges([reserving(backend.clone()), reserving(backend)]).await;
    assert_eq!(events.len(), 1, "{events:?}");
    let backend = MemoryBackend::new();
    let (events, _) = double_charges([charging(backend.clone()), reserving(backend)]).await;
    assert_eq!(events.len(), 1, "{events:?}");
    let backend = MemoryBackend::new();
    let (events, _) = double_charges([reserving(backend.clone()), charging(backend)]).await;
    assert_eq!(events.len(), 1, "{events:?}");
}

#[tokio::test]
async fn different_pairs_in_nested_layers_cause_no_event() {
    let backend = MemoryBackend::new();
    let hourly = || policy("hourly", 100, 60 * MINUTE);
    let builder = || RateLimitLayer::builder(backend.clone()).policy(hourly());
    let layer = builder().key(api_key()).build().unwrap();
    let others = [
        // Another name, window, store, namespace, region, or key, or a cost of zero.
        layer_on(backend.clone(), [policy("daily", 100, 60 * MINUTE)]),
        layer_on(backend.clone(), [policy("hourly", 100, MINUTE)]),
        layer_on(MemoryBackend::new(), [hourly()]),
        builder().key(api_key()).namespace("other").build().unwrap(),
        builder().key(api_key()).region("eu").build().unwrap(),
        builder().key(header("x-project").unwrap()).build().unwrap(),
        builder().key(api_key()).cost(0).build().unwrap(),
    ];
    for (i, other) in others.into_iter().enumerate() {
        let (events, answer) = double_charges([layer.clone(), other]).await;
        assert_eq!((events, answer.status), (vec![], 200), "{i}");
    }
}

#[tokio::test]
async fn layer_beside_another_causes_no_event() {
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy("hourly", 100, 60 * MINUTE));
    let limiter = limiter.build().unwrap();
    let layer = |cost: u32| {
        let builder = RateLimitLayer::builder(limiter.clone()).key(api_key());
        builder.cost(Costs::from(cost)).build().unwrap()
    };
    let (events, _guard) = Events::collect();
    let app = Router::new()
        .route("/cheap", get(async || "").layer(layer(1)))
        .route("/expensive", get(async || "").layer(layer(5)));
    let site = Site::serve(app).await;
    for path in ["/cheap", "/expensive", "/cheap"] {
        assert_eq!(site.get(path, &[ALICE]).await.status, 200);
    }
    assert_eq!(events.take(), [""; 0]);
}
