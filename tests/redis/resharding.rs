//! A cluster that changes under a service: slots that move, primaries that die or hang.

use std::time::{Duration, Instant};

use redis::cmd;
use tokio::{task::spawn_blocking, time::sleep};
use tower_sliding_window::{
    Limiter, PartitionKey, Policy, RedisBackend, backend::Reason, redis::ConnectError,
};

use super::{
    look::Look,
    rig::{HOUR, UNHURRIED, alice, at_once, policy},
};
use crate::support::{
    cluster::{Cluster, slot},
    server::{Engine, Server},
};

/// Long enough for the nodes to agree, and for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PRIMARIES: usize = 3;

/// Without keeping others of this test waiting.
async fn start(engine: Engine) -> Cluster {
    spawn_blocking(move || Cluster::start(engine)).await.unwrap()
}

async fn backend(cluster: &Cluster) -> RedisBackend {
    // Any of its nodes will do, a replica too.
    RedisBackend::connect_cluster([cluster.replicas()[1].url()]).await.unwrap()
}

fn limiter(backend: &RedisBackend, deadline: Duration, policies: [Policy; 2]) -> Limiter {
    let builder = Limiter::builder(backend.clone()).deadline(deadline);
    policies.into_iter().fold(builder, |builder, policy| builder.policy(policy)).build().unwrap()
}

fn two() -> [Policy; 2] {
    [policy("hundred", 100, HOUR), policy("many", 1_000, HOUR)]
}

/// The primary that had this key at the start.
fn owner(key: &PartitionKey) -> usize {
    usize::from(slot(key)) * PRIMARIES / 16_384
}

fn id(node: &Server) -> String {
    cmd("CLUSTER").arg("MYID").query(&mut node.connection()).unwrap()
}

fn set_slot(node: &Server, slot: u16, to: &[&str]) {
    cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(to).exec(&mut node.connection()).unwrap();
}

fn move_key(from: &Server, to: &Server, key: &str) {
    let mut command = cmd("MIGRATE");
    command.arg("127.0.0.1").arg(to.port()).arg(key).arg(0).arg(5_000);
    command.exec(&mut from.connection()).unwrap();
}

async fn left(limiter: &Limiter, key: &PartitionKey) -> Vec<u32> {
    let decision = limiter.peek(key.clone(), 0).await.unwrap();
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

/// Asks until there is a decision.
async fn until_decided(limiter: &Limiter, key: &PartitionKey) {
    let start = Instant::now();
    while let Err(error) = limiter.check(key.clone(), 1).await {
        assert!(start.elapsed() < PATIENCE, "there is never a decision: {error:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn while_a_slot_moves_every_check_is_decided_and_charged_once() {
    at_once(Engine::ALL.map(|engine| async move {
        let cluster = start(engine).await;
        let backend = backend(&cluster).await;
        let limiter = limiter(&backend, UNHURRIED, two());
        let from = &cluster.primaries()[owner(&alice())];
        let to = &cluster.primaries()[(owner(&alice()) + 1) % PRIMARIES];
        let slot = slot(&alice());
        let mut used = 0;
        let mut check = async || {
            used += 1;
            let decision = limiter.check(alice(), 1).await.unwrap();
            assert_eq!(decision.statuses()[0].remaining(), 100 - used, "{engine:?}");
        };
        check().await;
        let keys = Look::at(from).keys();
        assert_eq!(keys.len(), 2);

        set_slot(to, slot, &["IMPORTING", &id(from)]);
        set_slot(from, slot, &["MIGRATING", &id(to)]);
        // All is still there.
        check().await;
        // One key is here and one there: it has to wait until both are.
        move_key(from, to, &keys[0]);
        let error = limiter.check(alice(), 1).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Busy, "{engine:?}: {error:?}");
        move_key(from, to, &keys[1]);
        // All is on its way.
        check().await;
        for node in [to, from] {
            set_slot(node, slot, &["NODE", &id(to)]);
        }
        // All has arrived.
        check().await;
        check().await;
        assert_eq!(left(&limiter, &alice()).await, [95, 995], "{engine:?}");

        // It is sent where it belongs from now on.
        let mut look = Look::at(from);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        check().await;
        assert_eq!(look.calls("evalsha").all, 0, "{engine:?}");
        // What can be changed afterwards follows as well.
        limiter.reserve(alice(), 5).await.unwrap().settle(2).await;
        assert_eq!(left(&limiter, &alice()).await, [92, 992], "{engine:?}");
        limiter.reset(alice()).await.unwrap();
        assert_eq!(left(&limiter, &alice()).await, [100, 1_000], "{engine:?}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_primary_that_dies_in_a_cluster_is_followed_by_its_replica_and_the_others_go_on() {
    let mut cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = limiter(&backend, Limiter::DEFAULT_DEADLINE, two());
    let dying = owner(&alice());
    let bob = (0..).map(|i| PartitionKey::new("user", i.to_string().as_str()));
    let bob = bob.into_iter().find(|bob| owner(bob) != dying).unwrap();
    limiter.check(alice(), 40).await.unwrap();
    until_decided(&limiter, &bob).await;
    Look::at(&cluster.primaries()[dying]).replicate();

    cluster.kill(dying);
    // Until the others have noticed, they answer for what is theirs.
    let mut decided = 0;
    for _ in 0..20 {
        decided += u32::from(limiter.check(bob.clone(), 1).await.is_ok());
        let _ = limiter.check(alice(), 1).await;
    }
    assert!(decided > 0, "nobody answers");
    until_decided(&limiter, &alice()).await;
    assert_eq!(left(&limiter, &alice()).await, [59, 959]);
    until_decided(&limiter, &bob).await;
}

/// It keeps its connections, and nobody hangs up.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_primary_that_hangs_in_a_cluster_keeps_nobody_else_and_charges_nothing_afterwards() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = limiter(&backend, Limiter::DEFAULT_DEADLINE, two());
    let hanging = owner(&alice());
    let bob = (0..).map(|i| PartitionKey::new("user", i.to_string().as_str()));
    let bob = bob.into_iter().find(|bob| owner(bob) != hanging).unwrap();
    limiter.check(alice(), 40).await.unwrap();
    until_decided(&limiter, &bob).await;
    Look::at(&cluster.primaries()[hanging]).replicate();

    cluster.primaries()[hanging].signal(libc::SIGSTOP);
    let unanswered = backend.unanswered_checks();
    let mut decided = 0;
    for _ in 0..10 {
        assert!(limiter.check(alice(), 1).await.is_err());
        decided += u32::from(limiter.check(bob.clone(), 1).await.is_ok());
    }
    assert!(decided >= 8, "{decided} of 10 while a sibling hangs");
    assert!(backend.unanswered_checks() > unanswered);
    until_decided(&limiter, &alice()).await;
    assert_eq!(left(&limiter, &alice()).await, [59, 959]);

    cluster.primaries()[hanging].signal(libc::SIGCONT);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(left(&limiter, &alice()).await, [59, 959]);
}

/// A user of the cluster's nodes who may do what is documented, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_smallest_set_of_permissions_is_enough_in_a_cluster_and_less_is_not() {
    at_once(Engine::ALL.map(|engine| async move {
        let cluster = start(engine).await;
        let allow = |commands: &str| {
            let commands = format!("reset on >secret ~tsw:* {commands}");
            for node in &cluster.nodes {
                let words = ["ACL", "SETUSER", "limiter"].into_iter().chain(commands.split(' '));
                Look::at(node).ask::<()>(&words.collect::<Vec<_>>());
            }
        };
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", cluster.nodes[0].port());
        let always = "+evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire";
        allow(always);
        assert!(RedisBackend::connect_cluster([&url]).await.is_err(), "{engine:?}");
        allow(&format!("{always} +cluster|slots"));
        let backend = RedisBackend::connect_cluster([&url]).await.unwrap();
        let limiter = limiter(&backend, UNHURRIED, two());
        limiter.check(alice(), 1).await.unwrap();

        let from = &cluster.primaries()[owner(&alice())];
        let to = &cluster.primaries()[(owner(&alice()) + 1) % PRIMARIES];
        let slot = slot(&alice());
        set_slot(to, slot, &["IMPORTING", &id(from)]);
        set_slot(from, slot, &["MIGRATING", &id(to)]);
        for key in Look::at(from).keys() {
            move_key(from, to, &key);
        }
        let error = limiter.check(alice(), 1).await.unwrap_err();
        assert_eq!(error.reason(), Reason::NoPermission, "{engine:?}: {error:?}");
        allow(&format!("{always} +cluster|slots +asking"));
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_an_error_and_so_is_one_of_no_nodes() {
    let error = RedisBackend::connect_cluster(["redis://:secret@127.0.0.1:1/"]).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("Redis at cluster 127.0.0.1:1: Connection refused"), "{text}");

    let nobody: [&str; 0] = [];
    let error = RedisBackend::lazy_cluster(nobody).unwrap_err();
    assert!(error.to_string().starts_with("missing cluster node: give at least one URL; "), "{error}");
    let error = RedisBackend::lazy_cluster(["redis://127.0.0.1/2"]).unwrap_err();
    assert!(
        error.to_string().starts_with("a cluster has no database other than 0: remove it from the URL; "),
        "{error}"
    );
    let error = RedisBackend::lazy_cluster(["redis+unix:///tmp/socket"]).unwrap_err();
    assert!(
        error.to_string().starts_with("missing host: a cluster or Sentinel cannot use a Unix socket; "),
        "{error}"
    );

    // A server that is none says so.
    let server = Server::start(Engine::Redis);
    let error = RedisBackend::connect_cluster([server.url()]).await.unwrap_err();
    assert!(error.to_string().contains("cluster support disabled"), "{error}");
}

#[tokio::test]
async fn a_password_that_is_refused_in_a_cluster_is_told() {
    let cluster = start(Engine::Redis).await;
    let url = format!("redis://limiter:wrong@127.0.0.1:{}/", cluster.nodes[0].port());
    let error = RedisBackend::connect_cluster([&url]).await.unwrap_err();
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    let limiter = limiter(&RedisBackend::lazy_cluster([&url]).unwrap(), UNHURRIED, two());
    let error = limiter.check(alice(), 1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NoPermission, "{error:?}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");

    // Put right, it is taken.
    for node in &cluster.nodes {
        Look::at(node).ask::<()>(&["ACL", "SETUSER", "limiter", "on", ">wrong", "~*", "+@all"]);
    }
    until_decided(&limiter, &alice()).await;
}

/// A service may start while one of the nodes is down.
#[tokio::test]
async fn a_cluster_is_connected_to_if_any_of_its_nodes_answers() {
    let mut cluster = start(Engine::Redis).await;
    // It has the first slot.
    cluster.kill(0);
    let urls: Vec<_> = cluster.nodes.iter().map(Server::url).collect();
    RedisBackend::connect_cluster(urls).await.unwrap();
}
