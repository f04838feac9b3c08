//! What a client sees of a denial that is repeated.

use axum::{Router, routing::get};
use http::Request;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{Builder, Decision, RateLimitLayer, Rejection, RouteCosts, answer::Grpc, header};

use super::{Fault, MINUTE, Remote, SECOND, TICK, policy, ten};
use crate::http::wire::{Answer, Site};

const ALICE: (&str, &str) = ("x-api-key", "alice");

fn builder(remote: &Remote) -> Builder {
    RateLimitLayer::builder(remote.clone()).policy(policy("wide", 1_000, 2 * MINUTE)).policy(ten())
}

async fn site(remote: &Remote) -> Site {
    let costs = RouteCosts::new().route("/search", 5).unwrap().route("/export", 11).unwrap();
    let limits = builder(remote).key(header("x-api-key").unwrap()).cost(costs).build().unwrap();
    let app = Router::new().route("/", get(async || "")).route("/{other}", get(async || ""));
    Site::serve(app.layer(limits)).await
}

fn told(answer: &Answer) -> [Option<&str>; 3] {
    ["retry-after", "ratelimit", "ratelimit-policy"].map(|name| answer.header(name))
}

const POLICIES: Option<&str> = Some(r#""wide";q=1000;w=120, "ten";q=10;w=60"#);

#[tokio::test]
async fn it_is_a_429_with_what_is_left_of_the_wait_and_the_policies_of_every_other_answer() {
    let remote = Remote::new();
    let site = site(&remote).await;
    for _ in 0..10 {
        let admitted = site.get("/", &[ALICE]).await;
        assert_eq!((admitted.status, told(&admitted)[2]), (200, POLICIES));
    }
    let first = site.get("/", &[ALICE]).await;
    let asked = remote.asked();
    let again = site.get("/", &[ALICE]).await;
    assert_eq!(remote.asked(), asked, "it is asked again");
    assert_eq!((first.status, again.status), (429, 429));
    assert!(first.header("ratelimit").unwrap().starts_with(r#""wide";r=990;t="#));
    // What is known of it, and what is in force.
    let [wait, limits, policies] = told(&again);
    let wait: u64 = wait.unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(limits, Some(&*format!(r#""ten";r=0;t={wait}"#)));
    assert_eq!(policies, POLICIES);
    assert_eq!(again.header("content-type"), first.header("content-type"));
    assert_eq!(again.header("cache-control"), Some("no-store"));
    assert_eq!(again.json()["violated-policies"], serde_json::json!(["ten"]));
    assert_eq!(again.json()["detail"], format!("Try again in {wait} s."));
    assert_eq!(again.json()["status"], 429);
}

#[tokio::test]
async fn where_no_wait_helps_none_is_told_again() {
    let remote = Remote::new();
    let site = site(&remote).await;
    for asked in [1, 1, 1] {
        let denied = site.get("/export", &[ALICE]).await;
        assert_eq!((denied.status, denied.header("retry-after"), remote.asked()), (429, None, asked));
        assert!(denied.header("ratelimit").unwrap().ends_with(r#""ten";r=10;t=60"#));
        assert_eq!(denied.json()["detail"], "This request costs more than the whole quota.");
    }
}

fn request() -> Request<()> {
    Request::get("/").header("x-api-key", "alice").body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn waits_run_down_and_are_rounded_up_and_the_decision_is_in_the_extensions() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).build().unwrap();
    let (inner, seen) = crate::http::probe::Probe::new();
    let mut service = limits.layer(inner);
    let mut ask = async || service.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(ask().await.status(), 200);
    advance(59 * SECOND - TICK).await;
    assert_eq!(ask().await.headers()["retry-after"], "2");
    let asked = remote.asked();
    for (waited, told) in [(TICK, "1"), (SECOND / 2, "1"), (SECOND / 2 - TICK, "1")] {
        advance(waited).await;
        let denied = ask().await;
        assert_eq!(
            (denied.status().as_u16(), &denied.headers()["retry-after"]),
            (429, &told.parse().unwrap())
        );
        let decision = denied.extensions().get::<Decision>().unwrap();
        assert!(decision.is_cached() || remote.asked() > asked);
        assert!(
            matches!(denied.extensions().get::<Rejection>(), Some(Rejection::Denied(it)) if it == decision)
        );
    }
    assert_eq!(seen.calls(), 1);
    advance(TICK).await;
    assert_eq!(ask().await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_a_429_while_the_store_is_down_and_what_is_not_is_a_503() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).build().unwrap();
    let (inner, _) = crate::http::probe::Probe::new();
    let service = limits.layer(inner);
    let ask = async |user: &str| {
        let request = Request::get("/").header("x-api-key", user).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!([ask("alice").await, ask("alice").await], [200, 429]);
    for fault in [Fault::Down, Fault::Hang] {
        remote.fail(fault);
        // The breaker opens meanwhile.
        for _ in 0..7 {
            assert_eq!([ask("alice").await, ask("bob").await], [429, 503]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn over_grpc_it_is_resource_exhausted_like_any_other() {
    let remote = Remote::new();
    let limits = builder(&remote).key(header("x-api-key").unwrap()).cost(10).answer(Grpc).build().unwrap();
    let (inner, _) = crate::http::probe::Probe::new();
    let mut service = limits.layer(inner);
    let mut ask = async || service.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(ask().await.headers().get("grpc-status"), None);
    let (first, again) = (ask().await, ask().await);
    assert_eq!(remote.asked(), 2);
    assert!(again.extensions().get::<Decision>().unwrap().is_cached());
    for name in
        ["grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-retry-pushback-ms", "retry-after"]
    {
        assert!(first.headers().contains_key(name), "{name}");
        assert_eq!(first.headers()[name], again.headers()[name], "{name}");
    }
    assert_eq!(again.headers()["grpc-status"], "8");
}
