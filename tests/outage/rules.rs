//! Outage rules: every rule for every reason.

use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Limiter, MemoryBackend, OutageRule, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, Rejection, Wait,
    answer::Grpc,
    backend::{Pair, Reason, WhenFull},
    header,
    key::{Header, KeyError, MissingKey},
    outage::Share,
    protocol::Draft,
    settle::Settled,
    testing::FakeAnswer::Deny,
    testing::FakeBackend,
};

use super::{Marks, OF_ONE_CHECK, RequestMarks, TICK, alice, deferred, echo_marks, local, marks, on, policy};
use crate::{http::Later, support::events::Events};

fn api_key() -> Header {
    header("x-api-key").unwrap()
}

fn request(path: &str) -> Request<()> {
    Request::get(path).header("x-api-key", "alice").body(()).unwrap()
}

/// Sends a request. Returns the marks of the request if the inner service received it, and the status and marks of the response.
async fn send(limits: &RateLimitLayer, request: Request<()>) -> (Option<Marks>, StatusCode, Marks) {
    let response = limits.layer(service_fn(echo_marks)).oneshot(request).await.unwrap();
    let marks = marks(&response);
    if !marks.decision {
        let fields = ["ratelimit", "ratelimit-policy", "retry-after"];
        assert!(fields.iter().all(|name| !response.headers().contains_key(*name)), "{response:?}");
    }
    let found = response.extensions().get::<RequestMarks>().cloned();
    (found.map(|found| found.0), response.status(), marks)
}

fn immediate_and_deferred(backend: &FakeBackend) -> [RateLimitLayerBuilder; 2] {
    [RateLimitLayer::builder(backend.clone()), RateLimitLayer::builder(Later(backend.clone()))]
}

fn layer(builder: RateLimitLayerBuilder, rule: Option<OutageRule>) -> RateLimitLayer {
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

fn rejected(kind: &'static str, reason: Reason) -> (Option<Marks>, StatusCode, Marks) {
    let marks = Marks { rejection: Some((kind, reason)), ..Marks::default() };
    (None, StatusCode::SERVICE_UNAVAILABLE, marks)
}

#[tokio::test]
async fn outage_rule_decides_and_marks_every_reason() {
    for &reason in Reason::ALL {
        for builder in immediate_and_deferred(&FakeBackend::unavailable(reason)) {
            for rule in [None, Some(OutageRule::FailClosed)] {
                let limits = layer(builder.clone(), rule);
                assert_eq!(
                    send(&limits, request("/")).await,
                    rejected("unavailable", reason),
                    "{rule:?}: the default is to fail closed"
                );
            }

            let limits = layer(builder.clone(), Some(OutageRule::FailOpen));
            let admitted = (Some(unchecked(reason)), StatusCode::OK, unchecked(reason));
            let expected = if reason.is_outage() { admitted } else { rejected("unavailable", reason) };
            assert_eq!(send(&limits, request("/")).await, expected, "{reason:?}: only an outage fails open");

            let limits = layer(builder, Some(local(2)));
            if reason == Reason::Overloaded {
                assert_eq!(
                    send(&limits, request("/")).await,
                    rejected("unavailable", reason),
                    "an overload is no outage"
                );
                continue;
            }
            // The share of five units has room for one charge of three units, but not for two.
            let admitted = (Some(decided_locally(reason)), StatusCode::OK, decided_locally(reason));
            assert_eq!(send(&limits, request("/")).await, admitted, "{reason:?}: the share has room");
            assert_eq!(
                send(&limits, request("/")).await,
                rejected("local fallback denied", reason),
                "{reason:?}: the share is used"
            );
        }
    }
}

#[test]
fn reason_reports_whether_it_concerns_one_check() {
    let found: Vec<_> = Reason::ALL.iter().copied().filter(|reason| reason.is_of_one_check()).collect();
    assert_eq!(found, OF_ONE_CHECK, "the reasons of one check");
}

#[tokio::test(start_paused = true)]
async fn every_rule_waits_for_hanging_store_until_deadline() {
    let rules = [OutageRule::FailClosed, OutageRule::FailOpen, local(2)];
    let expected = [
        rejected("unavailable", Reason::Timeout),
        (Some(unchecked(Reason::Timeout)), StatusCode::OK, unchecked(Reason::Timeout)),
        (Some(decided_locally(Reason::Timeout)), StatusCode::OK, decided_locally(Reason::Timeout)),
    ];
    for (rule, expected) in rules.into_iter().zip(expected) {
        let limits = layer(RateLimitLayer::builder(FakeBackend::hanging()), Some(rule));
        let start = Instant::now();
        assert_eq!(send(&limits, request("/")).await, expected, "{rule:?}: the store hangs");
        let waited = start.elapsed();
        let deadline = Limiter::DEFAULT_DEADLINE;
        assert!((deadline..=deadline + TICK).contains(&waited), "{rule:?}: {waited:?}");
    }
}

#[tokio::test]
async fn outage_rule_changes_no_store_decision() {
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(10)] {
        for builder in immediate_and_deferred(&FakeBackend::admitting()) {
            let decided = Marks { decision: true, ..Marks::default() };
            let expected = (Some(decided.clone()), StatusCode::OK, decided);
            assert_eq!(
                send(&layer(builder, Some(rule)), request("/")).await,
                expected,
                "{rule:?}: the store admits"
            );
        }
        for builder in immediate_and_deferred(&FakeBackend::scripted([Deny(Wait::Never)])) {
            let limits = layer(builder, Some(rule));
            let response = limits.layer(service_fn(echo_marks)).oneshot(request("/")).await.unwrap();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{rule:?}: the store denies");
            assert!(
                matches!(response.extensions().get::<Rejection>(), Some(Rejection::Denied(_))),
                "{rule:?}: the store denies"
            );
        }
    }
}

#[tokio::test]
async fn outage_closure_overrides_layer_rule() {
    let layer = |builder: RateLimitLayerBuilder| {
        builder
            .policy(policy("ten", 10))
            .outage(local(1))
            .key(api_key())
            // Later settings do not replace the closure.
            .outage_by(|head| match head.uri.path() {
                "/export" => OutageRule::FailClosed,
                _ => OutageRule::FailOpen,
            })
            .cost_by(|head| if head.uri.path() == "/export" { 5 } else { 1 })
            .exempt(|head| head.uri.path() == "/health")
            .build()
            .unwrap()
    };
    for builder in immediate_and_deferred(&FakeBackend::unavailable(Reason::Connection)) {
        let limits = layer(builder);
        assert_eq!(
            send(&limits, request("/export")).await,
            rejected("unavailable", Reason::Connection),
            "the closure selects fail closed"
        );
        let marks = unchecked(Reason::Connection);
        assert_eq!(
            send(&limits, request("/")).await,
            (Some(marks.clone()), StatusCode::OK, marks),
            "the closure selects fail open"
        );
        let nothing = Marks::default();
        assert_eq!(
            send(&limits, request("/health")).await,
            (Some(nothing.clone()), StatusCode::OK, nothing),
            "the path is exempt"
        );
    }
}

#[tokio::test]
async fn custom_plan_sets_outage_rule_and_last_rule_wins() {
    let admits = |draft: fn() -> Draft| async move {
        let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::Busy))
            .policy(policy("ten", 10))
            .plan_by(move |_| Ok::<_, KeyError>(draft()))
            .build()
            .unwrap();
        send(&limits, request("/")).await.1 == StatusCode::OK
    };
    let draft = || Draft::check(alice(), 1);
    assert!(!admits(draft).await, "the default is to fail closed");
    assert!(admits(|| Draft::check(alice(), 1).outage(OutageRule::FailOpen)).await, "the draft fails open");
    let other = || Draft::exempt().outage(OutageRule::FailClosed);
    assert!(!other().and(draft()).eq(&draft()), "the outage rule is a part of the draft");
    assert!(
        !admits(|| {
            let fails_closed = Draft::exempt().outage(OutageRule::FailClosed);
            Draft::check(alice(), 1).outage(OutageRule::FailOpen).and(fails_closed)
        })
        .await,
        "the last rule wins: fail closed"
    );
    // A draft without an outage rule keeps the earlier rule.
    assert!(
        admits(|| Draft::check(alice(), 1).outage(OutageRule::FailOpen).and(Draft::exempt())).await,
        "a draft without a rule keeps the earlier one"
    );
}

#[tokio::test]
async fn grpc_outage_returns_unavailable() {
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
        let response = limits.layer(service_fn(echo_marks)).oneshot(request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{rule:?}: a gRPC error has the status 200");
        let status = response.headers().get("grpc-status").map(|value| value.to_str().unwrap());
        assert_eq!(status, code, "{rule:?}");
        assert!(
            !response.headers().contains_key("grpc-retry-pushback-ms"),
            "{rule:?}: an outage states no wait"
        );
        assert!(!response.headers().contains_key("ratelimit"), "{rule:?}: an outage states no quota");
        assert_eq!(
            marks(&response).unchecked.is_some(),
            rule == OutageRule::FailOpen,
            "{rule:?}: the marks of the response"
        );
    }
}

#[tokio::test]
async fn unchecked_layer_keeps_headers_of_other_layer() {
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
        tower::util::BoxCloneService::new(unchecked.layer(checked.layer(service_fn(echo_marks)))),
        tower::util::BoxCloneService::new(checked.layer(unchecked.layer(service_fn(echo_marks)))),
    ] {
        let response = service.oneshot(request("/")).await.unwrap();
        assert_eq!(
            response.headers()["ratelimit"],
            r#""b";r=9;t=60"#,
            "the header is that of the other layer"
        );
        assert_eq!(marks(&response), both, "the response has the marks of both layers");
        assert_eq!(
            response.extensions().get::<RequestMarks>().unwrap().0,
            both,
            "the request has the marks of both layers"
        );
    }
}

#[tokio::test]
async fn custom_rejection_receives_rejection_kind() {
    let limits = RateLimitLayer::builder(FakeBackend::unavailable(Reason::OutOfMemory))
        .policy(policy("ten", 10))
        .outage(local(11))
        .key(api_key())
        .rejection(|rejection, _| {
            let code = match rejection {
                Rejection::LocalFallbackDenied(error) if error.reason() == Reason::OutOfMemory => 507,
                _ => 500,
            };
            http::Response::builder().status(code).body(bytes::Bytes::new()).unwrap()
        })
        .build()
        .unwrap();
    let response = limits.layer(service_fn(echo_marks)).oneshot(request("/")).await.unwrap();
    assert_eq!(
        response.status(),
        507,
        "the rejection is a local fallback denial with the reason of the store"
    );
}

#[tokio::test]
async fn unavailable_body_names_problem_and_no_policy() {
    for rule in [OutageRule::FailClosed, local(11)] {
        let limits = layer(RateLimitLayer::builder(FakeBackend::unavailable(Reason::Busy)), Some(rule));
        let response = limits.layer(service_fn(echo_marks)).oneshot(request("/")).await.unwrap();
        let own = response.headers()["cache-control"].clone();
        let body = response.into_body().into_inner().unwrap_err();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.contains("temporary-reduced-capacity"), "{body}");
        assert!(!body.contains("violated-policies") && !body.contains("quota"), "{body}");
        assert_eq!(own, "no-store", "no cache stores the response");
    }
}

#[tokio::test]
async fn limiter_without_http_distinguishes_outcomes() {
    let backend = FakeBackend::unavailable(Reason::ReadOnly);
    let limiter = |rule| deferred(&backend).outage(rule).build().unwrap();
    assert!(
        matches!(
            limiter(OutageRule::FailClosed).admit(alice()).await,
            Err(Rejection::Unavailable(error)) if error.reason() == Reason::ReadOnly
        ),
        "fail closed returns the error"
    );
    let admission = limiter(OutageRule::FailOpen).admit(alice()).await.unwrap();
    assert!(
        admission.unchecked().is_some_and(|unchecked| unchecked.error().reason() == Reason::ReadOnly),
        "fail open returns the error beside the admission"
    );
    assert!(admission.reservation().is_none(), "an unchecked admission has no reservation");
    assert!(
        admission.decision().is_none() && admission.local().is_none(),
        "an unchecked admission has no decision"
    );
    assert_eq!(
        admission.error().unwrap().reason(),
        Reason::ReadOnly,
        "the admission has the reason of the store"
    );

    let limiter = limiter(local(5));
    let admission = limiter.admit((alice(), 2)).await.unwrap();
    assert!(
        admission.reservation().is_none() && admission.unchecked().is_none(),
        "an admission of the local fallback is a local decision"
    );
    let decided = admission.local().expect("the local fallback has decided");
    let status = &decided.decision().statuses()[0];
    assert_eq!(
        (status.quota().unwrap(), status.remaining(), status.policy().name()),
        (2, 0, "ten"),
        "the status is that of the share"
    );
    assert!(
        matches!(limiter.admit(alice()).await, Err(Rejection::LocalFallbackDenied(_))),
        "the share is used"
    );
    // The rule applies wherever a decision admits. The other methods return the error.
    assert_eq!(
        limiter.check(alice()).await.unwrap_err().reason(),
        Reason::ReadOnly,
        "an outage rule does not apply to `check`"
    );
    assert_eq!(
        limiter.peek(alice()).await.unwrap_err().reason(),
        Reason::ReadOnly,
        "an outage rule does not apply to `peek`"
    );
    assert!(
        matches!(limiter.reserve(alice()).await, Err(Rejection::LocalFallbackDenied(_))),
        "the share is used for a reservation, too"
    );

    let limiter = on(MemoryBackend::new()).outage(OutageRule::FailOpen).build().unwrap();
    for (cost, admitted) in [(10, true), (1, false)] {
        match limiter.admit((alice(), cost)).await {
            Ok(admission) => {
                assert!(admitted && admission.decision().is_some(), "{admission:?}");
                assert!(admission.reservation().is_none(), "`admit` reserves nothing");
            }
            Err(Rejection::Denied(decision)) => assert!(!admitted, "{decision:?}"),
            other => panic!("{other:?}"),
        }
    }
    let nothing = Limiter::builder(MemoryBackend::new()).without_policies().outage(OutageRule::FailOpen);
    let verdict = nothing.build().unwrap().admit(alice()).await;
    assert!(matches!(verdict, Err(Rejection::Misconfigured(_))), "{verdict:?}");
}

#[tokio::test]
async fn full_local_memory_rejects_request() {
    let memory = MemoryBackend::with_max_keys(1).unwrap();
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter =
        deferred(&backend).outage(OutageRule::LocalFallback(Share::whole())).local_memory(memory.clone());
    let limiter = limiter.build().unwrap();
    // Half of the quota of 10 is in use, so the key is not evicted.
    assert!(limiter.admit((alice(), 5)).await.unwrap().local().is_some(), "the memory has room for one key");
    let bob = PartitionKey::new("user", "bob");
    let verdict = limiter.admit(bob).await;
    // The error is the reason of the store.
    assert!(
        matches!(&verdict, Err(Rejection::Unavailable(error)) if error.reason() == Reason::Connection),
        "{verdict:?}"
    );
    assert_eq!((memory.keys(), memory.evicted_keys()), (1, 0), "a key with half of its share is not evicted");
}

#[tokio::test]
async fn full_local_memory_evicts_key_below_half_of_share() {
    let memory = MemoryBackend::with_max_keys(1).unwrap();
    let backend = FakeBackend::unavailable(Reason::Connection);
    let halves = |memory: &MemoryBackend| {
        deferred(&backend)
            .outage(OutageRule::LocalFallback(Share::among(2).unwrap()))
            .local_memory(memory.clone())
            .build()
            .unwrap()
    };
    let limiter = halves(&memory);
    let bob = PartitionKey::new("user", "bob");
    assert!(limiter.admit((alice(), 2)).await.unwrap().local().is_some(), "the memory has room for one key");
    assert!(limiter.admit((bob, 3)).await.unwrap().local().is_some(), "alice's key is evicted");
    assert_eq!(
        (memory.keys(), memory.evicted_keys(), memory.evicted_units()),
        (1, 1, 2),
        "the evicted units are counted"
    );
    // 3 units are more than half of the share of 5, but not of the quota.
    assert!(limiter.admit(alice()).await.is_err(), "bob's key is above half of its share");

    let memory = MemoryBackend::with_max_keys(1).unwrap().when_full(WhenFull::Reject);
    let limiter = halves(&memory);
    assert!(limiter.admit(alice()).await.unwrap().local().is_some(), "the memory has room for one key");
    assert!(
        limiter.admit(PartitionKey::new("user", "bob")).await.is_err(),
        "the memory rejects a key instead of evicting one"
    );
    assert_eq!((memory.keys(), memory.evicted_keys()), (1, 0), "no key is evicted");
}

#[test]
fn outage_rule_adds_no_allocation() {
    let _no_events = Events::ignore();
    let least = |decide: &dyn Fn(PartitionKey)| {
        let keys = (0..5).map(|_| alice());
        keys.map(|key| allocation_counter::measure(|| decide(key)).count_total).min().unwrap()
    };
    let allocations = |rule: Option<OutageRule>| {
        let mut builder = Limiter::builder(MemoryBackend::new()).policy(policy("ten", 1_000));
        if let Some(rule) = rule {
            builder = builder.outage(rule);
        }
        let limiter = builder.build().unwrap();
        for _ in 0..100 {
            let _ = crate::http::probe::now(limiter.admit(alice()));
        }
        least(&|key| drop(crate::http::probe::now(limiter.admit(key))))
    };
    let plain = allocations(None);
    let limiter = on(MemoryBackend::new()).build().unwrap();
    let check = |key| drop(crate::http::probe::now(limiter.check(key)));
    (0..100).for_each(|_| check(alice()));
    assert_eq!(least(&check), plain, "`check` allocates as much as `admit`");
    for rule in [OutageRule::FailClosed, OutageRule::FailOpen, local(2)] {
        assert_eq!(allocations(Some(rule)), plain, "{rule:?}");
    }
}

#[tokio::test]
async fn rule_of_draft_overrides_outage_closure() {
    for (of_draft, of_closure, status) in [
        (OutageRule::FailOpen, OutageRule::FailClosed, StatusCode::OK),
        (OutageRule::FailClosed, OutageRule::FailOpen, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        for builder in immediate_and_deferred(&FakeBackend::unavailable(Reason::Connection)) {
            let builder = builder.policy(policy("ten", 10)).outage_by(move |_| of_closure);
            let limits = builder.plan_by(move |_| Draft::check(alice(), 1).outage(of_draft)).build().unwrap();
            assert_eq!(send(&limits, request("/")).await.1, status, "{of_draft:?}");
        }
    }
}

#[tokio::test]
async fn layer_calls_outage_closure_only_for_checks() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let builder = || {
        let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10));
        builder.outage_by(|head| match head.uri.path() {
            "/" => OutageRule::FailOpen,
            path => panic!("{path} is not checked"),
        })
    };
    let by_plan = builder().plan_by(|head| match head.uri.path() {
        "/" => Draft::check(alice(), 1),
        _ => Draft::exempt(),
    });
    let by_closure = builder().key(api_key()).exempt(|head| head.uri.path() != "/");
    let by_key = builder().missing_key(MissingKey::Exempt).key_by(|head| match head.uri.path() {
        "/" => Some(alice()),
        _ => None,
    });
    for builder in [by_plan, by_closure, by_key] {
        let limits = builder.build().unwrap();
        let marks = unchecked(Reason::Connection);
        assert_eq!(
            send(&limits, request("/")).await,
            (Some(marks.clone()), StatusCode::OK, marks),
            "the closure selects fail open"
        );
        let nothing = Marks::default();
        assert_eq!(
            send(&limits, request("/health")).await,
            (Some(nothing.clone()), StatusCode::OK, nothing),
            "a request without a check has no rule"
        );
    }
    assert_eq!(backend.checks().len(), 3, "one check for each layer");
}

#[tokio::test]
async fn reservation_follows_outage_rule() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    for builder in [deferred(&backend), on(backend.clone())] {
        let limiter = builder.clone().outage(OutageRule::FailOpen).build().unwrap();
        let pairs = [Pair::new(alice(), policy("ten", 10), 1)];
        for reserved in [limiter.reserve(alice()).await, limiter.reserve(pairs).await] {
            let reservation = reserved.expect("fail open admits a reservation");
            assert!(reservation.decision().is_none(), "the store has not decided");
            assert!(
                matches!(reservation.settle(0).await, Settled::Uncharged),
                "an unchecked reservation has nothing to settle"
            );
        }

        let limiter = builder.clone().outage(local(1)).build().unwrap();
        let reservation = limiter.reserve((alice(), 10)).await.expect("the share is the whole quota");
        assert!(
            matches!(limiter.reserve(alice()).await, Err(Rejection::LocalFallbackDenied(_))),
            "the share is used"
        );
        assert!(matches!(reservation.settle(4).await, Settled::Done { .. }), "the share gets a refund");
        assert!(limiter.reserve((alice(), 6)).await.is_ok(), "the refund has made room");

        let limiter = builder.outage(OutageRule::FailClosed).build().unwrap();
        assert!(
            matches!(
                limiter.reserve(alice()).await,
                Err(Rejection::Unavailable(error)) if error.reason() == Reason::Connection
            ),
            "fail closed rejects a reservation"
        );
    }
}

#[tokio::test]
async fn exempt_draft_is_admitted_without_a_charge() {
    let backend = FakeBackend::unavailable(Reason::Connection);
    let limiter = on(backend.clone()).build().unwrap();
    let decision = limiter.check(Draft::exempt()).await.unwrap();
    assert!(decision.is_admitted() && decision.statuses().is_empty(), "{decision:?}");
    let admission = limiter.admit(Draft::exempt()).await.unwrap();
    assert!(admission.decision().is_none() && admission.unchecked().is_none(), "{admission:?}");
    let admission = limiter.wait(Draft::exempt(), std::time::Duration::ZERO).await.unwrap();
    assert!(admission.error().is_none(), "an exempt request needs no wait");
    let reservation = limiter.reserve(Draft::exempt()).await.unwrap();
    assert!(matches!(reservation.settle(5).await, Settled::Uncharged), "nothing was charged");
    assert!(limiter.reset(Draft::exempt()).await.is_ok(), "nothing is cleared");
    assert_eq!(backend.checks().len(), 0, "the backend is not asked");
}

#[tokio::test]
async fn local_outcome_holds_error_of_store() {
    let limiter = deferred(&FakeBackend::unavailable(Reason::Busy)).outage(local(5)).build().unwrap();
    let admission = limiter.admit((alice(), 2)).await.unwrap();
    assert_eq!(
        admission.error().map(|error| error.reason()),
        Some(Reason::Busy),
        "the admission has the reason of the store"
    );
    let rejection = limiter.admit(alice()).await.unwrap_err();
    assert_eq!(
        rejection.error().map(|error| error.reason()),
        Some(Reason::Busy),
        "the rejection has the reason of the store"
    );
    assert!(
        matches!(rejection, Rejection::LocalFallbackDenied(_)) && rejection.decision().is_none(),
        "the share is used, and the store has not decided"
    );
}
