//! Rollbacks of checks across slots: they are drained, bounded and counted.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};
use tower_sliding_window::{Limiter, RedisBackend, backend::Pair, redis::RedisServers};

use super::{
    cluster::{keys, pair, remaining},
    rig::{HOUR, LONG_DEADLINE, concurrently, policy},
};
use crate::support::{
    cluster::Cluster,
    scrape::{Scrape, recorder},
    server::Engine,
};

const CHECKS: u32 = 20;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns a limiter, and the pairs of a check that the slot of the address denies after its first admission.
async fn limiter(cluster: &Cluster) -> (Limiter, RedisBackend, Vec<Pair>) {
    // Unlike `connect`, it calls no script before the first check.
    let backend = RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).lazy().unwrap();
    let builder = Limiter::builder(backend.clone()).without_policies().deadline(LONG_DEADLINE);
    let [user, address] = keys();
    let (many, one) = (policy("many", 1_000, HOUR), policy("one", 1, HOUR));
    let pairs = vec![pair(&user, &many, 1), pair(&address, &one, 1)];
    let limiter = builder.build().unwrap();
    assert!(limiter.check(pairs.clone()).await.unwrap().is_admitted(), "both slots admit the first check");
    (limiter, backend, pairs)
}

/// Makes checks at the same time, which cannot know of each other's denials.
async fn deny(limiter: &Limiter, pairs: &[Pair]) {
    let checks = (0..CHECKS).map(|_| limiter.check(pairs));
    for denied in concurrently(checks).await {
        assert!(!denied.unwrap().is_admitted(), "the second slot denies");
    }
}

#[test]
fn drain_waits_for_rollbacks_on_one_thread() {
    let cluster = Cluster::start(Engine::Redis);
    runtime().block_on(async {
        let (limiter, backend, pairs) = limiter(&cluster).await;
        deny(&limiter, &pairs).await;
        limiter.drain().await;
        assert_eq!(backend.lost_rollbacks(), 0, "drain waits for every rollback");
        assert_eq!(
            remaining(&backend, &pairs[0].key, &pairs[0].policy).await,
            999,
            "only the admitted check is charged"
        );
    });
}

#[test]
fn rollbacks_of_ended_runtime_are_counted() {
    let recorder = recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start(Engine::Redis);
    let first = runtime();
    let (limiter, backend, pairs) = first.block_on(limiter(&cluster));
    first.block_on(deny(&limiter, &pairs));
    drop(first);
    let left = runtime().block_on(async {
        limiter.drain().await;
        remaining(&backend, &pairs[0].key, &pairs[0].policy).await
    });
    let standing = u64::from(999 - left);
    assert!(standing > 0, "the runtime has ended before its rollbacks");
    // A rollback may have run without a reply.
    assert!((standing..=u64::from(CHECKS)).contains(&backend.lost_rollbacks()), "{standing} of {CHECKS}");
    let counted = Scrape::of(&recorder.handle()).get("lost_rollbacks_total");
    assert_eq!(counted, backend.lost_rollbacks() as f64, "the metric counts the lost rollbacks");
}

#[test]
fn client_over_its_limit_rolls_back_once_per_max_age() {
    let cluster = Cluster::start(Engine::Redis);
    runtime().block_on(async {
        let (limiter, backend, pairs) = limiter(&cluster).await;
        for _ in 0..200 {
            assert!(!limiter.check(pairs.clone()).await.unwrap().is_admitted(), "the second slot denies");
        }
        limiter.drain().await;
        // The first check charges the other slot. The limiter knows the denial then.
        let calls = cluster.primaries().iter().map(|node| super::admin::Admin::at(node).calls("evalsha").all);
        let calls: u64 = calls.sum();
        assert!(calls < 20, "{calls} calls for 200 checks");
        assert_eq!(
            remaining(&backend, &pairs[0].key, &pairs[0].policy).await,
            999,
            "only the admitted check is charged"
        );
    });
}

/// A check that is dropped before its replies have come charges no slot for good.
#[test]
fn dropped_check_leaves_no_charge_in_any_slot() {
    let cluster = Cluster::start(Engine::Redis);
    runtime().block_on(async {
        let (limiter, backend, mut pairs) = limiter(&cluster).await;
        pairs[1].policy = policy("many", 1_000, HOUR);
        for _ in 0..50 {
            let mut check = pin!(limiter.check(pairs.clone()));
            // The check is sent by the first poll, and dropped before the second.
            assert!(
                matches!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending),
                "the check waits for its replies"
            );
        }
        // The backend reads the replies of the dropped checks.
        tokio::time::sleep(Duration::from_millis(50)).await;
        limiter.drain().await;
        assert_eq!(
            (backend.lost_rollbacks(), backend.unanswered_checks()),
            (0, 0),
            "every dropped check is rolled back"
        );
        for Pair { key, policy, .. } in &pairs {
            let expected = if key == &pairs[0].key { 999 } else { 1_000 };
            assert_eq!(
                remaining(&backend, key, policy).await,
                expected,
                "only the admitted check is charged"
            );
        }
    });
}
