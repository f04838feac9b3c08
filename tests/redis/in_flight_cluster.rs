//! Units in flight in the slots of a cluster, and the size of the calls that release many of them.

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::{
    Decision, Limiter, PartitionKey, Policy, RedisBackend, backend::Pair, redis::RedisServers,
};

use super::{admin::Admin, merging_retries::one_node_cluster, rig::LONG_DEADLINE};
use crate::support::{
    cluster_rows::{cluster, key_on},
    server::{Engine, Server},
};

const SECOND: Duration = Duration::from_secs(1);

fn exports(quota: u32, hold_time: Duration) -> Policy {
    Policy::in_flight("exports", quota).unwrap().hold_time(hold_time).unwrap()
}

async fn limiter(servers: RedisServers) -> (RedisBackend, Limiter) {
    let backend = RedisBackend::builder(servers).lazy().unwrap();
    let builder = Limiter::builder(backend.clone()).without_policies().deadline(LONG_DEADLINE);
    (backend, builder.build().unwrap())
}

async fn acquire(limiter: &Limiter, pairs: impl IntoIterator<Item = Pair>) -> Decision {
    limiter.check(pairs.into_iter().collect::<Vec<_>>()).await.unwrap()
}

/// Holds two units of different slots for two hold times. Another process sees them all the time.
async fn assert_held(servers: impl Fn() -> RedisServers) {
    let ((backend, limiter), (_, other)) = (self::limiter(servers()).await, self::limiter(servers()).await);
    let pairs = [0, 1].map(|node| Pair::new(key_on(node, "tenant", 0), exports(1, SECOND), 1));
    let mut held = Vec::new();
    for pair in &pairs {
        held.push(acquire(&limiter, [pair.clone()]).await);
    }
    for _ in 0..8 {
        sleep(SECOND / 4).await;
        for pair in &pairs {
            assert!(!acquire(&other, [pair.clone()]).await.is_admitted(), "each unit is renewed in its slot");
        }
    }
    assert!(held.iter().all(|held| held.is_admitted() && !held.hold().unwrap().was_interrupted()));
    assert_eq!(backend.interrupted_units(), 0);
    drop(held);
    limiter.drain().await;
    for pair in pairs {
        assert!(acquire(&other, [pair]).await.is_admitted(), "each unit is released in its slot");
    }
}

#[tokio::test]
async fn units_of_several_slots_are_renewed_and_released() {
    let cluster = cluster();
    let urls: Vec<_> = cluster.primaries().iter().map(Server::url).collect();
    assert_held(|| RedisServers::cluster(&urls)).await;
}

/// An address of a single server may be a node of a cluster. Then one call with keys of several slots fails.
#[tokio::test]
async fn units_of_lone_cluster_node_are_renewed_and_released() {
    for engine in Engine::ALL {
        let server = one_node_cluster(engine).await;
        assert_held(|| RedisServers::single(server.url())).await;
    }
}

#[tokio::test]
async fn denial_of_another_slot_releases_units() {
    let cluster = cluster();
    let urls = cluster.primaries().iter().map(Server::url);
    let (_, limiter) = limiter(RedisServers::cluster(urls)).await;
    let in_flight = Pair::new(key_on(0, "tenant", 0), exports(1, 30 * SECOND), 1);
    let used_up = Pair::new(key_on(1, "address", 0), Policy::new("hourly", 1, 3_600 * SECOND).unwrap(), 1);
    assert!(acquire(&limiter, [used_up.clone()]).await.is_admitted());
    let denied = acquire(&limiter, [in_flight.clone(), used_up]).await;
    assert!(!denied.is_admitted() && denied.hold().is_none());
    limiter.drain().await;
    assert!(acquire(&limiter, [in_flight]).await.is_admitted());
}

/// Each call changes at most 256 numbers and 64 pairs, so that no other client waits long for it.
#[tokio::test]
async fn many_releases_are_divided_among_calls() {
    for engine in Engine::ALL {
        for (keys, units_of_key, largest_call) in [(1, 1_000, 256), (300, 1, 64)] {
            let server = Server::start(engine);
            let (_, limiter) = limiter(RedisServers::single(server.url())).await;
            let mut held = Vec::new();
            for key in 0..keys {
                let key = PartitionKey::new("tenant", key.to_string());
                for _ in 0..units_of_key {
                    let pair = Pair::new(key.clone(), exports(units_of_key, 30 * SECOND), 1);
                    held.push(acquire(&limiter, [pair]).await);
                }
            }
            let mut admin = Admin::at(&server);
            let before = admin.calls("evalsha").all;
            // The first calls wait until all releases are due.
            server.signal(libc::SIGSTOP);
            drop(held);
            server.signal(libc::SIGCONT);
            limiter.drain().await;
            let (calls, needed) =
                (admin.calls("evalsha").all - before, keys * u64::from(units_of_key) / largest_call);
            assert!(calls >= needed, "{engine:?}: {calls} calls for {keys} keys of {units_of_key} units");
            for key in [0, keys - 1] {
                let pair = Pair::new(
                    PartitionKey::new("tenant", key.to_string()),
                    exports(units_of_key, 30 * SECOND),
                    1,
                );
                let decision = limiter.peek([pair]).await.unwrap();
                assert_eq!(
                    decision.statuses()[0].remaining(),
                    units_of_key - 1,
                    "{engine:?}: all are released"
                );
            }
        }
    }
}
