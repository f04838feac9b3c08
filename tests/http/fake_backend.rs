//! `FakeBackend` in unit tests, and the layer over a failing backend.

use std::{future::pending, time::Duration};

use http::StatusCode;
use tokio::time::{Instant, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    Limiter, PartitionKey, RateLimitLayer, Rejection, Wait,
    backend::{Purpose, Reason},
    settle::{Settled, TokenError},
    testing::{
        FakeAnswer::{Admit, Deny, Hang, Unavailable},
        FakeBackend,
    },
};

use super::{
    Later, MINUTE, SECOND, api_key, policy,
    probe::{Probe, now, request_of},
};

/// Builds a layer of ten units per API key.
fn limits(backend: &FakeBackend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE));
    builder.key(api_key()).deadline(SECOND).build().unwrap()
}

/// Builds a limiter of two policies over this backend.
fn limiter(backend: &FakeBackend) -> Limiter {
    let builder = Limiter::builder(backend.clone()).namespace("shop");
    builder.policy(policy("ten", 10, MINUTE)).policy(policy("day", 100, 1_440 * MINUTE)).build().unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

#[tokio::test]
async fn fake_backend_denies_and_records_check() {
    let backend = FakeBackend::denying(Duration::from_secs(7));
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("burst", 1_000, MINUTE))
        .policy(policy("sustained", 5_000, 60 * MINUTE))
        .namespace("shop")
        .key(api_key())
        .cost(100)
        .build()
        .unwrap();
    let (inner, counter) = Probe::new();

    let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();

    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(counter.calls(), 0);
    assert_eq!(backend.checks().len(), 1);
    assert_eq!(backend.checks()[0].pairs[0].cost, 100);
    assert_eq!(backend.checks()[0].namespace, "shop");
    let names: Vec<_> = backend.checks()[0].pairs.iter().map(|pair| pair.policy.name().to_owned()).collect();
    assert_eq!(names, ["burst", "sustained"]);
    assert_eq!(backend.checks()[0].pairs[1].key, PartitionKey::new("header:x-api-key", "alice"));
}

#[tokio::test]
async fn script_repeats_its_last_answer() {
    let wait = Wait::For(Duration::from_millis(1_001));
    let backend =
        FakeBackend::scripted([Admit, Deny(wait), Unavailable(Reason::Full), Deny(Wait::Never), Admit]);
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let (inner, counter) = Probe::new();
    let mut service = limits.layer(inner);
    let mut answers = Vec::new();
    for _ in 0..7 {
        let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
        let wait = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        answers.push((response.status().as_u16(), wait, counter.calls()));
    }
    let retry_after = Some("2".to_owned());
    let expected = [
        (200, None, 1),
        (429, retry_after, 1),
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
async fn outage_of_every_reason_rejects_request_without_retry() {
    for &reason in Reason::ALL {
        let backend = FakeBackend::unavailable(reason);
        let immediate = RateLimitLayer::builder(backend.clone());
        let delayed = RateLimitLayer::builder(Later(backend.clone()));
        for (checks, builder) in [(1, immediate), (2, delayed)] {
            let limits = builder.policy(policy("ten", 10, MINUTE)).key(api_key()).build().unwrap();
            let (inner, counter) = Probe::new();
            let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{reason:?}");
            assert!(!response.headers().contains_key("retry-after"), "{reason:?}");
            assert_eq!((counter.calls(), backend.checks().len()), (0, checks), "{reason:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_backend_causes_rejection_at_deadline() {
    for deadline in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(60))] {
        let builder = RateLimitLayer::builder(FakeBackend::hanging()).policy(policy("ten", 10, MINUTE));
        let builder = match deadline {
            None => builder,
            Some(deadline) => builder.deadline(deadline),
        };
        let limits = builder.key(api_key()).build().unwrap();
        let (inner, counter) = Probe::new();
        let start = Instant::now();
        let response = limits.layer(inner).oneshot(request_of("alice")).await.unwrap();
        let waited = start.elapsed();
        // The timer of tokio has a resolution of one millisecond and never fires early.
        let deadline = deadline.unwrap_or(Limiter::DEFAULT_DEADLINE);
        assert!(
            (deadline..=deadline + Duration::from_millis(1)).contains(&waited),
            "{deadline:?}: {waited:?}"
        );
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let rejection = response.extensions().get::<Rejection>();
        assert!(
            matches!(rejection, Some(Rejection::Unavailable(error)) if error.reason() == Reason::Timeout),
            "{rejection:?}"
        );
        assert_eq!(counter.calls(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_request_never_calls_inner_service() {
    let backend = FakeBackend::hanging();
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .deadline(SECOND)
        .build()
        .unwrap();
    let (inner, counter) = Probe::new();
    let answer = limits.layer(inner).oneshot(request_of("alice"));
    assert!(timeout(SECOND / 2, answer).await.is_err(), "the backend never answers");
    assert_eq!(backend.checks().len(), 1);
    // A check that still runs has an hour to finish.
    assert!(timeout(60 * MINUTE, pending::<()>()).await.is_err());
    assert_eq!(counter.calls(), 0);
    assert_eq!(backend.checks().len(), 1);
}

#[tokio::test]
async fn unpolled_request_causes_no_check() {
    let backend = FakeBackend::admitting();
    let limits = RateLimitLayer::builder(Later(backend.clone()))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .build()
        .unwrap();
    let (inner, counter) = Probe::new();
    let mut service = limits.layer(inner);
    drop(service.ready().await.unwrap().call(request_of("alice")));
    assert_eq!((counter.calls(), backend.checks().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hang_in_script_lasts_for_one_check() {
    let backend = FakeBackend::scripted([Hang, Admit, Hang, Deny(Wait::For(SECOND))]);
    let mut service = limits(&backend).layer(Probe::new().0);
    let start = Instant::now();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let response = service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
        statuses.push((response.status().as_u16(), start.elapsed().as_secs()));
    }
    assert_eq!(statuses, [(503, 1), (200, 1), (503, 2), (429, 2)]);
    assert_eq!(backend.checks().len(), 4);
}

#[test]
fn empty_script_admits() {
    let limiter = limiter(&FakeBackend::scripted([]));
    for _ in 0..3 {
        assert!(now(limiter.check(alice())).unwrap().is_admitted());
    }
}

#[test]
fn admission_reports_quota_minus_cost() {
    let limiter = limiter(&FakeBackend::admitting());
    for cost in [3, 10, 11] {
        let decision = now(limiter.check((alice(), cost))).unwrap();
        let statuses = decision.statuses().iter();
        let reported: Vec<_> =
            statuses.map(|status| (status.remaining(), status.next_after(), status.reset_after())).collect();
        let (minute, day) = (MINUTE, 1_440 * MINUTE);
        assert_eq!(reported, [(10_u32.saturating_sub(cost), minute, minute), (100 - cost, day, day)]);
        // The fake backend counts nothing, so it also admits a cost above the quota.
        assert!(decision.is_admitted());
    }
}

#[test]
fn denial_reports_wait_for_every_policy() {
    let reported = |backend: FakeBackend| {
        let decision = now(limiter(&backend).check(alice())).unwrap();
        assert_eq!(decision.violated().count(), 2);
        let statuses = decision.statuses().iter();
        statuses
            .map(|status| (status.remaining(), status.retry_after(), status.next_after()))
            .collect::<Vec<_>>()
    };
    let (wait, micro) = (7 * SECOND, Duration::from_micros(1));
    assert_eq!(reported(FakeBackend::denying(wait)), [(0, Wait::For(wait), wait); 2]);
    assert_eq!(reported(FakeBackend::denying(Duration::ZERO)), [(0, Wait::For(micro), micro); 2]);
    let never = reported(FakeBackend::scripted([Deny(Wait::Never)]));
    assert_eq!(never, [(0, Wait::Never, MINUTE), (0, Wait::Never, 1_440 * MINUTE)]);
}

#[test]
fn script_answers_checks_of_every_purpose() {
    let backend =
        FakeBackend::scripted([Deny(Wait::Never), Unavailable(Reason::Full), Admit, Deny(Wait::Never)]);
    let limiter = limiter(&backend);
    assert!(!now(limiter.peek(alice())).unwrap().is_admitted());
    let outage = now(limiter.reserve(alice())).unwrap_err();
    assert!(matches!(&outage, Rejection::Unavailable(error) if error.reason() == Reason::Full), "{outage:?}");
    assert!(now(limiter.reserve(alice())).unwrap().decision().unwrap().is_admitted());
    let denied = now(limiter.reserve(alice())).unwrap_err();
    assert!(matches!(&denied, Rejection::Denied(decision) if !decision.is_admitted()), "{denied:?}");
    assert!(!now(limiter.check(alice())).unwrap().is_admitted());
    let purposes: Vec<_> = backend.checks().iter().map(|check| check.purpose).collect();
    use Purpose::{Charge, Peek, Reserve};
    assert_eq!(purposes, [Peek, Reserve, Reserve, Reserve, Charge]);
}

#[test]
fn fake_backend_records_settlements() {
    // Settlements ignore the script, which denies.
    let backend = FakeBackend::scripted([Admit, Admit, Deny(Wait::Never)]);
    let limiter = limiter(&backend);
    let reserve = || now(limiter.reserve((alice(), 5))).unwrap();
    let (first, second) = (reserve(), reserve());
    assert!(matches!(now(first.settle(2)), Settled::Done { .. }));
    assert!(matches!(now(second.settle(9)), Settled::Done { .. }));

    let refunds = backend.refunds();
    assert_eq!((refunds.len(), refunds[0].namespace.as_str()), (1, "shop"));
    let receipts = first.decision().unwrap().receipts();
    let pairs = refunds[0].pairs.iter();
    let recorded: Vec<_> =
        pairs.map(|pair| (pair.policy.name(), pair.units, pair.receipt, &pair.key)).collect();
    assert_eq!(recorded, [("ten", 3, receipts[0], &alice()), ("day", 3, receipts[1], &alice())]);
    assert_ne!(receipts, second.decision().unwrap().receipts());

    let overage = &backend.checks()[2];
    let costs: Vec<_> = overage.pairs.iter().map(|pair| pair.cost).collect();
    assert_eq!((overage.purpose, costs), (Purpose::Overage, vec![4, 4]));
    assert!(!now(limiter.check(alice())).unwrap().is_admitted());
}

#[test]
fn failing_settlements_lose_refund_and_overage() {
    let backend = FakeBackend::admitting().failing_settlements(Reason::ReadOnly);
    let limiter = limiter(&backend);
    for used in [2, 9] {
        let reservation = now(limiter.reserve((alice(), 5))).unwrap();
        let settled = now(reservation.settle(used));
        assert!(
            matches!(&settled, Settled::Lost(error) if error.reason() == Reason::ReadOnly),
            "{settled:?}"
        );
    }
    assert_eq!((backend.refunds().len(), backend.checks().len(), limiter.lost_settlements()), (1, 3, 2));
    assert!(now(limiter.check(alice())).unwrap().is_admitted());
}

#[test]
fn fake_backend_settles_each_token_once() {
    let backend = FakeBackend::admitting();
    let of_layer = limiter(&backend);
    let token = |cost| now(of_layer.reserve((alice(), cost))).unwrap().into_token().unwrap();
    let (less, more) = (token(5), token(5));
    // The worker has a limiter of its own.
    let worker = limiter(&backend);
    assert!(matches!(now(worker.settle_token(&less, 2)), Ok(Settled::Done { at_micros: 0, .. })));
    assert!(matches!(now(worker.settle_token(&less, 2)), Ok(Settled::Already)));
    assert!(matches!(now(worker.settle_token(&more, 9)), Ok(Settled::Done { .. })));
    let [refund] = &backend.refunds()[..] else { panic!("one refund") };
    assert_eq!(refund.pairs.iter().map(|pair| pair.units).collect::<Vec<_>>(), [3, 3]);
    let [_, _, overage] = &backend.checks()[..] else { panic!("two reservations and one overage") };
    let costs: Vec<u32> = overage.pairs.iter().map(|pair| pair.cost).collect();
    assert_eq!((overage.purpose, costs), (Purpose::Overage, vec![4, 4]));

    let unknown = now(limiter(&FakeBackend::admitting()).settle_token(&less, 2));
    assert!(matches!(unknown, Err(TokenError::OtherMemory)), "{unknown:?}");
}

#[tokio::test(start_paused = true)]
async fn token_whose_settlement_fails_is_not_settled() {
    let backend = FakeBackend::admitting();
    let limiter = limiter(&backend);
    let token = now(limiter.reserve((alice(), 5))).unwrap().into_token().unwrap();
    let backend = backend.failing_settlements(Reason::ReadOnly);
    // A retry is no second settlement.
    for _ in 0..2 {
        let error = now(limiter.settle_token(&token, 2)).unwrap_err();
        assert!(
            matches!(&error, TokenError::Backend(error) if error.reason() == Reason::ReadOnly),
            "{error:?}"
        );
    }
    let backend = backend.hanging_settlements();
    let error = limiter.settle_token(&token, 2).await.unwrap_err();
    assert!(matches!(&error, TokenError::Backend(error) if error.reason() == Reason::Timeout), "{error:?}");
    assert_eq!((backend.refunds().len(), backend.checks().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn hanging_settlements_end_at_deadline() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let limiter = limiter(&backend);
    let start = Instant::now();
    for (used, lost) in [(2, 1), (9, 2)] {
        let reservation = limiter.reserve((alice(), 5)).await.unwrap();
        let settled = reservation.settle(used).await;
        assert!(matches!(&settled, Settled::Lost(error) if error.reason() == Reason::Timeout), "{settled:?}");
        assert_eq!(limiter.lost_settlements(), lost);
        assert!(start.elapsed() >= Duration::from_secs(5) * lost as u32);
    }
    assert_eq!((backend.refunds().len(), backend.checks().len()), (1, 3));
}

#[tokio::test]
async fn fake_backend_records_resets_in_every_state() {
    for backend in [
        FakeBackend::admitting(),
        FakeBackend::denying(SECOND),
        FakeBackend::unavailable(Reason::Busy),
        FakeBackend::hanging(),
        FakeBackend::admitting().failing_settlements(Reason::Busy),
    ] {
        limiter(&backend).reset(alice()).await.unwrap();
        let resets = backend.resets();
        assert_eq!((resets.len(), backend.checks().len()), (1, 0));
        assert_eq!(resets[0].namespace, "shop");
        let pairs: Vec<_> =
            resets[0].pairs.iter().map(|pair| (pair.policy.name(), pair.key.clone())).collect();
        assert_eq!(pairs, [("ten", alice()), ("day", alice())]);
    }
}

#[test]
fn clones_of_fake_backend_share_script_and_records() {
    let backend = FakeBackend::scripted([Admit, Deny(Wait::Never)]);
    let (one, other) = (limiter(&backend), limiter(&backend.clone()));
    assert!(now(one.check(alice())).unwrap().is_admitted());
    assert!(!now(other.check(alice())).unwrap().is_admitted());
    assert_eq!(backend.checks().len(), 2);
    assert_eq!(backend.checks(), backend.clone().checks());
    assert!(format!("{backend:?}").starts_with("FakeBackend"));
}
