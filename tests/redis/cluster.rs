//! Checks of several partition keys in a cluster: the backend splits a check by slot.

use std::{
    collections::BTreeSet,
    future::pending,
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tower_sliding_window::{
    ConfigError, Limiter, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Reason, Refund},
    outage::BreakerState,
    redis::RedisServers,
};

use super::{
    admin::Admin,
    rig::{HOUR, TIMEOUT, concurrently, policy, wait_until},
};
use crate::support::{
    cluster::Cluster,
    server::{Engine, Server},
};

/// Returns a user and an address whose slots are on different nodes.
pub fn keys() -> [PartitionKey; 2] {
    [PartitionKey::new("user", "alice"), PartitionKey::new("peer-ip", "192.0.2.1")]
}

pub fn pair(key: &PartitionKey, policy: &Policy, cost: u32) -> Pair {
    Pair::new(key.clone(), policy.clone(), cost)
}

fn check(pairs: impl Into<Box<[Pair]>>) -> Check {
    Check::new(pairs).unwrap()
}

async fn start(engine: Engine) -> (Cluster, RedisBackend) {
    let cluster = Cluster::start(engine);
    let backend = RedisBackend::builder(RedisServers::connection(cluster.connection().await)).lazy().unwrap();
    (cluster, backend)
}

pub async fn remaining(backend: &RedisBackend, key: &PartitionKey, policy: &Policy) -> u32 {
    let decision = backend.check(&check([pair(key, policy, 0)])).await.unwrap();
    decision.statuses()[0].remaining()
}

/// Waits until a rollback has restored this many remaining units.
async fn wait_for_rollback(backend: &RedisBackend, key: &PartitionKey, policy: &Policy, units: u32) {
    let start = Instant::now();
    loop {
        let left = remaining(backend, key, policy).await;
        if left == units {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "no rollback: {left} units remain instead of {units}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Finds the node that stores this key, by a charge to the key.
async fn node_of<'a>(cluster: &'a Cluster, backend: &RedisBackend, key: &PartitionKey) -> &'a Server {
    let primaries = cluster.primaries();
    let before: Vec<usize> = primaries.iter().map(|node| Admin::at(node).keys().len()).collect();
    let _ = backend.check(&check([pair(key, &policy("which node", 10, HOUR), 1)])).await.unwrap();
    let node = primaries.iter().zip(before).find(|(node, keys)| Admin::at(node).keys().len() > *keys);
    node.expect("a node with a new key").0
}

#[tokio::test]
async fn check_charges_all_slots_or_none() {
    for engine in Engine::ALL {
        let (_cluster, backend) = start(engine).await;
        let [user, address] = keys();
        let (ten, two) = (policy("ten", 10, HOUR), policy("two", 2, HOUR));
        for _ in 0..2 {
            let both = check([pair(&user, &ten, 3), pair(&address, &two, 1), pair(&user, &two, 1)]);
            let decision = backend.check(&both).await.unwrap();
            assert!(decision.is_admitted(), "{engine:?}: {decision:?}");
        }
        let both = check([pair(&user, &ten, 3), pair(&address, &two, 1)]);
        let denied = backend.check(&both).await.unwrap();
        let statuses = denied.statuses();
        assert!(!denied.is_admitted(), "{engine:?}: the slot of the address denies");
        // The slot of the user has charged. The decision reports its status without that charge.
        assert_eq!((statuses[0].remaining(), statuses[0].retry_after()), (4, Wait::ZERO), "{engine:?}");
        assert_eq!(statuses[1].remaining(), 0, "{engine:?}: the address has no unit left");
        assert_eq!(
            denied.retry_after(),
            statuses[1].retry_after(),
            "{engine:?}: the wait is that of the slot that denies"
        );
        assert!(denied.receipts().is_empty(), "{engine:?}: a denied check has no receipts");
        wait_for_rollback(&backend, &user, &ten, 4).await;

        // If both slots deny, both waits are exact.
        let both = check([pair(&address, &two, 1), pair(&user, &ten, 5)]);
        let denied = backend.check(&both).await.unwrap();
        assert!(denied.statuses().iter().all(|status| !status.retry_after().is_zero()), "{denied:?}");
        assert_eq!(
            remaining(&backend, &user, &ten).await,
            4,
            "{engine:?}: a denial by both slots charges nothing"
        );
    }
}

#[tokio::test]
async fn failed_or_dropped_check_rolls_back_its_charges() {
    let (mut cluster, backend) = start(Engine::Redis).await;
    let [user, address] = keys();
    let ten = policy("ten", 10, HOUR);
    let [of_user, of_address] =
        [node_of(&cluster, &backend, &user).await.port(), node_of(&cluster, &backend, &address).await.port()];
    assert_ne!(of_user, of_address, "the keys of this test are on different nodes");
    let both = check([pair(&user, &ten, 3), pair(&address, &ten, 1)]);
    assert!(backend.check(&both).await.unwrap().is_admitted(), "both slots admit while all nodes run");
    let second = cluster.nodes.iter_mut().find(|node| node.port() == of_address).unwrap();

    // The second slot does not answer, and the test drops the check.
    second.signal(libc::SIGSTOP);
    for _ in 0..3 {
        timeout(Duration::from_millis(100), backend.check(&both)).await.expect_err("an answer");
    }
    wait_for_rollback(&backend, &user, &ten, 7).await;

    // The node of the second slot is dead.
    second.kill();
    let error = backend.check(&both).await.expect_err("a decision");
    assert!(matches!(error.reason(), Reason::Connection | Reason::Busy), "{error:?}");
    wait_for_rollback(&backend, &user, &ten, 7).await;
}

#[tokio::test]
async fn refund_overage_and_reset_reach_every_slot() {
    for engine in Engine::ALL {
        let (_cluster, backend) = start(engine).await;
        let [user, address] = keys();
        let (ten, two) = (policy("ten", 10, HOUR), policy("two", 2, HOUR));
        let both = check([pair(&user, &ten, 5), pair(&address, &two, 2), pair(&user, &two, 1)])
            .with_purpose(Purpose::Reserve);
        let reserved = backend.check(&both).await.unwrap();
        assert_eq!(reserved.receipts().len(), 3, "{engine:?}");
        // The pairs of one slot are not adjacent in the check. Each pair gets its own refund.
        let refund = Refund::new(&both, reserved.receipts(), &[2, 1, 0]).unwrap();
        assert!(backend.refund(&refund).await.unwrap() > reserved.at_micros(), "{engine:?}");
        assert_eq!(remaining(&backend, &user, &ten).await, 8, "{engine:?}");
        assert_eq!(
            remaining(&backend, &address, &two).await,
            1,
            "{engine:?}: one unit of the address was refunded"
        );
        assert_eq!(
            remaining(&backend, &user, &two).await,
            2,
            "{engine:?}: the unit of the user was refunded"
        );

        let more = both.overage(&[12, 3, 1]).unwrap();
        assert!(
            backend.check(&more).await.unwrap().is_admitted(),
            "{engine:?}: an overage is always admitted"
        );
        assert_eq!(
            (remaining(&backend, &user, &ten).await, remaining(&backend, &address, &two).await),
            (1, 0),
            "{engine:?}: the overage is charged in both slots"
        );

        // A peek charges no slot.
        let peek = both.clone().with_purpose(Purpose::Peek);
        assert!(
            !backend.check(&peek).await.unwrap().is_admitted(),
            "{engine:?}: the overage leaves too few units"
        );
        assert_eq!(
            (remaining(&backend, &user, &ten).await, remaining(&backend, &user, &two).await),
            (1, 2),
            "{engine:?}: a peek charges nothing"
        );

        backend.reset(&both).await.unwrap();
        assert_eq!(
            (remaining(&backend, &user, &ten).await, remaining(&backend, &address, &two).await),
            (10, 2),
            "{engine:?}: a reset restores the quota of each slot"
        );
    }
}

#[tokio::test]
async fn concurrent_checks_exceed_no_quota_and_roll_back() {
    let (_cluster, backend) = start(Engine::Redis).await;
    let [user, address] = keys();
    let (fifty, twenty) = (policy("fifty", 50, HOUR), policy("twenty", 20, HOUR));
    let both = check([pair(&user, &fifty, 1), pair(&address, &twenty, 1)]);
    // Both nodes know the script, so that the checks reach them in one order. Otherwise, all may charge one of them only.
    let warm = policy("warm", 1, HOUR);
    assert!(
        backend.check(&check([pair(&user, &warm, 1), pair(&address, &warm, 1)])).await.unwrap().is_admitted(),
        "the first check fits into both slots"
    );
    let checks = (0..200).map(|_| {
        let (backend, both) = (backend.clone(), both.clone());
        async move { backend.check(&both).await.unwrap().is_admitted() }
    });
    let admitted = concurrently(checks).await.into_iter().filter(|admitted| *admitted).count() as u32;
    assert!((1..=20).contains(&admitted), "{admitted} of 20");
    wait_for_rollback(&backend, &user, &fifty, 50 - admitted).await;
    assert_eq!(
        remaining(&backend, &address, &twenty).await,
        20 - admitted,
        "an admitted check charges both slots"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_keeps_usage_after_failover() {
    for engine in Engine::ALL {
        let (mut cluster, backend) = start(engine).await;
        let [user, _] = keys();
        let ten = policy("ten", 10, HOUR);
        let three = check([pair(&user, &ten, 3)]);
        assert!(backend.check(&three).await.unwrap().is_admitted(), "{engine:?}: the first check fits");
        let of_user = node_of(&cluster, &backend, &user).await.port();
        let primary = cluster.primaries().iter().position(|node| node.port() == of_user).unwrap();
        // Replication is asynchronous: the failover would lose data that the replica does not have yet.
        wait_until("the replica does not get the data", || {
            let nodes = [&cluster.replicas()[primary], &cluster.primaries()[primary]];
            let [replica, primary] = nodes.map(|node| Admin::at(node).keys());
            replica == primary && !primary.is_empty()
        })
        .await;

        cluster.kill(primary);
        let error = backend.check(&three).await.expect_err("a decision");
        assert!(matches!(error.reason(), Reason::Connection | Reason::Busy), "{engine:?}: {error:?}");
        cluster.fail_over(primary);
        let start = Instant::now();
        let decision = loop {
            match backend.check(&three).await {
                Ok(decision) => break decision,
                Err(error) => assert!(start.elapsed() < TIMEOUT, "{engine:?}: no decision: {error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        };
        assert!(
            decision.is_admitted() && decision.statuses()[0].remaining() == 4,
            "{engine:?}: {decision:?}"
        );
    }
}

#[tokio::test]
async fn cluster_streams_connect_to_owner_of_each_slot() {
    let cluster = Cluster::start(Engine::Redis);
    let opened = Arc::<Mutex<BTreeSet<u16>>>::default();
    // The only known node is a replica, which owns no slot.
    let seed = ("127.0.0.1", cluster.replicas()[0].port());
    let backend_without = |dead: Option<u16>| {
        let opened = opened.clone();
        let connect = move |host: String, port| {
            opened.lock().unwrap().insert(port);
            async move {
                if dead == Some(port) {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                TcpStream::connect((host, port)).await
            }
        };
        RedisBackend::builder(RedisServers::cluster_streams([seed], connect)).lazy().unwrap()
    };
    let backend = backend_without(None);
    let ten = policy("ten", 10, HOUR);
    for n in 0..20 {
        let key = PartitionKey::new("user", n.to_string());
        assert!(backend.check(&check([pair(&key, &ten, 1)])).await.unwrap().is_admitted(), "{n}");
    }
    let primaries: BTreeSet<u16> = cluster.primaries().iter().map(Server::port).collect();
    assert!(opened.lock().unwrap().is_superset(&primaries), "{opened:?} and {primaries:?}");
    assert!(format!("{backend:?}").contains("cluster over custom streams 127.0.0.1:"), "{backend:?}");

    // The caller cannot open a stream to one of the nodes.
    let backend = backend_without(primaries.first().copied());
    let mut failed = 0;
    for n in 0..20 {
        let key = PartitionKey::new("user", n.to_string());
        if let Err(error) = backend.check(&check([pair(&key, &ten, 1)])).await {
            assert_eq!(error.reason(), Reason::Connection, "{error:?}");
            failed += 1;
        }
    }
    assert!((1..20).contains(&failed), "{failed}");
    let none: [(String, u16); 0] = [];
    let error = RedisBackend::builder(RedisServers::cluster_streams(none, |host, port| {
        TcpStream::connect((host, port))
    }))
    .lazy();
    assert!(matches!(error, Err(ConfigError::NoClusterNodes)), "a cluster needs a node");
}

/// No node accepts a connection, and the deadline of a check is shorter than a look-up.
#[tokio::test(start_paused = true)]
async fn hung_lookups_open_their_breaker() {
    let connect = |_: String, _: u16| pending::<io::Result<TcpStream>>();
    let backend = RedisBackend::builder(RedisServers::cluster_streams([("127.0.0.1", 1)], connect)).lazy();
    let limiter = Limiter::builder(backend.unwrap()).policy(policy("ten", 10, HOUR)).build().unwrap();
    for _ in 0..10 {
        let error = limiter.check(PartitionKey::new("user", "alice")).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Timeout);
        sleep(Duration::from_millis(600)).await;
    }
    let breakers = limiter.stats().breakers;
    assert!(breakers.iter().any(|breaker| breaker.state != BreakerState::Closed), "{breakers:?}");
    assert!(!limiter.readiness().can_decide(), "{:?}", limiter.readiness());
}
