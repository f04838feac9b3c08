//! How many checks are under way at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Decision, Limiter, OutageRule, RateLimitLayer, Status, Wait,
    backend::{Backend, BackendError, Check, Reason},
    header,
    testing::FakeBackend,
};

use super::{Marks, SECOND, TICK, alice, later, local, look, on, policy, told};

const SHED: Result<bool, (Reason, bool)> = Err((Reason::Overloaded, false));

/// Takes 10 ms for each check, and remembers how many were under way at most.
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
async fn what_is_above_the_bound_is_shed_at_once_and_every_place_is_given_back() {
    let backend = Slow::default();
    let limiter = on(backend.clone()).max_in_flight(7).build().unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let many: Vec<_> = (0..50)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { (told(limiter.check(alice(), 1).await), start.elapsed()) })
            })
            .collect();
        let mut admitted = 0;
        for one in many {
            match one.await.unwrap() {
                (Ok(true), _) => admitted += 1,
                other => assert_eq!(other, (SHED, Duration::ZERO)),
            }
        }
        assert_eq!(admitted, 7);
    }
    assert_eq!(backend.0.1.load(SeqCst), 7);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_dropped_or_times_out_gives_its_place_back() {
    let backend = FakeBackend::hanging();
    let limiter = later(&backend).max_in_flight(1).breaker(None).build().unwrap();
    assert!(timeout(SECOND / 20, limiter.check(alice(), 1)).await.is_err());
    let waiting = tokio::spawn(limiter.check(alice(), 1));
    yield_now().await;
    assert_eq!(told(limiter.check(alice(), 1).await), SHED);
    assert_eq!(told(waiting.await.unwrap()), Err((Reason::Timeout, true)));
    assert_eq!(told(limiter.check(alice(), 1).await), Err((Reason::Timeout, true)));
    assert_eq!(backend.checks().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_not_polled_yet_takes_no_place() {
    let limiter = on(Slow::default()).max_in_flight(1).build().unwrap();
    let idle = limiter.check(alice(), 1);
    assert_eq!(told(limiter.check(alice(), 1).await), Ok(true));
    assert_eq!(told(idle.await), Ok(true));
}

#[tokio::test(start_paused = true)]
async fn shedding_is_no_failure_of_the_store() {
    let limiter = on(Slow::default()).max_in_flight(1).build().unwrap();
    for _ in 0..3 {
        let waiting = tokio::spawn(limiter.check(alice(), 1));
        yield_now().await;
        for _ in 0..20 {
            assert_eq!(told(limiter.check(alice(), 1).await), SHED);
        }
        assert_eq!(told(waiting.await.unwrap()), Ok(true));
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_bound_is_4096_and_clones_share_it() {
    let limiter = later(&FakeBackend::hanging()).build().unwrap();
    let waiting: Vec<_> = (0..Limiter::DEFAULT_MAX_IN_FLIGHT)
        .map(|_| tokio::spawn(limiter.clone().check(alice(), 1)))
        .collect();
    // Until all of them have begun.
    tokio::time::sleep(TICK).await;
    assert_eq!((waiting.len(), told(limiter.check(alice(), 1).await)), (4_096, SHED));
    assert_eq!(
        limiter.check(alice(), 1).await.unwrap_err().to_string(),
        "no rate limit decision: overloaded: too many checks in flight"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_shed_follows_the_rule() {
    for (rule, status) in
        [(OutageRule::FailClosed, 503), (OutageRule::FailOpen, 200), (local(1), 200), (local(11), 503)]
    {
        let limits = RateLimitLayer::builder(FakeBackend::hanging())
            .policy(policy("ten", 10))
            .max_in_flight(1)
            .outage(rule)
            .key(header("x-api-key").unwrap())
            .build()
            .unwrap();
        let service = limits.layer(service_fn(look));
        let ask = || {
            let request = http::Request::get("/").header("x-api-key", "alice").body(()).unwrap();
            tokio::spawn(service.clone().oneshot(request))
        };
        let first = ask();
        yield_now().await;
        let start = Instant::now();
        let response = ask().await.unwrap().unwrap();
        assert_eq!((response.status().as_u16(), start.elapsed()), (status, Duration::ZERO), "{rule:?}");
        let marks = Marks::of(response.extensions());
        assert_eq!(
            [marks.unchecked, marks.local, marks.refusal.map(|(_, reason)| reason)]
                .into_iter()
                .flatten()
                .next(),
            Some(Reason::Overloaded)
        );
        first.await.unwrap().unwrap();
    }
}
