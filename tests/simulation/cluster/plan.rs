//! The plan of a run: all its parameters and faults, derived from the seed.

use std::{ops::Range, slice::from_ref, time::Duration};

use tower_sliding_window::{Algorithm, PartitionKey, Policy};

use crate::simulation::{random::Random, run::TICK};

/// The number of primaries. Each has one replica: node `n` begins as the primary of shard `n`, and node `SHARDS + n` is its
/// replica.
pub const SHARDS: usize = 3;
pub const NODES: usize = 2 * SHARDS;

/// The deadline of a check.
pub const DEADLINE: Duration = Duration::from_millis(100);

/// The quota policies of a route and of an address.
pub const ROUTE: &str = "route";
pub const ADDRESS: &str = "address";

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    /// Whether clients merge their checks. Then more of their callers start at once.
    pub merges: bool,
    pub routes: u64,
    pub addresses: u64,
    pub route: Policy,
    pub address: Policy,
    /// The mean time between two checks of each client.
    pub pauses: Vec<Duration>,
    /// The client whose checks all are of the first address, so that it is over its limit.
    pub over_limit: Option<usize>,
    /// Idle times of all clients.
    pub idle: Vec<(Duration, Duration)>,
    /// The latency between each client and each node.
    pub latencies: Vec<[Duration; NODES]>,
    /// The time after which a failed node is replaced, and after which a node that is cut off from the others serves no more.
    pub node_timeout: Duration,
    /// The time by which a replica is behind its primary.
    pub lag: Duration,
    /// Whether the user may call `CLUSTER INFO` and `CLUSTER NODES`.
    pub has_permissions: bool,
    /// The difference of each node's clock, in microseconds.
    pub clocks: [i64; NODES],
    pub steps: Vec<(Duration, Step)>,
    /// The end of all faults.
    pub repaired: Duration,
    /// The instant at which all clients stop.
    pub last: Duration,
}

/// A fault or its end. A fault of a shard is a fault of its primary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The network holds all messages between a client and a node.
    Hold(usize, usize),
    Release(usize, usize),
    /// The network drops all messages between a client and a node.
    Partition(usize, usize),
    Repair(usize, usize),
    /// Connections from a client to a node neither succeed nor fail.
    SwallowConnections(usize, usize),
    AcceptConnections(usize, usize),
    /// The primary crashes. Unless `silently`, it closes its connections.
    Crash {
        shard: usize,
        silently: bool,
    },
    Restart {
        shard: usize,
        loses_data: bool,
    },
    /// The primary accepts connections and commands, and executes nothing.
    Hang(usize),
    /// The primary executes all waiting commands.
    Resume(usize),
    /// The primary is cut off from the other nodes, but not from the clients.
    Isolate(usize),
    Rejoin(usize),
    /// The replica takes over.
    Failover(usize),
    /// The node returns a wrong map.
    Lie(usize, Lie),
    EndLie(usize),
    /// The slot of a route moves to a shard, or its keys do.
    Migrate {
        route: u64,
        shard: usize,
        phase: Phase,
    },
}

/// What a run is about.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Faults of shards, links, maps and slots.
    Mixed,
    /// A primary is cut off from the other nodes for a long time.
    Isolation,
    /// The clients are idle at times.
    Idle,
    /// Primaries hang, and are not replaced.
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// The map at the start.
    OldMap,
    /// A map with a node that does not exist.
    MissingNode,
}

/// The phase of the migration of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Some keys of a check are here and some there.
    KeysMoving,
    /// All keys are there, and the owner is still the same.
    KeysMoved,
    /// The owner has changed.
    Moved,
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The clients connect before the first fault.
const BEGIN: Duration = millis(1_000);
const REPAIRED: Duration = millis(7_000);

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xc1a5_7e12);
        let kind = [Kind::Mixed, Kind::Isolation, Kind::Idle, Kind::Hang, Kind::Mixed][seed as usize % 5];
        let clients = random.between(2..4) as usize;
        let window = random.millis(400..1_600);
        let mut policies = [ROUTE, ADDRESS].map(|name| {
            let many = if kind == Kind::Hang { 20 } else { 1 };
            let quota = if name == ROUTE { random.between(20..120) } else { random.between(8..40) };
            Policy::new(name, many * quota as u32, window).unwrap()
        });
        if random.one_in(3) {
            let algorithm = Algorithm::SlidingBuckets { precision: window / 8 };
            policies = policies.map(|policy| policy.with_algorithm(algorithm).unwrap());
        }
        let [route, address] = policies;
        let pauses =
            if kind == Kind::Hang { &[millis(10)][..] } else { &[millis(15), millis(30), millis(60)] };
        let pauses = (0..clients).map(|_| random.one_of(pauses)).collect();
        let over_limit = random.one_in(2).then_some(0);
        let mut latencies: Vec<_> =
            (0..clients).map(|_| [(); NODES].map(|()| random.millis(1..12))).collect();
        let node_timeout = random.millis(200..500);
        let has_permissions = if kind == Kind::Isolation { seed / 5 % 2 == 1 } else { !random.one_in(3) };
        let (mut steps, mut idle) = (Vec::new(), Vec::new());
        match kind {
            Kind::Mixed => {
                of_shards(&mut random.fork(), clients, node_timeout, &mut steps);
                of_links(&mut random.fork(), clients, &mut steps);
                of_slots(&mut random.fork(), &mut steps);
                if has_permissions {
                    of_maps(&mut random.fork(), &mut steps);
                }
            }
            Kind::Isolation => {
                let shard = random.between(0..SHARDS as u64) as usize;
                // The old primary replies first.
                for nodes in &mut latencies {
                    nodes.iter_mut().for_each(|latency| *latency += 3 * TICK);
                    nodes[shard] = TICK;
                }
                let begin = BEGIN + random.millis(0..500);
                let failover = begin + node_timeout + millis(50);
                let isolate = [(begin, Step::Isolate(shard)), (failover, Step::Failover(shard))];
                steps.extend(isolate.into_iter().chain([(REPAIRED, Step::Rejoin(shard))]));
            }
            Kind::Idle => idle = of_idle_times(&mut random.fork(), clients, &mut steps),
            Kind::Hang => {
                let shard = random.between(0..SHARDS as u64) as usize;
                for (begin, end) in spans(&mut random.fork(), 200..500, from_ref(&(120..400))) {
                    steps.extend([(begin, Step::Hang(shard)), (end, Step::Resume(shard))]);
                }
            }
        }
        steps.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            clients,
            // Half of the runs of each kind.
            merges: seed / 5 % 2 == 1,
            // A check across slots waits for a late reply, which shows that the node is not silent.
            routes: if kind == Kind::Idle { 0 } else { 2 },
            addresses: 6,
            route,
            address,
            pauses,
            over_limit,
            idle,
            latencies,
            node_timeout,
            lag: random.millis(0..30),
            has_permissions,
            clocks: [(); NODES].map(|()| random.between(0..4_000_000) as i64 - 2_000_000),
            steps,
            repaired: REPAIRED,
            last: REPAIRED + millis(4_000),
        }
    }

    pub fn route(number: u64) -> PartitionKey {
        PartitionKey::new("route", number.to_string())
    }

    pub fn address(number: u64) -> PartitionKey {
        PartitionKey::new("address", number.to_string())
    }

    pub fn client(number: usize) -> String {
        format!("client-{number}")
    }

    pub fn node(number: usize) -> String {
        format!("node-{number}")
    }
}

/// Returns consecutive time spans before the end of all faults.
fn spans(random: &mut Random, gap: Range<u64>, lengths: &[Range<u64>]) -> Vec<(Duration, Duration)> {
    let (mut spans, mut at) = (Vec::new(), BEGIN);
    loop {
        let begin = at + random.millis(gap.clone());
        let length = random.one_of(lengths);
        let end = begin + random.millis(length);
        if end >= REPAIRED {
            return spans;
        }
        spans.push((begin, end));
        at = end;
    }
}

fn of_shards(random: &mut Random, clients: usize, timeout: Duration, steps: &mut Vec<(Duration, Step)>) {
    // At most one shard has a fault at a time, so that the others are healthy.
    for (begin, end) in spans(random, 100..900, &[60..200, 300..1_200, 1_200..2_500]) {
        let shard = random.between(0..SHARDS as u64) as usize;
        let (fault, repair) = match random.between(0..8) {
            0 | 1 => {
                let silently = random.one_in(2);
                let loses_data = random.one_in(4);
                (Step::Crash { shard, silently }, Step::Restart { shard, loses_data })
            }
            2..=4 => (Step::Hang(shard), Step::Resume(shard)),
            _ => (Step::Isolate(shard), Step::Rejoin(shard)),
        };
        steps.extend([(begin, fault), (end, repair)]);
        // Sometimes the first connections after the fault are lost.
        if random.one_in(3) {
            let until = end + random.millis(100..600);
            for (client, node) in (0..clients).flat_map(|client| [(client, shard), (client, SHARDS + shard)])
            {
                steps.push((begin, Step::SwallowConnections(client, node)));
                steps.push((until.min(REPAIRED), Step::AcceptConnections(client, node)));
            }
        }
        // Sometimes the replica is not able to take over.
        let failover = begin + timeout + random.millis(20..100);
        if failover < end && !random.one_in(4) {
            steps.push((failover, Step::Failover(shard)));
        }
    }
}

fn of_links(random: &mut Random, clients: usize, steps: &mut Vec<(Duration, Step)>) {
    for client in 0..clients {
        for (begin, end) in spans(random, 200..3_000, &[10..90, 90..400, 400..1_500]) {
            let node = random.between(0..NODES as u64) as usize;
            let (fault, repair) = random.one_of(&[
                (Step::Hold(client, node), Step::Release(client, node)),
                (Step::Hold(client, node), Step::Release(client, node)),
                (Step::Partition(client, node), Step::Repair(client, node)),
            ]);
            steps.extend([(begin, fault), (end, repair)]);
        }
    }
}

fn of_maps(random: &mut Random, steps: &mut Vec<(Duration, Step)>) {
    for (begin, end) in spans(random, 0..2_000, from_ref(&(1_000..3_000))) {
        let node = random.between(0..NODES as u64) as usize;
        let lie = random.one_of(&[Lie::OldMap, Lie::MissingNode]);
        steps.extend([(begin, Step::Lie(node, lie)), (end, Step::EndLie(node))]);
    }
}

fn of_slots(random: &mut Random, steps: &mut Vec<(Duration, Step)>) {
    for (begin, end) in spans(random, 500..4_000, from_ref(&(20..200))) {
        let (route, shard) = (random.between(0..2), random.between(0..SHARDS as u64) as usize);
        let step = |phase| Step::Migrate { route, shard, phase };
        let moved = begin + (end - begin) / 4;
        steps.extend([
            (begin, step(Phase::KeysMoving)),
            (moved, step(Phase::KeysMoved)),
            (end, step(Phase::Moved)),
        ]);
    }
}

/// Returns times in which no client calls. Before each, checks of a primary get no reply in time.
fn of_idle_times(
    random: &mut Random,
    clients: usize,
    steps: &mut Vec<(Duration, Step)>,
) -> Vec<(Duration, Duration)> {
    let idle = spans(random, 300..700, from_ref(&(800..1_000)));
    for (begin, _) in &idle {
        let (client, node) =
            (random.between(0..clients as u64) as usize, random.between(0..SHARDS as u64) as usize);
        steps.push((*begin - millis(150), Step::Hold(client, node)));
        // All checks have ended.
        steps.push((*begin + DEADLINE + millis(30), Step::Release(client, node)));
    }
    idle
}
