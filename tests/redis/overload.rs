//! Overload of one process: floods of checks and of disconnects, while Redis works, and denials that outlive Redis.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    task::{JoinSet, yield_now},
    time::timeout,
};
use tower_sliding_window::{
    Limiter, LimiterBuilder, OutageRule, PartitionKey, RedisBackend, Rejection, backend::Reason,
};

use super::rig::{HOUR, LONG_DEADLINE, alice, backend, concurrently, policy};
use crate::support::server::{Engine, Server};

/// Held by a flood, so that two of them do not share the machine.
static FLOOD: Mutex<()> = Mutex::const_new(());

fn on(backend: RedisBackend) -> LimiterBuilder {
    Limiter::builder(backend).policy(policy("five", 5, HOUR)).outage(OutageRule::FailOpen)
}

/// The key of a client that invents its keys.
fn invented(number: usize) -> PartitionKey {
    PartitionKey::new("user", format!("invented {number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_keys_passes_no_request_unchecked() {
    let _flood = FLOOD.lock().await;
    for run in 0..10 {
        let server = Server::start(Engine::Redis);
        let backend = backend(&server).await;
        let warm_up = on(backend.clone()).deadline(LONG_DEADLINE).build().unwrap();
        assert!(warm_up.check(alice(), 5).await.unwrap().is_admitted());
        // A busy machine may give Redis no time for a tenth of a second. Then it is silent.
        let limiter = on(backend).deadline(Duration::from_millis(250)).build().unwrap();
        // Every twentieth request is from a client that has used up its quota.
        let flood: JoinSet<_> = (0..10_000)
            .map(|number| {
                let (limiter, is_alice) = (limiter.clone(), number % 20 == 0);
                async move {
                    let key = if is_alice { alice() } else { invented(number) };
                    (is_alice, limiter.admit(key, 1).await)
                }
            })
            .collect();
        let mut decided = 0;
        for (is_alice, outcome) in flood.join_all().await {
            match outcome {
                Ok(admission) => {
                    let error = admission.error().map(ToString::to_string);
                    assert_eq!((error, is_alice), (None, false), "run {run}: this request passes");
                    decided += 1;
                }
                Err(Rejection::Denied(_)) => assert!(is_alice, "run {run}: the quota of a new key is unused"),
                Err(Rejection::Unavailable(error)) => {
                    assert_eq!(error.reason(), Reason::Overloaded, "run {run}: {error}");
                }
                Err(other) => panic!("run {run}: {other}"),
            }
        }
        assert!(decided > 0, "run {run}: Redis decides some of the checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_disconnects_leaves_redis_available() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let _flood = FLOOD.lock().await;
    for run in 0..2 {
        let attacked = on(backend.clone()).build().unwrap();
        let victim = on(backend.clone()).deadline(Duration::from_secs(1)).build().unwrap();
        let mut flood = JoinSet::new();
        for number in 0..200_000 {
            let check = attacked.check(invented(number), 1);
            // Most clients leave before the reply, or before the check is sent.
            flood.spawn(timeout(Duration::from_millis(number as u64 % 7), check));
            if number % 64 == 0 {
                yield_now().await;
            }
        }
        flood.join_all().await;
        let checks = (0..500).map(|number| {
            let victim = victim.clone();
            async move { victim.check(PartitionKey::new("victim", format!("{run} {number}")), 1).await }
        });
        for decided in concurrently(checks).await {
            assert!(decided.unwrap_or_else(|error| panic!("run {run}: {error}")).is_admitted());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_key_stays_denied_after_redis_stops() {
    for rule in [OutageRule::FailOpen, OutageRule::FailClosed] {
        let mut server = Server::start(Engine::Redis);
        let limiter = on(backend(&server).await).outage(rule).deadline(LONG_DEADLINE).build().unwrap();
        assert!(limiter.check(alice(), 5).await.unwrap().is_admitted());
        assert!(!limiter.check(alice(), 1).await.unwrap().is_admitted());
        server.kill();
        // Longer than the maximum age of the deny cache.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        for _ in 0..20 {
            let outcome = limiter.admit(alice(), 1).await;
            assert!(matches!(&outcome, Err(Rejection::Denied(denied)) if denied.is_cached()), "{outcome:?}");
        }
        let other = limiter.admit(invented(0), 1).await;
        assert_eq!(other.is_ok(), rule == OutageRule::FailOpen, "the rule applies to other keys: {other:?}");
    }
}
