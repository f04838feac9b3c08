//! `FakeBackend`, as a user's unit test uses it, and what the layer does when a backend fails.

use std::{future::pending, time::Duration};

use http::StatusCode;
use tokio::time::{Instant, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    Answer::{Admit, Deny, Unavailable},
    FakeBackend, Limiter, PartitionKey, RateLimitLayer, Reason, Refusal, Wait,
};

use super::{
    Later, MINUTE, SECOND, api_key, policy,
    probe::{Probe, request_of},
};

#[tokio::test]
async fn a_test_says_what_happens_and_sees_what_was_asked() {
    let backend = FakeBackend::denying(Duration::from_secs(7));
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("burst", 1_000, MINUTE))
        .policy(policy("sustained", 5_000, 60 * MINUTE))
        .namespace("shop")
        .key(api_key())
        .cost(100)
        .build()
        .unwrap();
    let (inner, seen) = Probe::new();

    let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();

    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(seen.calls(), 0);
    assert_eq!(backend.checks().len(), 1);
    assert_eq!(backend.checks()[0].pairs[0].cost, 100);
    assert_eq!(backend.checks()[0].namespace, "shop");
    let names: Vec<_> = backend.checks()[0].pairs.iter().map(|pair| pair.policy.name().to_owned()).collect();
    assert_eq!(names, ["burst", "sustained"]);
    assert_eq!(backend.checks()[0].pairs[1].key, PartitionKey::new("header:x-api-key", "alice"));
}

#[tokio::test]
async fn a_script_is_followed_and_its_last_answer_stays() {
    let wait = Wait::For(Duration::from_millis(1_001));
    let backend =
        FakeBackend::scripted([Admit, Deny(wait), Unavailable(Reason::Full), Deny(Wait::Never), Admit]);
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let (inner, seen) = Probe::new();
    let mut service = limits.layer(inner);
    let mut answers = Vec::new();
    for _ in 0..7 {
        let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
        let wait = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        answers.push((response.status().as_u16(), wait, seen.calls()));
    }
    let told = Some("2".to_owned());
    let expected = [
        (200, None, 1),
        (429, told, 1),
        (503, None, 1),
        (429, None, 1),
        (200, None, 2),
        (200, None, 3),
        (200, None, 4),
    ];
    assert_eq!(answers, expected);
    assert_eq!(backend.checks().len(), 7);
}

#[tokio::test]
async fn an_outage_of_every_kind_is_a_503_and_never_a_429_and_is_asked_for_once() {
    for reason in [
        Reason::Timeout,
        Reason::Connection,
        Reason::ReadOnly,
        Reason::OutOfMemory,
        Reason::NoPermission,
        Reason::Busy,
        Reason::CrossSlot,
        Reason::Full,
        Reason::ForeignValue,
        Reason::BrokenReply,
        Reason::Other,
    ] {
        let backend = FakeBackend::unavailable(reason);
        let at_once = RateLimitLayer::builder(backend.clone());
        let later = RateLimitLayer::builder(Later(backend.clone()));
        for (asked, builder) in [(1, at_once), (2, later)] {
            let limits = builder.policy(policy("ten", 10, MINUTE)).key(api_key()).build().unwrap();
            let (inner, seen) = Probe::new();
            let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{reason:?}");
            assert!(!response.headers().contains_key("retry-after"), "{reason:?}");
            assert_eq!((seen.calls(), backend.checks().len()), (0, asked), "{reason:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_hangs_is_a_503_at_the_deadline_to_the_millisecond() {
    for deadline in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(60))] {
        let builder = RateLimitLayer::builder(FakeBackend::hanging()).policy(policy("ten", 10, MINUTE));
        let builder = match deadline {
            None => builder,
            Some(deadline) => builder.deadline(deadline),
        };
        let limits = builder.key(api_key()).build().unwrap();
        let (inner, seen) = Probe::new();
        let start = Instant::now();
        let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();
        let waited = start.elapsed();
        // The timer of tokio goes by milliseconds, and is never early.
        let deadline = deadline.unwrap_or(Limiter::DEFAULT_DEADLINE);
        assert!(
            (deadline..=deadline + Duration::from_millis(1)).contains(&waited),
            "{deadline:?}: {waited:?}"
        );
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let refusal = response.extensions().get::<Refusal>();
        assert!(
            matches!(refusal, Some(Refusal::Unavailable(error)) if error.reason() == Reason::Timeout),
            "{refusal:?}"
        );
        assert_eq!(seen.calls(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_during_its_check_never_reaches_the_inner_service() {
    let backend = FakeBackend::hanging();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .deadline(SECOND)
        .build()
        .unwrap();
    let (inner, seen) = Probe::new();
    let answer = limits.layer(inner).oneshot(request_of("alice"));
    assert!(timeout(SECOND / 2, answer).await.is_err(), "nobody can have answered");
    assert_eq!(backend.checks().len(), 1);
    // Whatever might still go on has an hour to do it.
    assert!(timeout(60 * MINUTE, pending::<()>()).await.is_err());
    assert_eq!(seen.calls(), 0);
    assert_eq!(backend.checks().len(), 1);
}

#[tokio::test]
async fn a_request_that_is_never_polled_asks_a_backend_that_decides_later_nothing() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(Later(backend.clone()))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let (inner, seen) = Probe::new();
    let mut service = limits.layer(inner);
    drop(service.ready().await.unwrap().call(request_of("alice")));
    assert_eq!((seen.calls(), backend.checks().len()), (0, 0));
}
