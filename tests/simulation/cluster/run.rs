//! A run: a simulated network, the nodes, the clients and the steps of the plan.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use tower_sliding_window::{PartitionKey, Policy, RedisBackend, testing::ManualClock};
use turmoil::{Builder, Sim};

use super::{
    client::Client,
    node::{Cluster, NodeHandle, slot},
    plan::{NODES, Plan, SHARDS, Step},
    record::{Entry, Event, Record},
};
use crate::simulation::{run::TICK, server};

/// The time after a hang during which a node does not yet know what has happened meanwhile.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The pairs of a client and a node whose new connections neither succeed nor fail.
pub type Swallowed = Arc<Mutex<BTreeSet<(usize, usize)>>>;

/// Runs a plan and returns its events.
pub fn run(plan: &Plan) -> Vec<Entry> {
    let record = Record::default();
    let cluster = Arc::new(Mutex::new(Cluster::new(plan.clone(), record.clone())));
    let clock = ManualClock::new();
    let begin = clock.now_micros();
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .epoch(UNIX_EPOCH)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(60))
        .min_message_latency(TICK)
        .max_message_latency(TICK)
        .tcp_capacity(4_096)
        .enable_random_order()
        .build();
    for number in 0..NODES {
        let node = NodeHandle { number, cluster: cluster.clone() };
        sim.host(Plan::node(number), move || server::serve(node.clone()));
    }
    let swallowed = Swallowed::default();
    for number in 0..plan.clients {
        let (plan, record, clock) = (plan.clone(), record.clone(), clock.clone());
        let client = Client { number, plan, record, clock, swallowed: swallowed.clone() };
        sim.client(Plan::client(number), client.run());
    }
    for (client, latencies) in plan.latencies.iter().enumerate() {
        for (node, latency) in latencies.iter().enumerate() {
            sim.set_link_latency(Plan::client(client), Plan::node(node), *latency);
        }
    }
    let mut steps = plan.steps.iter().peekable();
    let mut faults = Faults { failed: [None; SHARDS], catching_up: Vec::new(), swallowed };
    loop {
        let now = sim.elapsed();
        faults.end_catching_up(now, &cluster);
        while let Some((_, step)) = steps.next_if(|(at, _)| *at <= now) {
            let node = faults.apply(*step, plan, &mut sim, &mut cluster.lock().unwrap(), now);
            record.note_at(now, Event::Step(*step, node));
        }
        clock.set_micros(begin + now.as_micros() as u64);
        if sim.step().unwrap_or_else(|error| panic!("seed {}: {error}", plan.seed)) {
            // A panic of a task of a host is not reported.
            assert!(!cluster.is_poisoned(), "seed {}: a node has panicked", plan.seed);
            return record.take();
        }
    }
}

/// Returns the slot of a route.
pub fn slot_of_route(route: u64, plan: &Plan) -> u16 {
    slot_of(&Plan::route(route), &plan.route)
}

/// Returns the slots of all routes and addresses, each with its quota.
pub fn slots_of(plan: &Plan) -> Vec<(u16, u32)> {
    let routes = (0..plan.routes).map(|route| (Plan::route(route), &plan.route));
    let addresses = (0..plan.addresses).map(|address| (Plan::address(address), &plan.address));
    routes.chain(addresses).map(|(key, policy)| (slot_of(&key, policy), policy.quota().unwrap())).collect()
}

fn slot_of(key: &PartitionKey, policy: &Policy) -> u16 {
    // The names of the keys do not depend on the server.
    let backend = RedisBackend::lazy("redis://127.0.0.1").unwrap();
    slot(&backend.key_name("tsw", key, policy))
}

/// The faults that have not ended.
struct Faults {
    /// The failed primary of each shard, and since when it has failed.
    failed: [Option<(usize, Duration)>; SHARDS],
    /// The nodes that do not yet know what has happened while they were stopped.
    catching_up: Vec<(Duration, usize)>,
    swallowed: Swallowed,
}

impl Faults {
    /// Applies a step, and returns the node that it concerns.
    fn apply(
        &mut self,
        step: Step,
        plan: &Plan,
        sim: &mut Sim<'_>,
        cluster: &mut Cluster,
        now: Duration,
    ) -> Option<usize> {
        let link = |client: usize, node: usize| (Plan::client(client), Plan::node(node));
        match step {
            Step::Hold(client, node) => {
                let (client, node) = link(client, node);
                sim.hold(client, node);
            }
            Step::Release(client, node) => {
                let (client, node) = link(client, node);
                sim.release(client, node);
            }
            Step::Partition(client, node) => {
                let (client, node) = link(client, node);
                sim.partition(client, node);
            }
            Step::Repair(client, node) => {
                let (client, node) = link(client, node);
                sim.repair(client, node);
            }
            Step::SwallowConnections(client, node) => {
                self.swallowed.lock().unwrap().insert((client, node));
            }
            Step::AcceptConnections(client, node) => {
                self.swallowed.lock().unwrap().remove(&(client, node));
            }
            Step::Crash { shard, silently } => {
                let node = self.fail(shard, cluster, now);
                cluster.nodes[node].is_down = true;
                let clients: Vec<String> = (0..plan.clients).map(Plan::client).collect();
                if silently {
                    clients.iter().for_each(|client| sim.partition(&**client, Plan::node(node)));
                }
                sim.crash(Plan::node(node));
                if silently {
                    clients.iter().for_each(|client| sim.repair(&**client, Plan::node(node)));
                }
                return Some(node);
            }
            Step::Restart { shard, loses_data } => {
                let (node, _) = self.failed[shard].take()?;
                cluster.restart(node, loses_data);
                sim.bounce(Plan::node(node));
                return Some(node);
            }
            Step::Hang(shard) => {
                let node = self.fail(shard, cluster, now);
                cluster.nodes[node].paused_until = Duration::MAX;
                return Some(node);
            }
            Step::Resume(shard) => {
                let (node, _) = self.failed[shard].take()?;
                cluster.nodes[node].paused_until = Duration::ZERO;
                self.catching_up.push((now + CATCH_UP, node));
                return Some(node);
            }
            Step::Isolate(shard) => {
                let node = self.fail(shard, cluster, now);
                cluster.isolate(node, now);
                return Some(node);
            }
            Step::Rejoin(shard) => {
                let (node, _) = self.failed[shard].take()?;
                cluster.rejoin(node);
                return Some(node);
            }
            Step::Failover(shard) => {
                let (_, since) = self.failed[shard]?;
                return Some(cluster.fail_over(shard, since, now));
            }
            Step::Lie(node, lie) => cluster.set_lie(node, Some(lie)),
            Step::EndLie(node) => cluster.set_lie(node, None),
            Step::Migrate { route, shard, phase } => {
                let moves = cluster.migrate(slot_of_route(route, plan), shard, phase);
                return moves.then(|| cluster.primary(shard));
            }
        }
        match step {
            Step::Hold(_, node)
            | Step::Release(_, node)
            | Step::Partition(_, node)
            | Step::Repair(_, node)
            | Step::SwallowConnections(_, node)
            | Step::AcceptConnections(_, node)
            | Step::Lie(node, _)
            | Step::EndLie(node) => Some(node),
            _ => None,
        }
    }

    fn fail(&mut self, shard: usize, cluster: &mut Cluster, now: Duration) -> usize {
        self.end_catching_up_in(Duration::MAX, cluster);
        let node = cluster.primary(shard);
        self.failed[shard] = Some((node, now));
        node
    }

    fn end_catching_up(&mut self, now: Duration, cluster: &Mutex<Cluster>) {
        if self.catching_up.iter().any(|(until, _)| *until <= now) {
            self.end_catching_up_in(now, &mut cluster.lock().unwrap());
        }
    }

    fn end_catching_up_in(&mut self, now: Duration, cluster: &mut Cluster) {
        for (_, node) in self.catching_up.extract_if(.., |(until, _)| *until <= now) {
            cluster.rejoin(node);
        }
    }
}
