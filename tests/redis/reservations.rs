//! Meters, reservations that are dropped unsettled, and clamped estimates: the same on Redis as in memory.

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::{
    Limiter, MemoryBackend, Policy, Wait,
    backend::{Backend, Purpose},
    settle::{Settled, Unsettled},
    testing::ManualClock,
};

use super::rig::{HOUR, LONG_DEADLINE, alice, backend, every_type, peek, with_manual_clock};
use crate::support::server::{Engine, Server};

/// What is left of a quota, and the wait of a check of cost 1.
type Usage = (u32, Wait);

fn limiter(backend: &(impl Backend + Clone), policy: &Policy, rule: Unsettled) -> Limiter {
    let builder = Limiter::builder(backend.clone()).deadline(LONG_DEADLINE).deny_cache(None).breaker(None);
    builder.policy(policy.clone()).clamp_estimates().unsettled(rule).build().unwrap()
}

/// Runs the same reservations on any backend. Returns the usage after each step.
async fn history(backend: impl Backend + Clone, clock: &ManualClock, policy: &Policy) -> Vec<Usage> {
    // Both backends begin at the same instant, within the same calendar window.
    let mut history = Vec::new();
    let keeping = limiter(&backend, policy, Unsettled::Keep);
    let refunding = limiter(&backend, policy, Unsettled::Refund);
    let usage = async || {
        keeping.drain().await;
        refunding.drain().await;
        let decision = peek(&backend, std::slice::from_ref(policy), 1).await;
        (decision.statuses()[0].remaining() + u32::from(decision.is_admitted()), decision.retry_after())
    };
    // An estimate far above the quota is charged as the quota. It is denied while anything is used.
    let clamped = refunding.reserve((alice(), u32::MAX)).await.unwrap();
    assert_eq!(
        clamped.decision().unwrap().statuses()[0].cost(),
        policy.quota().unwrap(),
        "the cost is clamped to the quota"
    );
    history.push(usage().await);
    assert!(keeping.reserve((alice(), u32::MAX)).await.is_err(), "a cost above the quota never fits");
    clock.advance(Duration::from_secs(60));
    // A larger amount is charged beyond the quota.
    assert!(
        matches!(clamped.settle(policy.quota().unwrap() + 7).await, Settled::Done { .. }),
        "an overage is charged"
    );
    history.push(usage().await);
    keeping.reset(alice()).await.unwrap();

    // A meter refunds the rest of a clamped estimate.
    let meter = keeping.reserve((alice(), u32::MAX)).await.unwrap().meter();
    meter.add(3);
    clock.advance(Duration::from_secs(60));
    meter.add(4);
    drop(meter);
    history.push(usage().await);
    drop(keeping.reserve((alice(), 2)).await.unwrap());
    history.push(usage().await);
    drop(refunding.reserve((alice(), 5)).await.unwrap());
    history.push(usage().await);
    assert_eq!(keeping.lost_settlements() + refunding.lost_settlements(), 0, "every settlement is confirmed");
    // A plain check above the quota is not clamped.
    let never = keeping.check((alice(), policy.quota().unwrap() + 1)).await.unwrap();
    history.push((never.statuses()[0].remaining(), never.retry_after()));
    assert_eq!(never.retry_after(), Wait::Never, "a cost above the quota never fits");
    history
}

#[tokio::test]
async fn reservations_settle_alike_on_redis_and_in_memory() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        for policy in every_type(20, HOUR) {
            let (backend, clock) = with_manual_clock(&server).await;
            let on_redis = history(backend, &clock, &policy).await;
            let clock = ManualClock::new();
            let in_memory = history(MemoryBackend::new().with_clock(&clock), &clock, &policy).await;
            assert_eq!(on_redis, in_memory, "{engine:?}, {policy:?}");
            let left: Vec<u32> = on_redis.iter().map(|(left, _)| *left).collect();
            assert_eq!(left, [0, 0, 13, 11, 11, 11], "{engine:?}, {policy:?}");
        }
    }
}

/// A settlement is sent again until its deadline while Redis cannot be reached.
#[tokio::test]
async fn settlement_outlasts_restart() {
    let mut server = Server::start(Engine::Redis);
    let policy = Policy::new("tokens", 20, HOUR).unwrap();
    let limiter = limiter(&backend(&server).await, &policy, Unsettled::Refund);
    let reserve = async || limiter.reserve((alice(), 5)).await.unwrap();
    let (larger, smaller) = (reserve().await, reserve().await);
    server.kill();
    // A command on the lost connection may have run.
    sleep(Duration::from_millis(100)).await;
    let settlements = [larger.settle(8), smaller.settle(1)];
    sleep(Duration::from_millis(200)).await;
    server.restart();
    for settlement in settlements {
        assert!(matches!(settlement.await, Settled::Done { .. }));
    }
    // The restart has lost both charges.
    assert_eq!(limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(), 17);
}

#[tokio::test]
async fn clamped_estimate_sends_quota_as_cost() {
    let backend = tower_sliding_window::testing::FakeBackend::admitting();
    let policy = Policy::new("tokens", 20, HOUR).unwrap();
    let limiter = limiter(&backend, &policy, Unsettled::Keep);
    let _ = limiter.reserve((alice(), 500)).await.unwrap();
    let _ = limiter.check((alice(), 500)).await.unwrap();
    let sent = backend.checks().into_iter().map(|check| (check.purpose, check.pairs[0].cost));
    assert_eq!(
        sent.collect::<Vec<_>>(),
        [(Purpose::Reserve, 20), (Purpose::Charge, 500)],
        "the overage is a charge of its own"
    );
}
