//! The readiness of a limiter in a cluster, whose servers hang one after the other.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_sliding_window::{Limiter, PartitionKey, RedisBackend, outage::Readiness, redis::RedisServers};

use super::rig::{HOUR, TIMEOUT, policy};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

/// Checks users of all nodes until the limiter has this readiness.
async fn check_until(limiter: &Limiter, readiness: Readiness) {
    let start = Instant::now();
    while limiter.readiness() != readiness {
        assert!(
            start.elapsed() < TIMEOUT,
            "expected {readiness}, got {}: {:?}",
            limiter.readiness(),
            limiter.stats().breakers
        );
        for user in 0..32_u8 {
            let _ = limiter.check(PartitionKey::new("user", [user])).await;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn hung_primary_degrades_readiness_of_cluster() {
    let cluster = Cluster::start(Engine::Valkey);
    let backend = RedisBackend::builder(RedisServers::cluster(cluster.nodes.iter().map(Server::url)))
        .connect()
        .await
        .unwrap();
    let limiter = Limiter::builder(backend).policy(policy("hourly", 1_000_000, HOUR)).build().unwrap();
    assert_eq!(limiter.readiness(), Readiness::Ready, "before the first check");
    check_until(&limiter, Readiness::Ready).await;

    cluster.nodes[1].signal(libc::SIGSTOP);
    check_until(&limiter, Readiness::Degraded).await;
    assert!(limiter.readiness().can_decide(), "two primaries of three decide");
    let breakers = limiter.stats().breakers;
    let unavailable: Vec<_> = breakers.iter().filter(|breaker| !breaker.is_available).collect();
    let address = format!("127.0.0.1:{}", cluster.nodes[1].port());
    assert!(
        matches!(&*unavailable, [breaker] if breaker.server == address),
        "expected only {address} to be unavailable: {breakers:?}"
    );

    cluster.nodes.iter().for_each(|node| node.signal(libc::SIGSTOP));
    check_until(&limiter, Readiness::Unavailable).await;
    assert!(!limiter.readiness().can_decide(), "no primary decides");

    cluster.nodes.iter().for_each(|node| node.signal(libc::SIGCONT));
    check_until(&limiter, Readiness::Ready).await;
}
