//! Every rule, for every reason.

use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{Builder, Limiter, MemoryBackend, OutageRule, PartitionKey, RateLimitLayer, Rejection, Wait, header, answer::Grpc, backend::Reason, key::{Header, KeyError}, outage::Share, protocol::Draft, testing::FakeBackend, testing::FakeAnswer::Deny};

use super::{Found, Marks, OF_ONE_CHECK, REASONS, TICK, alice, later, local, look, on, policy};
use crate::http::Later;

fn api_key() -> Header {
    header("x-api-key").unwrap()
}

fn request(path: &str) -> Request<()> {
    Request::get(path).header("x-api-key", "alice").body(()).unwrap()
}

/// What a request finds, or None if it does not get through; and status, fields and marks of its response.
async fn ask(limits: &RateLimitLayer, request: Request<()>) -> (Option<Marks>, StatusCode, Marks) {
    let response = limits.layer(service_fn(look)).oneshot(request).await.unwrap();
    let marks = Marks::of(response.extensions());
    if !marks.decision {
        let fields = ["ratelimit", "ratelimit-policy", "retry-after"];
        assert!(fields.iter().all(|name| !response.headers().contains_key(*name)), "{response:?}");
    }
    let found = response.extensions().get::<Found>().cloned();
    (found.map(|found| found.0), response.status(), marks)
}

fn at_once_and_later(backend: &FakeBackend) -> [Builder; 2] {
    [RateLimitLayer::builder(backend.clone()), RateLimitLayer::builder(Later(backend.clone()))]
}

fn layer(builder: Builder, rule: Option<OutageRule>) -> RateLimitLayer {
    let builder = match rule {
        None => builder,
        Some(rule) => builder.outage(rule),
    };
    builder.policy(policy("ten", 10)).key(api_key()).cost(3).build().unwrap()
}

fn unchecked(reason: Reason) -> Marks {
    Marks { unchecked: Some(reason), ..Marks::default() }
}

fn decided_locally(reason: Reason) -> Marks {
    Marks { local: Some(reason), ..Marks::default() }
}

fn refused(how: &'static str, reason: Reason) -> (Option<Marks>, StatusCode, Marks) {
    let marks = Marks { refusal: Some((how, reason)), ..Marks::default() };
    (None, StatusCode::SERVICE_UNAVAILABLE, marks)
}

#[tokio::test]
async fn every_rule_does_what_it_says_for_every_reason_and_marks_it() {
    for reason in REASONS {
        for builder in at_once_and_later(&FakeBackend::unavailable(reason)) {
            for rule in [None, Some(OutageRule::FailClosed)] {
                let limits = layer(builder.clone(), rule);
                assert_eq!(ask(&limits, request("/")).await, refused("unavailable", reason));
            }

            let limits = layer(builder.clone(), Some(OutageRule::FailOpen));
            let admitted = (Some(unchecked(reason)), StatusCode::OK, unchecked(reason));
            let expected =
                if OF_ONE_CHECK.contains(&reason) { refused("unavailable", reason) } else { admitted };
            assert_eq!(ask(&limits, request("/")).await, expected);

            // A half of ten units has room for three, and not for three more.
            let limits = layer(builder, Some(local(2)));
            let admitted = (Some(decided_locally(reason)), StatusCode::OK, decided_locally(reason));
            assert_eq!(ask(&limits, request("/")).await, admitted);
            assert_eq!(ask(&limits, request("/")).await, refused("beyond share", reason));
        }
    }
}

#[test]
fn which_reasons_are_of_one_check() {
    let found: Vec<_> = REASONS.into_iter().filter(|reason| reason.is_of_one_check()).collect();
    assert_eq!(found, OF_ONE_CHECK);
}

#[tokio::test(start_paused = true)]
async fn whatever_the_rule_is_a_store_that_hangs_is_waited_for_until_the_deadline_and_no_longer() {
    let rules = [OutageRule::FailClosed, OutageRule::FailOpen, local(2)];
    let expected = [
        refused("unavailable", Reason::Timeout),
        (Some(unchecked(Reason::Timeout)), StatusCode::OK, unchecked(Reason::Timeout)),
        (Some(decided_locally(Reason::Timeout)), StatusCode::OK, decided_locally(Reason::Timeout)),
    ];
    for (rule, expected) in rules.into_iter().zip(expected) {
        let limits = layer(RateLimitLayer::builder(FakeBackend::hanging()), Some(rule));
        let start = Instant::now();
        assert_eq!(ask(&limits, request("/")).await, expected);
        let waited = start.elapsed();
        let deadline = Limiter::DEFAULT_DEADLINE;
        assert!((deadline..=deadline + TICK).contains(&waited), "{rule:?}: {waited:?}");
    }
}

#[tokio::test]
async fn what_the_store_decides_no_rule_changes() {
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(10)] {
        for builder in at_once_and_later(&FakeBackend::admitting()) {
            let decided = Marks { decision: true, ..Marks::default() };
            let expected = (Some(decided.clone()), StatusCode::OK, decided);
            assert_eq!(ask(&layer(builder, Some(rule)), request("/")).await, expected);
        }
        for builder in at_once_and_later(&FakeBackend::scripted([Deny(Wait::Never)])) {
            let limits = layer(builder, Some(rule));
            let response = limits.layer(service_fn(look)).oneshot(request("/")).await.unwrap();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(matches!(response.extensions().get::<Rejection>(), Some(Rejection::Denied(_))));
        }
    }
}

#[tokio::test]
async fn a_closure_chooses_for_each_request_and_stands_before_the_layers_rule() {
    let layer = |builder: Builder| {
        builder
            .policy(policy("ten", 10))
            .outage(local(1))
            .key(api_key())
            // Whatever comes after it, it stands.
            .outage_by(|head| match head.uri.path() {
                "/export" => OutageRule::FailClosed,
                _ => OutageRule::FailOpen,
            })
            .cost_by(|head| if head.uri.path() == "/export" { 5 } else { 1 })
            .exempt(|head| head.uri.path() == "/health")
            .build()
            .unwrap()
    };
    for builder in at_once_and_later(&FakeBackend::unavailable(Reason::Connection)) {
        let limits = layer(builder);
        assert_eq!(ask(&limits, request("/export")).await, refused("unavailable", Reason::Connection));
        let marks = unchecked(Reason::Connection);
        assert_eq!(ask(&limits, request("/")).await, (Some(marks.clone()), StatusCode::OK, marks));
        let nothing = Marks::default();
        assert_eq!(ask(&limits, request("/health")).await, (Some(nothing.clone()), StatusCode::OK, nothing));
    }
}

#[tokio::test]
async fn a_plan_of_ones_own_says_the_rule_in_its_draft_and_the_later_of_two_stands() {
    let admits = |draft: fn() -> Draft| async move {
        let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Busy))
            .policy(policy("ten", 10))
            .plan_by(move |_| Ok::<_, KeyError>(draft()))
            .build()
            .unwrap();
        ask(&limits, request("/")).await.1 == StatusCode::OK
    };
    let draft = || Draft::check(alice(), 1);
    assert!(!admits(draft).await);
    assert!(admits(|| Draft::check(alice(), 1).outage(OutageRule::FailOpen)).await);
    let other = || Draft::exempt().outage(OutageRule::FailClosed);
    assert!(!other().and(draft()).eq(&draft()));
    assert!(
        !admits(|| {
            let refuses = Draft::exempt().outage(OutageRule::FailClosed);
            Draft::check(alice(), 1).outage(OutageRule::FailOpen).and(refuses)
        })
        .await
    );
    // One that says nothing takes nothing back.
    assert!(admits(|| Draft::check(alice(), 1).outage(OutageRule::FailOpen).and(Draft::exempt())).await);
}

#[tokio::test]
async fn over_grpc_an_outage_is_unavailable_and_never_exhausted() {
    for (rule, code) in
        [(OutageRule::FailClosed, Some("14")), (local(100), Some("14")), (OutageRule::FailOpen, None)]
    {
        let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Connection))
            .policy(policy("ten", 10))
            .outage(rule)
            .answer(Grpc)
            .key(api_key())
            .build()
            .unwrap();
        let response = limits.layer(service_fn(look)).oneshot(request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let told = response.headers().get("grpc-status").map(|value| value.to_str().unwrap());
        assert_eq!(told, code, "{rule:?}");
        assert!(!response.headers().contains_key("grpc-retry-pushback-ms"));
        assert!(!response.headers().contains_key("ratelimit"));
        assert_eq!(Marks::of(response.extensions()).unchecked.is_some(), rule == OutageRule::FailOpen);
    }
}

#[tokio::test]
async fn a_layer_that_was_not_checked_leaves_what_another_one_says() {
    let unchecked = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Timeout))
        .policy(policy("a", 10))
        .outage(OutageRule::FailOpen)
        .key(api_key())
        .build()
        .unwrap();
    let checked = RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("b", 10))
        .key(api_key())
        .build()
        .unwrap();
    let both = Marks { decision: true, unchecked: Some(Reason::Timeout), ..Marks::default() };
    for service in [
        tower::util::BoxCloneService::new(unchecked.layer(checked.layer(service_fn(look)))),
        tower::util::BoxCloneService::new(checked.layer(unchecked.layer(service_fn(look)))),
    ] {
        let response = service.oneshot(request("/")).await.unwrap();
        assert_eq!(response.headers()["ratelimit"], r#""b";r=9;t=60"#);
        assert_eq!(Marks::of(response.extensions()), both);
        assert_eq!(response.extensions().get::<Found>().unwrap().0, both);
    }
}

#[tokio::test]
async fn a_rejection_of_ones_own_is_told_which_refusal_it_is() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::OutOfMemory))
        .policy(policy("ten", 10))
        .outage(local(11))
        .key(api_key())
        .rejection(|refusal, _| {
            let code = match refusal {
                Rejection::LocalFallbackDenied(error) if error.reason() == Reason::OutOfMemory => 507,
                _ => 500,
            };
            http::Response::builder().status(code).body(bytes::Bytes::new()).unwrap()
        })
        .build()
        .unwrap();
    let response = limits.layer(service_fn(look)).oneshot(request("/")).await.unwrap();
    assert_eq!(response.status(), 507);
}

#[tokio::test]
async fn the_body_of_a_503_names_the_problem_and_no_policy() {
    for rule in [OutageRule::FailClosed, local(11)] {
        let limits = layer(RateLimitLayer::builder(FakeBackend::unavailable(Reason::Busy)), Some(rule));
        let response = limits.layer(service_fn(look)).oneshot(request("/")).await.unwrap();
        let own = response.headers()["cache-control"].clone();
        let body = response.into_body().into_inner().unwrap_err();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.contains("temporary-reduced-capacity"), "{body}");
        assert!(!body.contains("violated-policies") && !body.contains("quota"), "{body}");
        assert_eq!(own, "no-store");
    }
}

#[tokio::test]
async fn without_http_the_limiter_tells_the_same_apart() {
    let backend = FakeBackend::unavailable(Reason::ReadOnly);
    let limiter = |rule| later(&backend).outage(rule).build().unwrap();
    assert!(matches!(
        limiter(OutageRule::FailClosed).admit(alice(), 1).await,
        Err(Rejection::Unavailable(error)) if error.reason() == Reason::ReadOnly
    ));
    let admission = limiter(OutageRule::FailOpen).admit(alice(), 1).await.unwrap();
    assert!(admission.unchecked().is_some_and(|it| it.error().reason() == Reason::ReadOnly));
    assert!(admission.reservation().is_none());
    assert!(admission.decision().is_none() && admission.local().is_none());
    assert_eq!(admission.error().unwrap().reason(), Reason::ReadOnly);

    let limiter = limiter(local(5));
    let admission = limiter.admit(alice(), 2).await.unwrap();
    assert!(admission.reservation().is_none() && admission.unchecked().is_none());
    let decided = admission.local().expect("the local fallback has decided");
    let status = &decided.decision().statuses()[0];
    assert_eq!((status.limit(), status.remaining(), status.policy().name()), (2, 0, "ten"));
    assert!(matches!(limiter.admit(alice(), 1).await, Err(Rejection::LocalFallbackDenied(_))));
    // The rule is for `admit` and for layers. Whoever asks in another way is told the truth.
    assert_eq!(limiter.check(alice(), 1).await.unwrap_err().reason(), Reason::ReadOnly);
    assert_eq!(limiter.peek(alice(), 1).await.unwrap_err().reason(), Reason::ReadOnly);
    assert!(matches!(
        limiter.reserve(alice(), 1).await,
        Err(Rejection::Unavailable(error)) if error.reason() == Reason::ReadOnly
    ));

    let limiter = on(MemoryBackend::new()).outage(OutageRule::FailOpen).build().unwrap();
    for (cost, admitted) in [(10, true), (1, false)] {
        match limiter.admit(alice(), cost).await {
            Ok(admission) => {
                assert!(admitted && admission.decision().is_some(), "{admission:?}");
                assert!(admission.reservation().is_none());
            }
            Err(Rejection::Denied(decision)) => assert!(!admitted, "{decision:?}"),
            other => panic!("{other:?}"),
        }
    }
    let nothing = Limiter::builder(MemoryBackend::new()).without_policies().outage(OutageRule::FailOpen);
    let verdict = nothing.build().unwrap().admit(alice(), 1).await;
    assert!(matches!(verdict, Err(Rejection::Unavailable(_))), "{verdict:?}");
}

#[tokio::test]
async fn a_local_memory_that_is_full_cannot_decide_either() {
    let memory = MemoryBackend::with_max_keys(1).unwrap();
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter =
        later(&backend).outage(OutageRule::LocalFallback(Share::whole())).local_memory(memory.clone());
    let limiter = limiter.build().unwrap();
    assert!(limiter.admit(alice(), 1).await.unwrap().local().is_some());
    let bob = PartitionKey::new("user", "bob");
    let verdict = limiter.admit(bob, 1).await;
    // What is told is why the store could not decide.
    assert!(
        matches!(&verdict, Err(Rejection::Unavailable(error)) if error.reason() == Reason::Connection),
        "{verdict:?}"
    );
    assert_eq!(memory.keys(), 1);
}

#[test]
fn a_plain_request_costs_no_allocation_more_whatever_the_rule_is() {
    use allocation_counter::measure;
    let allocations = |rule: Option<OutageRule>| {
        let mut builder = Limiter::builder(MemoryBackend::new()).policy(policy("ten", 1_000));
        if let Some(rule) = rule {
            builder = builder.outage(rule);
        }
        let limiter = builder.build().unwrap();
        for _ in 0..100 {
            let _ = crate::http::probe::now(limiter.admit(alice(), 1));
        }
        let key = alice();
        measure(|| drop(crate::http::probe::now(limiter.admit(key, 1)))).count_total
    };
    let plain = allocations(None);
    let limiter = on(MemoryBackend::new()).build().unwrap();
    let check = |key| drop(crate::http::probe::now(limiter.check(key, 1)));
    check(alice());
    let key = alice();
    assert_eq!(measure(|| check(key)).count_total, plain);
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(2)] {
        assert_eq!(allocations(Some(rule)), plain, "{rule:?}");
    }
}
