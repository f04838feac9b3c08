//! A primary that is cut off from the cluster bus: it still answers, closer than the node that has replaced it.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redis::cmd;
use tokio::{task::spawn_blocking, time::interval};
use tower_sliding_window::{Limiter, RedisBackend, backend::BackendError, redis::RedisServers};

use super::{
    admin::Admin,
    proxy::relay,
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, concurrently, policy, wait_until},
};
use crate::support::{
    cluster::{Cluster, OPTIONS, slot},
    server::{Engine, Server},
};

const NODES: usize = 6;
/// The checks after the first decision: eight seconds of them, in which the backend refreshes its topology many times.
const CHECKS: usize = 240;
/// The distance of every node except the isolated one.
const DISTANCE: Duration = Duration::from_millis(10);

/// A cluster whose nodes reach each other only through relays, which can isolate one of them.
struct Isolating {
    cluster: Cluster,
    /// The ports at which clients find the nodes.
    ports: Vec<u16>,
    isolated: Arc<AtomicUsize>,
}

/// The address from which a node connects to the others. The relays know the nodes by it.
fn source(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 10 + node as u8)
}

impl Isolating {
    /// Starts a cluster. All nodes except `near` are far away.
    async fn start(engine: Engine, near: usize) -> Self {
        let isolated = Arc::new(AtomicUsize::new(usize::MAX));
        let mut addresses = Vec::new();
        let mut targets = Vec::new();
        for node in 0..NODES {
            let target = [Arc::new(AtomicU16::new(0)), Arc::new(AtomicU16::new(0))];
            let delay = if node == near { Duration::ZERO } else { DISTANCE };
            let client = relay(target[0].clone(), delay, |_| false).await;
            let isolated = isolated.clone();
            let is_cut = move |from| {
                let cut = isolated.load(Ordering::SeqCst);
                cut == node || cut < NODES && source(cut) == from
            };
            addresses.push([client, relay(target[1].clone(), Duration::ZERO, is_cut).await]);
            targets.push(target);
        }
        let ports = addresses.iter().map(|[client, _]| *client).collect();
        let start = move || {
            let mut nodes = Vec::new();
            for (node, [client, bus]) in addresses.iter().enumerate() {
                let (source, client, bus) = (source(node).to_string(), client.to_string(), bus.to_string());
                let own = ["--bind-source-addr", &source, "--cluster-announce-ip", "127.0.0.1"];
                let announced = ["--cluster-announce-port", &client, "--cluster-announce-bus-port", &bus];
                let server = Server::with_options(engine, &[&OPTIONS[..], &own, &announced].concat());
                targets[node][0].store(server.port(), Ordering::SeqCst);
                targets[node][1].store(server.port() + 10_000, Ordering::SeqCst);
                nodes.push(server);
            }
            Cluster::of(nodes, &addresses)
        };
        let cluster = spawn_blocking(start).await.unwrap();
        Self { cluster, ports, isolated }
    }

    fn urls(&self, user: &str) -> Vec<String> {
        self.ports.iter().map(|port| format!("redis://{user}127.0.0.1:{port}/")).collect()
    }

    /// Cuts a primary off from the cluster bus. Waits until its replica has replaced it.
    async fn isolate(&self, primary: usize) {
        self.isolated.store(primary, Ordering::SeqCst);
        let replaced = || {
            self.cluster.nodes.iter().enumerate().all(|(node, server)| {
                let slots: Vec<(u16, u16, (String, u16))> = owners(server);
                let owner = slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot(&alice())));
                let port = owner.map(|(_, _, (_, port))| *port);
                if node == primary {
                    return state(server) == "fail" && port == Some(self.ports[primary]);
                }
                state(server) == "ok" && port == Some(self.ports[primary + 3])
            })
        };
        wait_until("the replica does not replace the isolated primary", replaced).await;
    }
}

fn state(server: &Server) -> String {
    let info: String = cmd("CLUSTER").arg("INFO").query(&mut server.connection()).unwrap();
    let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
    state.unwrap_or_default().trim().to_owned()
}

fn owners(server: &Server) -> Vec<(u16, u16, (String, u16))> {
    let slots: Vec<Vec<redis::Value>> = cmd("CLUSTER").arg("SLOTS").query(&mut server.connection()).unwrap();
    let owner = |range: Vec<redis::Value>| {
        let [first, last, primary, ..] = &range[..] else { panic!("{range:?}") };
        let redis::Value::Array(primary) = primary.clone() else { panic!("{primary:?}") };
        let parse = |value: &redis::Value| redis::from_redis_value::<u16>(value.clone()).unwrap();
        let host: String = redis::from_redis_value(primary[0].clone()).unwrap();
        (parse(first), parse(last), (host, parse(&primary[1])))
    };
    slots.into_iter().map(owner).collect()
}

/// Makes at most 30 checks a second, and returns the errors after the first decision.
async fn errors(limiter: &Limiter) -> Vec<BackendError> {
    let (start, mut pace, mut errors) = (Instant::now(), interval(Duration::from_secs(1) / 30), Vec::new());
    while let Err(error) = limiter.check(alice()).await {
        assert!(start.elapsed() < TIMEOUT, "the backend does not leave the isolated primary: {error:?}");
        pace.tick().await;
    }
    for _ in 0..CHECKS {
        pace.tick().await;
        errors.extend(limiter.check(alice()).await.err());
    }
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn backend_leaves_isolated_cluster_primary() {
    let primary = usize::from(slot(&alice())) * 3 / 16_384;
    concurrently([Engine::Redis, Engine::Redis8, Engine::Valkey].map(|engine| async move {
        let isolating = Isolating::start(engine, primary).await;
        let required =
            "~tsw{* +evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire +cluster|slots +asking";
        for (user, optional) in [("most", "+cluster|info +cluster|nodes"), ("least", "")] {
            for node in &isolating.cluster.nodes {
                let words = format!("ACL SETUSER {user} reset on >secret {required} {optional}");
                Admin::at(node).query::<()>(&words.split_whitespace().collect::<Vec<_>>());
            }
        }
        let mut limiters = Vec::new();
        for user in ["most:secret@", "least:secret@"] {
            let backend =
                RedisBackend::builder(RedisServers::cluster(isolating.urls(user))).connect().await.unwrap();
            let builder = Limiter::builder(backend).policy(policy("many", 1_000_000, HOUR));
            let limiter = builder.deny_cache(None).deadline(LONG_DEADLINE).build().unwrap();
            let _ = limiter.check(alice()).await.unwrap();
            limiters.push(limiter);
        }
        isolating.isolate(primary).await;
        concurrently(limiters.into_iter().zip(["most", "least"]).map(|(limiter, user)| async move {
            let errors = errors(&limiter).await;
            assert!(errors.is_empty(), "{engine:?}, user {user}: {} errors: {:?}", errors.len(), errors[0]);
        }))
        .await;
    }))
    .await;
}
