//! The metrics of a layer: the outcomes of its requests, by the matched route.

use std::convert::Infallible;

use axum::{Router, routing::get};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, MemoryBackend, OutageRule, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, Wait,
    backend::{Backend, Reason},
    by,
    key::KeyError,
    outage::Share,
    protocol::{By, Draft},
    testing::{FakeAnswer, FakeBackend, ManualClock},
    wait::WaitLayer,
};

use super::{ALICE, BOB, Later, MINUTE, SECOND, api_key, policy, wire::Site};
use crate::support::scrape::{Scrape, recorder};

fn limits(backend: impl Backend) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(backend).policy(policy("two", 2, MINUTE)).key(api_key())
}

fn app() -> Router {
    Router::new().route("/users/{id}", get(async || "hello")).route("/health", get(async || "well"))
}

#[tokio::test]
async fn requests_count_by_outcome_and_matched_route() {
    for is_immediate in [true, false] {
        let recorder = recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let memory = MemoryBackend::new().with_clock(&ManualClock::new());
        let builder = if is_immediate { limits(memory) } else { limits(Later(memory)) };
        let limits = builder.exempt(|head| head.uri.path() == "/health").build().unwrap();
        let site = Site::serve(app().layer(limits)).await;
        let has = |series| Scrape::of(&recorder.handle()).has(series);
        // A rate needs a value of 0 before the first outage.
        assert!(has(r#"requests_total{outcome="unavailable"}"#));
        assert!(!has(r#"requests_total{outcome="unavailable",route="/health"}"#));
        site.get("/health", &[]).await;
        assert!(has(r#"requests_total{outcome="unavailable",route="/health"}"#));
        let mut statuses = Vec::new();
        for (path, headers) in [
            ("/users/1", &[ALICE][..]),
            ("/users/2?name=secret", &[ALICE]),
            ("/users/3", &[ALICE]),
            ("/users/4", &[BOB]),
            ("/users/5", &[]),
            ("/health", &[]),
            ("/other", &[BOB]),
        ] {
            statuses.push(site.get(path, headers).await.status);
        }
        assert_eq!(statuses, [200, 200, 429, 200, 400, 200, 404]);
        let scrape = Scrape::of(&recorder.handle());
        let expected = [
            // A request to no route has no label for it.
            (r#"outcome="admitted""#, 1.0),
            (r#"outcome="admitted",route="/users/{id}""#, 3.0),
            (r#"outcome="denied",route="/users/{id}""#, 1.0),
            (r#"outcome="exempt",route="/health""#, 2.0),
            (r#"outcome="invalid_key",route="/users/{id}""#, 1.0),
        ];
        assert_eq!(scrape.non_zero("requests_total"), expected, "{is_immediate}");
        let text = recorder.handle().render();
        for value in ["alice", "bob", "secret", "/users/1", "/other"] {
            assert!(!text.contains(value), "{text}");
        }
    }
}

#[tokio::test]
async fn requests_in_outage_count_by_outage_rule() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let rules = [
        OutageRule::FailClosed,
        OutageRule::FailOpen,
        OutageRule::LocalFallback(Share::among(1).unwrap()),
        // The share is 0.
        OutageRule::LocalFallback(Share::among(3).unwrap()),
    ];
    for rule in rules {
        let limits = limits(FakeBackend::unavailable(Reason::Busy)).outage(rule).build().unwrap();
        // Around the router, no route is matched yet.
        let site = Site::serve(Router::new().fallback_service(app()).layer(limits)).await;
        site.get("/users/1", &[ALICE]).await;
    }
    let misconfigured = tower_sliding_window::key::from_fn(|_| {
        Err::<tower_sliding_window::PartitionKey, _>(tower_sliding_window::key::KeyError::misconfigured(
            "user",
        ))
    });
    let limits = limits(FakeBackend::admitting()).key(misconfigured).build().unwrap();
    let site = Site::serve(app().layer(limits)).await;
    assert_eq!(site.get("/health", &[ALICE]).await.status, 500);
    let expected = [
        (r#"outcome="local_fallback""#, 1.0),
        (r#"outcome="misconfigured",route="/health""#, 1.0),
        (r#"outcome="unavailable""#, 2.0),
        (r#"outcome="unchecked""#, 1.0),
    ];
    assert_eq!(Scrape::of(&recorder.handle()).non_zero("requests_total"), expected);
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_count_once_by_outcome() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let denies = FakeAnswer::Deny(Wait::For(SECOND));
    let backend = FakeBackend::scripted([FakeAnswer::Admit, denies, denies, FakeAnswer::Admit]);
    let limiter = Limiter::builder(backend).policy(policy("one", 1, SECOND)).max_waiting(1);
    let plan = |user: &&'static str| match *user {
        "" => Err(KeyError::missing("user")),
        "root" => Ok(Draft::exempt()),
        user => Ok(Draft::check(PartitionKey::new("user", user), 1)),
    };
    let limits = WaitLayer::new(limiter.build().unwrap(), by(plan)).at_most(MINUTE);
    let short = limits.clone().at_most(SECOND / 2);
    let service = |limits: &WaitLayer<By<&'static str>>| {
        limits.layer(service_fn(async |_: &'static str| Ok::<_, Infallible>(())))
    };
    service(&limits).oneshot("root").await.unwrap();
    service(&limits).oneshot("").await.unwrap_err();
    service(&limits).oneshot("alice").await.unwrap();
    service(&short).oneshot("alice").await.unwrap_err();
    let (waiting, other) = tokio::join!(service(&limits).oneshot("alice"), async {
        tokio::task::yield_now().await;
        service(&limits).oneshot("alice").await
    });
    assert_eq!((waiting.is_ok(), other.is_ok()), (true, false));
    let expected = [
        (r#"outcome="admitted""#, 2.0),
        (r#"outcome="denied""#, 1.0),
        (r#"outcome="exempt""#, 1.0),
        (r#"outcome="invalid_key""#, 1.0),
        (r#"outcome="unavailable""#, 1.0),
    ];
    assert_eq!(Scrape::of(&recorder.handle()).non_zero("requests_total"), expected);
}

#[tokio::test]
async fn near_limit_never_changes_response() {
    let mut answers = Vec::new();
    for fraction in [0.01, 1.0] {
        let memory = MemoryBackend::new().with_clock(&ManualClock::new());
        let limits = limits(memory).near_limit(fraction).build().unwrap();
        let near = limits.limiter().clone();
        let site = Site::serve(app().layer(limits)).await;
        for _ in 0..3 {
            let mut answer = site.get("/users/1", &[ALICE]).await;
            answer.headers.retain(|(name, _)| name != "date");
            answers.push(format!("{answer:?}"));
        }
        assert_eq!(near.stats().near_limit, if fraction == 1.0 { 1 } else { 2 });
    }
    assert_eq!(answers[..3], answers[3..]);
}
