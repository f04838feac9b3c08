//! HTTP and gRPC responses to hits.

use axum::{Router, routing::get};
use http::Request;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    RateLimitLayer, RateLimitLayerBuilder, Rejection, RouteCosts, answer::Grpc, cost, header,
};

use super::{Fault, MINUTE, Remote, SECOND, TICK, policy, ten};
use crate::http::wire::{Answer, Site};

const ALICE: (&str, &str) = ("x-api-key", "alice");

fn builder(remote: &Remote) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(remote.clone()).policy(policy("wide", 1_000, 2 * MINUTE)).policy(ten())
}

async fn site(remote: &Remote) -> Site {
    // A constant cost above the quota would be an error.
    let export = cost::from_fn(|_| 11);
    let costs = RouteCosts::new().route("/search", 5).unwrap().route("/export", export).unwrap();
    let limits = builder(remote).key(header("x-api-key").unwrap()).cost(costs).build().unwrap();
    let app = Router::new().route("/", get(async || "")).route("/{other}", get(async || ""));
    Site::serve(app.layer(limits)).await
}

fn rate_limit_headers(response: &Answer) -> [Option<&str>; 3] {
    ["retry-after", "ratelimit", "ratelimit-policy"].map(|name| response.header(name))
}

const POLICIES: Option<&str> = Some(r#""wide";q=1000;w=120, "ten";q=10;w=60"#);

#[tokio::test]
async fn hit_returns_too_many_requests_with_remaining_wait() {
    let remote = Remote::new();
    let site = site(&remote).await;
    for _ in 0..10 {
        let admitted = site.get("/", &[ALICE]).await;
        assert_eq!((admitted.status, rate_limit_headers(&admitted)[2]), (200, POLICIES));
    }
    let first = site.get("/", &[ALICE]).await;
    let sent = remote.checks();
    let hit = site.get("/", &[ALICE]).await;
    assert_eq!(remote.checks(), sent, "a hit sends no check");
    assert_eq!((first.status, hit.status), (429, 429));
    assert!(first.header("ratelimit").unwrap().starts_with(r#""wide";r=990;t="#));
    // The status of the denying policy, and all policies of the layer.
    let [wait, limits, policies] = rate_limit_headers(&hit);
    let wait: u64 = wait.unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(limits, Some(&*format!(r#""ten";r=0;t={wait}"#)));
    assert_eq!(policies, POLICIES);
    assert_eq!(hit.header("content-type"), first.header("content-type"));
    assert_eq!(hit.header("cache-control"), Some("no-store"));
    assert_eq!(hit.json()["violated-policies"], serde_json::json!(["ten"]));
    assert_eq!(hit.json()["detail"], format!("Try again in {wait} s."));
    assert_eq!(hit.json()["status"], 429);
}

#[tokio::test]
async fn hit_for_cost_above_quota_has_no_retry_after() {
    let remote = Remote::new();
    let site = site(&remote).await;
    for sent in [1, 1, 1] {
        let denied = site.get("/export", &[ALICE]).await;
        assert_eq!((denied.status, denied.header("retry-after"), remote.checks()), (429, None, sent));
        assert!(denied.header("ratelimit").unwrap().ends_with(r#""ten";r=10;t=60"#));
        assert_eq!(denied.json()["detail"], "This request costs more than the whole quota.");
    }
}

fn request() -> Request<()> {
    Request::get("/").header("x-api-key", "alice").body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn hit_rounds_wait_up_and_inserts_decision() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).build().unwrap();
    let (inner, seen) = crate::http::probe::Probe::new();
    let mut service = limits.layer(inner);
    let mut send = async || service.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(send().await.status(), 200);
    advance(59 * SECOND - TICK).await;
    assert_eq!(send().await.headers()["retry-after"], "2");
    let sent = remote.checks();
    for (waited, retry_after) in [(TICK, "1"), (SECOND / 2, "1"), (SECOND / 2 - TICK, "1")] {
        advance(waited).await;
        let denied = send().await;
        assert_eq!(
            (denied.status().as_u16(), &denied.headers()["retry-after"]),
            (429, &retry_after.parse().unwrap())
        );
        let Some(Rejection::Denied(decision)) = denied.extensions().get() else { panic!("{denied:?}") };
        assert!(decision.is_cached() || remote.checks() > sent);
    }
    assert_eq!(seen.calls(), 1);
    advance(TICK).await;
    assert_eq!(send().await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn outage_keeps_cache_hits_and_fails_misses() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).build().unwrap();
    let (inner, _) = crate::http::probe::Probe::new();
    let service = limits.layer(inner);
    let send = async |user: &str| {
        let request = Request::get("/").header("x-api-key", user).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!([send("alice").await, send("alice").await], [200, 429]);
    for fault in [Fault::Down, Fault::Hang] {
        remote.fail(fault);
        // The breaker opens during this loop.
        for _ in 0..7 {
            assert_eq!([send("alice").await, send("bob").await], [429, 503]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_hit_returns_resource_exhausted() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).answer(Grpc).build().unwrap();
    let (inner, _) = crate::http::probe::Probe::new();
    let mut service = limits.layer(inner);
    let mut send = async || service.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(send().await.headers().get("grpc-status"), None);
    let (first, hit) = (send().await, send().await);
    assert_eq!(remote.checks(), 2);
    assert!(matches!(hit.extensions().get(), Some(Rejection::Denied(decision)) if decision.is_cached()));
    for name in
        ["grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms", "retry-after"]
    {
        assert!(first.headers().contains_key(name), "{name}");
        assert_eq!(first.headers()[name], hit.headers()[name], "{name}");
    }
    assert_eq!(hit.headers()["grpc-status"], "8");
}
