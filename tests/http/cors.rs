//! The layer inside a CORS layer: `.layer(limit).layer(cors)`.

use axum::{Router, routing::get};
use http::{HeaderName, HeaderValue, Method};
use tower_http::cors::CorsLayer;
use tower_sliding_window::{RateLimitLayer, RateLimitLayerBuilder, testing::FakeBackend};

use super::{
    ALICE, MINUTE, SECOND, api_key, policy,
    wire::{Answer, Site},
};

const ORIGIN: (&str, &str) = ("origin", "https://shop.example");

async fn site(backend: &FakeBackend) -> Site {
    site_with(RateLimitLayer::builder(backend.clone()), &["ratelimit", "ratelimit-policy", "retry-after"])
        .await
}

/// Serves an app whose CORS layer exposes these fields.
async fn site_with(builder: RateLimitLayerBuilder, exposed: &[&'static str]) -> Site {
    let limits = builder.policy(policy("ten", 10, MINUTE)).key(api_key()).build().unwrap();
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static(ORIGIN.1))
        .allow_methods([Method::GET])
        .allow_headers([HeaderName::from_static("x-api-key")])
        .expose_headers(exposed.iter().copied().map(HeaderName::from_static).collect::<Vec<_>>());
    Site::serve(Router::new().route("/", get(async || "hello")).layer(limits).layer(cors)).await
}

#[tokio::test]
async fn preflight_request_needs_no_key_and_charges_nothing() {
    let backend = FakeBackend::admitting();
    let site = site(&backend).await;
    let headers =
        [ORIGIN, ("access-control-request-method", "GET"), ("access-control-request-headers", "x-api-key")];
    let answer = site.send("OPTIONS", "/", &headers).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN.1));
    assert_eq!(answer.header("access-control-allow-headers"), Some("x-api-key"));
    assert!(!answer.has_limit_fields(), "{answer:?}");
    assert_eq!(backend.checks(), []);

    assert_eq!(site.get("/", &[ORIGIN, ALICE]).await.status, 200);
    assert_eq!(backend.checks().len(), 1);
}

/// Returns the fields that a browser shows to a script of [`ORIGIN`], by the rules of the Fetch standard for a request without
/// credentials: the safelisted fields, and those that the response exposes.
fn fields_for_script(answer: &Answer) -> Vec<(&str, &str)> {
    let allowed = answer.header("access-control-allow-origin");
    assert!(allowed == Some(ORIGIN.1) || allowed == Some("*"), "the script sees an error: {answer:?}");
    let exposed = answer.header("access-control-expose-headers").unwrap_or_default();
    let safe = ["cache-control", "content-type"];
    let is_visible =
        |name: &str| safe.contains(&name) || exposed.split(',').any(|exposed| exposed.trim() == name);
    let fields = answer.headers.iter().filter(|(name, _)| is_visible(name));
    fields.map(|(name, value)| (&**name, &**value)).collect()
}

#[tokio::test]
async fn browser_script_reads_milliseconds_if_exposed() {
    for exposed in [&["retry-after", "retry-after-ms"][..], &["retry-after"]] {
        let builder = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND)).retry_after_ms();
        let answer = site_with(builder, exposed).await.get("/", &[ORIGIN, ALICE]).await;
        assert_eq!(answer.header("retry-after-ms"), Some("7000"));
        let fields = fields_for_script(&answer);
        assert_eq!(fields.contains(&("retry-after-ms", "7000")), exposed.len() == 2, "{fields:?}");
    }
}

#[tokio::test]
async fn browser_script_reads_fields_of_denial() {
    let answer = site(&FakeBackend::denying(7 * SECOND)).await.get("/", &[ORIGIN, ALICE]).await;
    assert_eq!(answer.status, 429);
    let mut fields = fields_for_script(&answer);
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            ("cache-control", "no-store"),
            ("content-type", "application/problem+json"),
            ("ratelimit", r#""ten";r=0;t=7"#),
            ("ratelimit-policy", r#""ten";q=10;w=60"#),
            ("retry-after", "7"),
        ]
    );
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["ten"]));
}
