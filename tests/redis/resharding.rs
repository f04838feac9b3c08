//! Changes of the cluster topology during use: slots move, and primaries die or hang.

use std::time::{Duration, Instant};

use redis::cmd;
use tokio::{task::spawn_blocking, time::sleep};
use tower_sliding_window::{
    Limiter, PartitionKey, Policy, RedisBackend,
    backend::Reason,
    redis::{ConnectError, Merging, RedisServers},
};

use super::{
    admin::Admin,
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, concurrently, idle, policy},
};
use crate::support::{
    cluster::{Cluster, slot},
    server::{Engine, Server},
};

const PRIMARIES: usize = 3;
/// A busy machine exceeds the default deadline of 100 ms.
const DEADLINE: Duration = Duration::from_secs(1);

/// Starts a cluster on a blocking thread, so that the other engines of the test go on.
async fn start(engine: Engine) -> Cluster {
    spawn_blocking(move || Cluster::start(engine)).await.unwrap()
}

async fn backend(cluster: &Cluster) -> RedisBackend {
    merging_backend(cluster, Merging::default()).await
}

async fn merging_backend(cluster: &Cluster, merging: Merging) -> RedisBackend {
    // The client may connect to any node, even to a replica.
    let servers = RedisServers::cluster([cluster.replicas()[1].url()]);
    RedisBackend::builder(servers).merging(merging).connect().await.unwrap()
}

fn limiter(backend: &RedisBackend, deadline: Duration, policies: [Policy; 2]) -> Limiter {
    let builder = Limiter::builder(backend.clone()).deadline(deadline);
    policies.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

fn two() -> [Policy; 2] {
    [policy("hundred", 100, HOUR), policy("many", 1_000, HOUR)]
}

/// Returns the index of the primary that owned this key at the start.
fn owner(key: &PartitionKey) -> usize {
    usize::from(slot(key)) * PRIMARIES / 16_384
}

pub fn id(node: &Server) -> String {
    cmd("CLUSTER").arg("MYID").query(&mut node.connection()).unwrap()
}

pub fn set_slot(node: &Server, slot: u16, to: &[&str]) {
    cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(to).exec(&mut node.connection()).unwrap();
}

pub fn move_key(from: &Server, to: &Server, key: &str) {
    let mut command = cmd("MIGRATE");
    command.arg("127.0.0.1").arg(to.port()).arg(key).arg(0).arg(5_000);
    command.exec(&mut from.connection()).unwrap();
}

async fn remaining(limiter: &Limiter, key: &PartitionKey) -> Vec<u32> {
    let decision = limiter.peek((key.clone(), 0)).await.unwrap();
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

/// Repeats a check until there is a decision.
async fn until_decided(limiter: &Limiter, key: &PartitionKey) {
    let start = Instant::now();
    while let Err(error) = limiter.check(key.clone()).await {
        assert!(start.elapsed() < TIMEOUT, "no check gets a decision: {error:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Moves a slot while checks run. So many checks start at the same time.
async fn assert_charged_once_while_slot_moves(merging: Merging, together: u32) {
    concurrently(Engine::ALL.map(|engine| async move {
        let cluster = start(engine).await;
        let backend = merging_backend(&cluster, merging).await;
        let limiter = limiter(&backend, LONG_DEADLINE, two());
        let from = &cluster.primaries()[owner(&alice())];
        let to = &cluster.primaries()[(owner(&alice()) + 1) % PRIMARIES];
        let slot = slot(&alice());
        let mut used = 0;
        let mut check = async || {
            let outcomes = concurrently((0..together).map(|_| limiter.check(alice()))).await;
            let left = outcomes.into_iter().map(|outcome| outcome.unwrap().statuses()[0].remaining());
            let mut left: Vec<u32> = left.collect();
            left.sort_unstable();
            used += together;
            assert_eq!(left, (100 - used..100 - used + together).collect::<Vec<_>>(), "{engine:?}");
            used
        };
        check().await;
        let keys = Admin::at(from).keys();
        assert_eq!(keys.len(), 2, "{engine:?}: a key for each policy");

        set_slot(to, slot, &["IMPORTING", &id(from)]);
        set_slot(from, slot, &["MIGRATING", &id(to)]);
        // Both keys are still on the old node.
        check().await;
        // The keys are on different nodes. No node can run the check until both keys are on one.
        move_key(from, to, &keys[0]);
        for outcome in concurrently((0..together).map(|_| limiter.check(alice()))).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.reason(), Reason::Busy, "{engine:?}: {error:?}");
        }
        move_key(from, to, &keys[1]);
        // Both keys have moved, but the slot has not.
        check().await;
        for node in [to, from] {
            set_slot(node, slot, &["NODE", &id(to)]);
        }
        // The slot has moved.
        check().await;
        let used = check().await;
        assert_eq!(remaining(&limiter, &alice()).await, [100 - used, 1_000 - used], "{engine:?}");

        // The backend sends further checks directly to the new node.
        let mut admin = Admin::at(from);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        let used = check().await;
        assert_eq!(admin.calls("evalsha").all, 0, "{engine:?}");
        // Settlements and resets reach the new node as well.
        limiter.reserve((alice(), 5)).await.unwrap().settle(2).await;
        assert_eq!(remaining(&limiter, &alice()).await, [98 - used, 998 - used], "{engine:?}");
        limiter.reset(alice()).await.unwrap();
        assert_eq!(remaining(&limiter, &alice()).await, [100, 1_000], "{engine:?}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn checks_are_charged_once_while_slot_moves() {
    assert_charged_once_while_slot_moves(Merging::Off, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn merged_checks_are_charged_once_while_slot_moves() {
    assert_charged_once_while_slot_moves(Merging::On, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn replica_replaces_dead_cluster_primary() {
    let mut cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = limiter(&backend, DEADLINE, two());
    let dying = owner(&alice());
    let bob = (0..).map(|i| PartitionKey::new("user", i.to_string().as_str()));
    let bob = bob.into_iter().find(|bob| owner(bob) != dying).unwrap();
    let _ = limiter.check((alice(), 40)).await.unwrap();
    until_decided(&limiter, &bob).await;
    Admin::at(&cluster.primaries()[dying]).replicate();

    cluster.kill(dying);
    // The other primaries answer for their slots until they notice the failure.
    let mut decided = 0;
    for _ in 0..20 {
        decided += u32::from(limiter.check(bob.clone()).await.is_ok());
        let _ = limiter.check(alice()).await;
    }
    assert!(decided > 0, "no other primary answers");
    until_decided(&limiter, &alice()).await;
    assert_eq!(remaining(&limiter, &alice()).await, [59, 959], "each answered check is charged once");
    until_decided(&limiter, &bob).await;
}

/// A hanging primary keeps its connections open. It charges nothing when it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn hanging_cluster_primary_blocks_no_other_slot() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let patient = limiter(&backend, LONG_DEADLINE, two());
    let limiter = limiter(&backend, DEADLINE, two());
    let hanging = owner(&alice());
    let bob = (0..).map(|i| PartitionKey::new("user", i.to_string().as_str()));
    let bob = bob.into_iter().find(|bob| owner(bob) != hanging).unwrap();
    let _ = patient.check((alice(), 40)).await.unwrap();
    until_decided(&limiter, &bob).await;
    Admin::at(&cluster.primaries()[hanging]).replicate();
    let no_failover = |forbidden| {
        Admin::at(&cluster.replicas()[hanging]).set("cluster-replica-no-failover", forbidden);
    };
    no_failover("yes");
    for node in &cluster.nodes {
        // The other primaries answer for their slots even after they have noticed the failure.
        Admin::at(node).set("cluster-require-full-coverage", "no");
    }

    cluster.primaries()[hanging].signal(libc::SIGSTOP);
    let unanswered = backend.unanswered_checks();
    for check in 0..10 {
        limiter.check(alice()).await.expect_err("the primary hangs");
        let decision = patient.check(bob.clone()).await;
        assert!(decision.is_ok(), "check {check}, while another primary hangs: {decision:?}");
    }
    assert!(backend.unanswered_checks() > unanswered, "the hanging primary was asked");
    no_failover("no");
    until_decided(&limiter, &alice()).await;
    assert_eq!(remaining(&patient, &alice()).await, [59, 959], "41 units are charged");

    cluster.primaries()[hanging].signal(libc::SIGCONT);
    // The primary reads what it was sent while it hung.
    idle().await;
    idle().await;
    assert_eq!(remaining(&patient, &alice()).await, [59, 959], "the resumed primary charges nothing");
}

/// The Redis user has only the documented permissions.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn cluster_user_needs_slots_and_asking_permissions() {
    concurrently(Engine::ALL.map(|engine| async move {
        let cluster = start(engine).await;
        let allow = |commands: &str| {
            let commands = format!("reset on >secret ~tsw{{* {commands}");
            for node in &cluster.nodes {
                let words = ["ACL", "SETUSER", "limiter"].into_iter().chain(commands.split(' '));
                Admin::at(node).query::<()>(&words.collect::<Vec<_>>());
            }
        };
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", cluster.nodes[0].port());
        let always = "+evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire";
        allow(always);
        assert!(RedisBackend::builder(RedisServers::cluster([&url])).connect().await.is_err(), "{engine:?}");
        allow(&format!("{always} +cluster|slots"));
        let error =
            RedisBackend::builder(RedisServers::cluster([&url])).connect().await.unwrap_err().to_string();
        assert!(error.contains("lacks permission for ASKING (NOPERM)"), "{engine:?}: {error}");
        let backend = RedisBackend::builder(RedisServers::cluster([&url])).lazy().unwrap();
        let limiter = limiter(&backend, LONG_DEADLINE, two());
        let _ = limiter.check(alice()).await.unwrap();

        let from = &cluster.primaries()[owner(&alice())];
        let to = &cluster.primaries()[(owner(&alice()) + 1) % PRIMARIES];
        let slot = slot(&alice());
        set_slot(to, slot, &["IMPORTING", &id(from)]);
        set_slot(from, slot, &["MIGRATING", &id(to)]);
        for key in Admin::at(from).keys() {
            move_key(from, to, &key);
        }
        let error = limiter.check(alice()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NoPermission, "{engine:?}: {error:?}");
        allow(&format!("{always} +cluster|slots +asking"));
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
    }))
    .await;
}

#[tokio::test]
async fn unreachable_or_invalid_cluster_is_an_error() {
    let error = RedisBackend::builder(RedisServers::cluster(["redis://:secret@127.0.0.1:1/"]))
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("Redis at cluster 127.0.0.1:1: Connection refused"), "{text}");

    let none: [&str; 0] = [];
    let error = RedisBackend::builder(RedisServers::cluster(none)).lazy().unwrap_err();
    assert!(error.to_string().starts_with("missing cluster node: give at least one URL; "), "{error}");
    // The text states which URL it is, because it must not repeat the URL.
    for (url, expected) in [
        (
            "redis://127.0.0.1/2",
            "node 2: in a cluster, the backend uses only database 0: remove it from the URL; ",
        ),
        ("redis://127.0.0.1/-1", "node 2: the database must be a number from 0; "),
        (
            "redis+unix:///tmp/socket",
            "node 2: missing host: a cluster or Sentinel cannot use a Unix socket; ",
        ),
        ("127.0.0.1:6379", "node 2: Redis URL did not parse; "),
    ] {
        let servers = RedisServers::cluster(["redis://127.0.0.1/", url]);
        let error = RedisBackend::builder(servers).lazy().unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    // A server that is not in cluster mode reports that.
    let server = Server::start(Engine::Redis);
    let error = RedisBackend::builder(RedisServers::cluster([server.url()])).connect().await.unwrap_err();
    assert!(error.to_string().contains("cluster support disabled"), "{error}");
}

#[tokio::test]
async fn cluster_error_reports_wrong_password() {
    let cluster = start(Engine::Redis).await;
    let url = format!("redis://limiter:wrong@127.0.0.1:{}/", cluster.nodes[0].port());
    let error = RedisBackend::builder(RedisServers::cluster([&url])).connect().await.unwrap_err();
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    let limiter =
        limiter(&RedisBackend::builder(RedisServers::cluster([&url])).lazy().unwrap(), LONG_DEADLINE, two());
    let error = limiter.check(alice()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NoPermission, "{error:?}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");

    // After the password is set on the nodes, the backend connects.
    for node in &cluster.nodes {
        Admin::at(node).query::<()>(&["ACL", "SETUSER", "limiter", "on", ">wrong", "~*", "+@all"]);
    }
    until_decided(&limiter, &alice()).await;
}

/// A service may start while one of the nodes is down.
#[tokio::test]
async fn cluster_connects_through_any_reachable_node() {
    let mut cluster = start(Engine::Redis).await;
    // The dead node owns the first slot.
    cluster.kill(0);
    let urls: Vec<_> = cluster.nodes.iter().map(Server::url).collect();
    RedisBackend::builder(RedisServers::cluster(urls)).connect().await.unwrap();
}
