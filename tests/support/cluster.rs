//! A cluster of our own: three primaries that share the slots.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{cluster::ClusterClient, cluster_async::ClusterConnection, cmd};

use super::server::{Engine, Server, free_port};

const NODES: usize = 3;
const SLOTS: usize = 16_384;

/// A cluster. Its nodes end with it.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub fn start(engine: Engine) -> Self {
        let node = |_| {
            let bus = free_port().to_string();
            let options =
                ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &bus];
            let node = Server::with_options(engine, &options);
            (node, bus)
        };
        let nodes: Vec<(Server, String)> = (0..NODES).map(node).collect();
        for (i, (node, _)) in nodes.iter().enumerate() {
            let mut connection = node.connection();
            let slots: Vec<usize> = (0..SLOTS).filter(|slot| slot * NODES / SLOTS == i).collect();
            cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut connection).unwrap();
            for (other, bus) in &nodes[..i] {
                let meet = cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(other.port()).arg(bus).clone();
                meet.exec(&mut connection).unwrap();
            }
        }
        let cluster = Self { nodes: nodes.into_iter().map(|(node, _)| node).collect() };
        let start = Instant::now();
        while !cluster.nodes.iter().all(knows_all) {
            assert!(start.elapsed() < Duration::from_secs(30), "the cluster does not come together");
            sleep(Duration::from_millis(20));
        }
        cluster
    }

    /// A connection as a user would make it; it sends nothing twice.
    pub async fn connection(&self) -> ClusterConnection {
        let client = ClusterClient::builder(self.nodes.iter().map(Server::url))
            .retries(0)
            .response_timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        client.get_async_connection().await.unwrap()
    }
}

fn knows_all(node: &Server) -> bool {
    let info: String = cmd("CLUSTER").arg("INFO").query(&mut node.connection()).unwrap();
    ["cluster_state:ok", "cluster_slots_assigned:16384", "cluster_known_nodes:3"]
        .iter()
        .all(|line| info.contains(line))
}
