//! A cluster started by the test: three primaries that share the slots, and a replica of each.

use std::{
    thread::{self, sleep},
    time::{Duration, Instant},
};

use redis::{cluster::ClusterClient, cluster_async::ClusterConnection, cmd};
use sha2::{Digest, Sha256};
use tower_sliding_window::PartitionKey;

use super::server::{Engine, Server};

/// The number of primaries, and of replicas.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// The options of a node.
pub const OPTIONS: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "2000",
    // Replicas sync without delay, and may take over whatever the age of their data.
    "--repl-diskless-sync-delay",
    "0",
    "--cluster-replica-validity-factor",
    "0",
];

/// The maximum wait for the nodes to agree.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster. Its nodes end when this is dropped.
pub struct Cluster {
    /// The primaries in the order of their slots, then their replicas. The roles are those at the start.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster. Waits until every node knows all others and every replica follows its primary.
    pub fn start(engine: Engine) -> Self {
        let nodes: Vec<_> = (0..2 * PRIMARIES).map(|_| Server::with_options(engine, &OPTIONS)).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| [node.port(), node.port() + 10_000]).collect();
        Self::of(nodes, &addresses)
    }

    /// Forms a cluster of these nodes, which find each other at these ports: for clients, and of the cluster bus. Waits as
    /// [`start`](Self::start) does.
    pub fn of(nodes: Vec<Server>, addresses: &[[u16; 2]]) -> Self {
        let cluster = Self { nodes };
        for (i, node) in cluster.nodes.iter().enumerate() {
            let mut connection = node.connection();
            // Different epochs from the start, so that the nodes need not resolve a conflict.
            cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(i + 1).exec(&mut connection).unwrap();
            if i < PRIMARIES {
                let slots: Vec<usize> = (0..SLOTS).filter(|slot| slot * PRIMARIES / SLOTS == i).collect();
                cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut connection).unwrap();
            }
            for other in &addresses[..i] {
                cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(other).exec(&mut connection).unwrap();
            }
        }
        cluster.wait("the nodes do not meet", || cluster.nodes.iter().all(knows_all));
        let (primaries, replicas) = cluster.nodes.split_at(PRIMARIES);
        for (primary, replica) in primaries.iter().zip(replicas) {
            let primary: String = cmd("CLUSTER").arg("MYID").query(&mut primary.connection()).unwrap();
            let mut connection = replica.connection();
            cluster.wait("a replica does not take its primary", || {
                cmd("CLUSTER").arg("REPLICATE").arg(&primary).exec(&mut connection).is_ok()
            });
        }
        // If a primary died before it knew its replica, its slots would be lost.
        cluster.wait("the replicas do not follow", || {
            replicas.iter().all(follows) && cluster.nodes.iter().all(|node| count(node, "slave") == PRIMARIES)
        });
        cluster
    }

    /// Returns the nodes that were primaries at the start.
    pub fn primaries(&self) -> &[Server] {
        &self.nodes[..PRIMARIES]
    }

    /// Returns the replica of each primary, in the same order.
    pub fn replicas(&self) -> &[Server] {
        &self.nodes[PRIMARIES..]
    }

    /// Ends a primary at once, as a crash would.
    pub fn kill(&mut self, primary: usize) {
        assert!(primary < PRIMARIES);
        self.nodes[primary].kill();
    }

    /// Waits until the replica of a killed primary owns its slots, and all running nodes know it. Returns the duration.
    ///
    /// # Panics
    ///
    /// After a minute.
    pub fn fail_over(&self, killed: usize) -> Duration {
        let start = Instant::now();
        let replica = &self.nodes[PRIMARIES + killed];
        let id: String = cmd("CLUSTER").arg("MYID").query(&mut replica.connection()).unwrap();
        let knows_replica = |node: &Server| {
            let nodes = topology(node);
            let replica = nodes.lines().find(|line| line.starts_with(&id));
            replica.is_some_and(|line| line.contains("master")) && is_ok(node)
        };
        let alive = || self.nodes.iter().filter(|node| node.is_running());
        self.wait("the replica does not take over", || alive().all(knows_replica));
        start.elapsed()
    }

    /// Returns a connection as a user would make it. It never retries a command.
    pub async fn connection(&self) -> ClusterConnection {
        let client = ClusterClient::builder(self.nodes.iter().map(Server::url))
            .retries(0)
            .response_timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        client.get_async_connection().await.unwrap()
    }

    /// Deletes all data of the cluster.
    pub fn flush(&self) {
        for primary in self.primaries() {
            cmd("FLUSHALL").exec(&mut primary.connection()).unwrap();
        }
    }

    fn wait(&self, otherwise: &str, mut until: impl FnMut() -> bool) {
        let start = Instant::now();
        while !until() {
            let seen = || self.nodes.iter().filter(|node| node.is_running()).map(topology);
            assert!(start.elapsed() < TIMEOUT, "{otherwise}: {:#?}", seen().collect::<Vec<_>>());
            sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the slot of a partition key. This is an independent implementation of the documented layout.
///
/// Some tests try thousands of keys for one of a certain slot, so it allocates nothing.
pub fn slot(key: &PartitionKey) -> u16 {
    const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digest = Sha256::digest(key.as_bytes());
    let bits = u128::from_be_bytes(digest[..16].try_into().unwrap());
    // 128 bits of the hash and the version, 2, in base64url. The last character has two bits of the hash.
    let mut tag = [0; 22];
    for (i, character) in tag.iter_mut().enumerate() {
        let six = if i < 21 { bits >> (122 - 6 * i) } else { bits << 4 | 2 };
        *character = CHARACTERS[six as usize % 64];
    }
    crc16::State::<crc16::XMODEM>::calculate(&tag) % SLOTS as u16
}

fn topology(node: &Server) -> String {
    cmd("CLUSTER").arg("NODES").query(&mut node.connection()).unwrap()
}

/// Returns how many nodes have this flag in the topology that a node reports.
fn count(node: &Server, flag: &str) -> usize {
    let flags =
        |line: &str| line.split(' ').nth(2).is_some_and(|flags| flags.split(',').any(|found| found == flag));
    topology(node).lines().filter(|line| flags(line)).count()
}

fn info_contains(node: &Server, lines: &[&str]) -> bool {
    let info: String = cmd("CLUSTER").arg("INFO").query(&mut node.connection()).unwrap();
    lines.iter().all(|line| info.lines().any(|found| found.trim() == *line))
}

fn is_ok(node: &Server) -> bool {
    info_contains(node, &["cluster_state:ok", "cluster_slots_ok:16384"])
}

fn knows_all(node: &Server) -> bool {
    // No node is still in a handshake.
    info_contains(node, &["cluster_known_nodes:6", "cluster_size:3"])
        && is_ok(node)
        && count(node, "handshake") == 0
}

fn follows(replica: &Server) -> bool {
    let info: String = cmd("INFO").arg("replication").query(&mut replica.connection()).unwrap();
    ["role:slave", "master_link_status:up"].iter().all(|line| info.contains(line))
}

mod tests {
    use super::*;

    /// The nodes wait for each other, so the clusters run at the same time.
    #[test]
    fn replica_takes_over_from_killed_primary() {
        thread::scope(|scope| {
            for engine in Engine::ALL {
                scope.spawn(move || assert_replica_takes_over(engine));
            }
        });
    }

    fn assert_replica_takes_over(engine: Engine) {
        let start = Instant::now();
        let mut cluster = Cluster::start(engine);
        let started = start.elapsed();
        assert_eq!((cluster.primaries().len(), cluster.replicas().len()), (3, 3));
        // `foo` is in slot 12,182, which the last primary has.
        let set = |server: &Server| cmd("SET").arg("foo").arg("1").exec(&mut server.connection());
        set(&cluster.primaries()[2]).unwrap();
        assert!(set(&cluster.replicas()[2]).is_err(), "{engine:?}: a replica accepts a write");

        cluster.kill(2);
        let took = cluster.fail_over(2);
        set(&cluster.replicas()[2]).unwrap();
        assert!(started < TIMEOUT && took < TIMEOUT, "{engine:?}: {started:?}, {took:?}");
        println!("{engine:?}: started in {started:?}, failed over in {took:?}");
    }
}
