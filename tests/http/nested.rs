//! Layers around layers: an API with a limit of its own inside a limit for everything.

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_sliding_window::{
    Answer, Decision, FakeBackend, ManualClock, MemoryBackend, RateLimitLayer, Reason, Refusal,
};

use super::{ALICE, BOB, MINUTE, SECOND, api_key, policy, wire::Site};

/// What the handler sees is the innermost decision.
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

#[tokio::test]
async fn an_admitted_answer_lists_the_policies_of_all_layers_in_one_line() {
    let site = Site::serve(nested(FakeBackend::admitting(), FakeBackend::admitting())).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "inner"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""inner";q=5;w=1, "outer";q=100;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""inner";r=4;t=1, "outer";r=99;t=60"#));
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn the_inner_layers_denial_comes_through_the_outer_layer_whole() {
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
    let decision = response.extensions().get::<Decision>().unwrap();
    assert!(!decision.is_admitted(), "the outer admission does not hide the denial");
    assert!(
        matches!(response.extensions().get::<Refusal>(), Some(Refusal::Denied(held)) if held == decision)
    );
}

#[tokio::test]
async fn the_outer_layers_denial_asks_the_inner_layer_nothing() {
    let inner = FakeBackend::admitting();
    let site = Site::serve(nested(inner.clone(), FakeBackend::denying(7 * SECOND))).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
    assert_eq!(answer.header("ratelimit"), Some(r#""outer";r=0;t=7"#));
    assert_eq!(inner.checks(), []);
}

#[tokio::test]
async fn an_outage_inside_is_no_denial_outside() {
    let inner = FakeBackend::unavailable(Reason::Connection);
    let app = nested(inner, FakeBackend::scripted([Answer::Admit]));
    let request = Request::get("/").header("x-api-key", "alice").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(response.headers()["ratelimit"], r#""outer";r=99;t=60"#);
    assert!(matches!(response.extensions().get::<Refusal>(), Some(Refusal::Unavailable(_))));
}

#[tokio::test]
async fn layers_on_one_backend_count_apart_by_the_names_of_their_policies() {
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
    // The second was admitted by the outer layer, and charged there, before the inner one refused it.
    assert_eq!(statuses, [200, 429, 200, 429, 200]);
}
