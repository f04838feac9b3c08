//! Load shedding: the bound on checks in flight.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, advance, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Decision, Limiter, OutageRule, RateLimitLayer, Status, Wait,
    backend::{Backend, BackendError, Check, Reason},
    header,
    testing::FakeAnswer::{Admit, Hang, Unavailable},
    testing::FakeBackend,
};

use super::{SECOND, TICK, alice, deferred, echo_marks, local, marks, on, outcome, policy};

const OVERLOADED: Result<bool, (Reason, bool)> = Err((Reason::Overloaded, false));

/// A backend that takes 10 ms for each check. It counts the checks in flight and records the maximum.
#[derive(Clone, Default)]
struct Slow(Arc<(AtomicUsize, AtomicUsize)>);

impl Backend for Slow {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let (now, most) = &*self.0;
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(10 * TICK).await;
        now.fetch_sub(1, SeqCst);
        let admits = |pair| Status::new(pair, 1, Wait::ZERO, SECOND, SECOND);
        Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_sheds_checks_above_bound_at_once() {
    let backend = Slow::default();
    let limiter = on(backend.clone()).max_checks_in_flight(7).build().unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let many: Vec<_> = (0..50)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { (outcome(limiter.check(alice()).await), start.elapsed()) })
            })
            .collect();
        let mut admitted = 0;
        for one in many {
            match one.await.unwrap() {
                (Ok(true), _) => admitted += 1,
                other => assert_eq!(
                    other,
                    (OVERLOADED, Duration::ZERO),
                    "a check above the bound is rejected at once"
                ),
            }
        }
        assert_eq!(admitted, 7, "as many checks as the bound are sent");
    }
    assert_eq!(backend.0.1.load(SeqCst), 7, "no more checks than the bound are in flight");
}

#[tokio::test(start_paused = true)]
async fn dropped_or_timed_out_check_frees_its_permit() {
    let backend = FakeBackend::hanging();
    let limiter = deferred(&backend).max_checks_in_flight(1).breaker(None).build().unwrap();
    assert!(
        timeout(SECOND / 20, limiter.check(alice())).await.is_err(),
        "the store hangs until the client leaves"
    );
    let waiting = tokio::spawn(limiter.check(alice()));
    yield_now().await;
    assert_eq!(outcome(limiter.check(alice()).await), OVERLOADED, "the waiting check holds the only permit");
    assert_eq!(
        outcome(waiting.await.unwrap()),
        Err((Reason::Timeout, true)),
        "the dropped check has freed its permit"
    );
    assert_eq!(
        outcome(limiter.check(alice()).await),
        Err((Reason::Timeout, true)),
        "the timed-out check has freed its permit"
    );
    assert_eq!(backend.checks().len(), 3, "the rejected check is not sent");
}

#[tokio::test(start_paused = true)]
async fn unpolled_check_takes_no_permit() {
    let limiter = on(Slow::default()).max_checks_in_flight(1).build().unwrap();
    let idle = limiter.check(alice());
    assert_eq!(outcome(limiter.check(alice()).await), Ok(true), "the unpolled check holds no permit");
    assert_eq!(outcome(idle.await), Ok(true), "the permit is free again");
}

#[tokio::test(start_paused = true)]
async fn load_shedding_does_not_open_breaker() {
    let limiter = on(Slow::default()).max_checks_in_flight(1).build().unwrap();
    for _ in 0..3 {
        let waiting = tokio::spawn(limiter.check(alice()));
        yield_now().await;
        for _ in 0..20 {
            assert_eq!(
                outcome(limiter.check(alice()).await),
                OVERLOADED,
                "the waiting check holds the only permit"
            );
        }
        assert_eq!(outcome(waiting.await.unwrap()), Ok(true), "the breaker is closed");
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_clones_share_default_bound() {
    let limiter = deferred(&FakeBackend::hanging()).build().unwrap();
    let waiting: Vec<_> = (0..Limiter::DEFAULT_MAX_CHECKS_IN_FLIGHT)
        .map(|_| tokio::spawn(limiter.clone().check(alice())))
        .collect();
    // Waits until all checks have started.
    tokio::time::sleep(TICK).await;
    assert_eq!(
        (waiting.len(), outcome(limiter.check(alice()).await)),
        (4_096, OVERLOADED),
        "all clones share the default bound"
    );
    assert_eq!(
        limiter.check(alice()).await.unwrap_err().to_string(),
        "no rate limit decision: overloaded: too many checks in flight",
        "the error names the overload"
    );
}

#[tokio::test(start_paused = true)]
async fn shed_request_is_overloaded_unless_store_hangs() {
    for (rule, in_outage) in
        [(OutageRule::FailClosed, 503), (OutageRule::FailOpen, 200), (local(1), 200), (local(11), 503)]
    {
        let limits = RateLimitLayer::builder(FakeBackend::hanging())
            .policy(policy("ten", 10))
            .max_checks_in_flight(1)
            .outage(rule)
            .key(header("x-api-key").unwrap())
            .build()
            .unwrap();
        let service = limits.layer(service_fn(echo_marks));
        let send = || {
            let request = http::Request::get("/").header("x-api-key", "alice").body(()).unwrap();
            tokio::spawn(service.clone().oneshot(request))
        };
        // The second time, the store has answered no check for one deadline.
        for (status, reason) in [(503, Reason::Overloaded), (in_outage, Reason::Timeout)] {
            let first = send();
            yield_now().await;
            let start = Instant::now();
            let response = send().await.unwrap().unwrap();
            assert_eq!((response.status().as_u16(), start.elapsed()), (status, Duration::ZERO), "{rule:?}");
            let marks = marks(&response);
            let reasons = [marks.unchecked, marks.local, marks.rejection.map(|(_, reason)| reason)];
            assert_eq!(reasons.into_iter().flatten().next(), Some(reason), "{rule:?}");
            first.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn old_timeout_makes_no_outage_of_burst() {
    let limiter = deferred(&FakeBackend::hanging())
        .max_checks_in_flight(1)
        .outage(OutageRule::FailOpen)
        .build()
        .unwrap();
    assert_eq!(
        limiter.admit(alice()).await.unwrap().error().unwrap().reason(),
        Reason::Timeout,
        "the store hangs"
    );
    advance(SECOND).await;
    let first = tokio::spawn(limiter.admit(alice()));
    yield_now().await;
    let shed = limiter.admit(alice()).await.unwrap_err();
    assert_eq!(
        shed.error().unwrap().reason(),
        Reason::Overloaded,
        "a time-out of a second ago is no sign of an outage"
    );
    first.abort();
}

/// The deadline is 100 ms.
#[tokio::test(start_paused = true)]
async fn answer_beside_failure_makes_burst_an_overload() {
    let down = Unavailable(Reason::Connection);
    for (name, answers, pauses) in [
        ("an answer within the last deadline", [Admit, down], [10, 20]),
        ("an answer after the failure", [down, Admit], [0, 150]),
    ] {
        let backend = FakeBackend::scripted([answers[0], answers[1], Hang]);
        let limiter = deferred(&backend).max_checks_in_flight(1).build().unwrap();
        for pause in pauses {
            let _ = limiter.check(alice()).await;
            advance(pause * TICK).await;
        }
        let first = tokio::spawn(limiter.check(alice()));
        yield_now().await;
        assert_eq!(outcome(limiter.check(alice()).await), OVERLOADED, "{name}");
        first.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn crowd_of_timeouts_is_outage_after_one_deadline() {
    let limiter =
        deferred(&FakeBackend::hanging()).breaker(None).outage(OutageRule::FailOpen).build().unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let crowd: JoinSet<_> = (0..600).map(|_| limiter.admit(alice())).collect();
        for outcome in crowd.join_all().await {
            assert_eq!(
                outcome.unwrap().error().map(BackendError::reason),
                Some(Reason::Timeout),
                "the store has answered no check for a deadline"
            );
        }
        // The timer counts whole milliseconds.
        assert!(start.elapsed() <= SECOND / 10 + TICK, "{:?}", start.elapsed());
    }
}
