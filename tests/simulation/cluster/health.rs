//! Which nodes were healthy at which time, as the steps of a run show it.

use std::time::Duration;

use super::{
    plan::{Lie, NODES, Phase, Plan, SHARDS, Step},
    record::{Entry, Event},
    rules::RECOVERY,
    run::slot_of_route,
};

/// Latencies differ by up to a few ticks.
const SLACK: Duration = Duration::from_millis(4);

pub struct Health {
    faults: Vec<Fault>,
    /// The owners of slots: the shard of a slot has moved, or the primary of a shard has changed.
    moved: Vec<(Duration, u16, usize)>,
    promoted: Vec<(Duration, usize, usize)>,
    latencies: Vec<[Duration; NODES]>,
    stopped: Vec<(Duration, usize)>,
    /// The times in which a node reported that another node, which does not exist, has the slots of node 1.
    lies: Vec<(Duration, Duration)>,
}

struct Fault {
    what: What,
    from: Duration,
    to: Duration,
    /// Whether messages may be lost.
    loses_messages: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Node(usize),
    /// The connection of a client to a node.
    Link(usize, usize),
    Slot(u16),
}

impl Health {
    pub fn of(plan: &Plan, entries: &[Entry]) -> Self {
        let latencies = plan.latencies.clone();
        let mut health = Self {
            faults: Vec::new(),
            moved: Vec::new(),
            promoted: Vec::new(),
            latencies,
            stopped: Vec::new(),
            lies: Vec::new(),
        };
        for Entry { at, event } in entries {
            match event {
                Event::Step(step, node) => health.add(*at, *step, *node, plan),
                Event::Promoted { shard, node } => {
                    // The other nodes learn of it at once, but the clients do not.
                    let old = (node + SHARDS) % NODES;
                    for node in [*node, old] {
                        let what = What::Node(node);
                        health.faults.push(Fault { what, from: *at, to: *at, loses_messages: true });
                    }
                    health.promoted.push((*at, *shard, *node));
                }
                Event::Stopped(stopped) => health.stopped.push((*at, stopped.client)),
                _ => {}
            }
        }
        health
    }

    fn add(&mut self, at: Duration, step: Step, node: Option<usize>, plan: &Plan) {
        let of_node = node.map(What::Node);
        match step {
            Step::Hold(client, node) | Step::SwallowConnections(client, node) => {
                self.begin(at, What::Link(client, node), false);
            }
            Step::Partition(client, node) => self.begin(at, What::Link(client, node), true),
            Step::Release(client, node)
            | Step::Repair(client, node)
            | Step::AcceptConnections(client, node) => {
                self.end(at, What::Link(client, node));
            }
            Step::Crash { .. } => of_node.into_iter().for_each(|what| self.begin(at, what, true)),
            Step::Hang(_) | Step::Isolate(_) => {
                of_node.into_iter().for_each(|what| self.begin(at, what, false))
            }
            Step::Restart { .. } | Step::Resume(_) | Step::Rejoin(_) => {
                of_node.into_iter().for_each(|what| self.end(at, what));
            }
            Step::Migrate { route, shard, phase } if node.is_some() => {
                let slot = slot_of_route(route, plan);
                if phase == Phase::KeysMoving {
                    self.begin(at, What::Slot(slot), false);
                }
                if phase == Phase::Moved {
                    self.end(at, What::Slot(slot));
                    self.moved.push((at, slot, shard));
                }
            }
            Step::Lie(lying, Lie::MissingNode) => {
                let ends = |(end, step): &&(Duration, Step)| *end > at && *step == Step::EndLie(lying);
                let end = plan.steps.iter().find(ends).map_or(Duration::MAX, |(at, _)| *at);
                self.lies.push((at, end));
            }
            Step::Migrate { .. } | Step::Failover(_) | Step::Lie(..) | Step::EndLie(_) => {}
        }
    }

    fn begin(&mut self, from: Duration, what: What, loses_messages: bool) {
        self.faults.push(Fault { what, from, to: Duration::MAX, loses_messages });
    }

    fn end(&mut self, at: Duration, what: What) {
        let begun = self.faults.iter_mut().rfind(|fault| fault.what == what && fault.to == Duration::MAX);
        begun.into_iter().for_each(|fault| fault.to = at);
    }

    pub fn latency(&self, client: usize, node: usize) -> Duration {
        self.latencies[client][node]
    }

    fn owner(&self, slot: u16, at: Duration) -> usize {
        let moved = self.moved.iter().rfind(|(since, of, _)| *since <= at && *of == slot);
        let shard = moved.map_or(usize::from(slot) * SHARDS / 16_384, |(_, _, shard)| *shard);
        self.primary(shard, at)
    }

    fn primary(&self, shard: usize, at: Duration) -> usize {
        let promoted = self.promoted.iter().rfind(|(since, of, _)| *since <= at && *of == shard);
        promoted.map_or(shard, |(_, _, node)| *node)
    }

    /// Returns whether a fault of the node, of the connection to it, or of the slot is present in this time.
    fn has_fault(&self, client: usize, node: usize, slot: Option<u16>, from: Duration, to: Duration) -> bool {
        self.faults.iter().any(|fault| {
            let concerns = match fault.what {
                What::Node(of) => of == node,
                What::Link(of, to) => (of, to) == (client, node),
                What::Slot(of) => Some(of) == slot,
            };
            concerns && fault.from <= to && fault.to >= from
        })
    }

    /// Returns the node that has a slot, if the client was able to use it all the time: it has had no fault since the recovery
    /// time before `from`.
    pub fn node(&self, client: usize, slot: u16, from: Duration, to: Duration) -> Option<usize> {
        let begin = from.checked_sub(RECOVERY)?;
        let node = self.owner(slot, begin);
        let is_stable = node == self.owner(slot, to) && !self.has_fault(client, node, Some(slot), begin, to);
        is_stable.then_some(node)
    }

    /// Returns whether a reply that a node has sent at `at` has arrived before `end`.
    pub fn has_replied(&self, client: usize, node: usize, at: Duration, end: Duration) -> bool {
        let arrived = at + self.latency(client, node) + SLACK;
        // A fault before the reply may have broken the stream.
        let begin = at.saturating_sub(RECOVERY);
        arrived < end && !self.has_fault(client, node, None, begin, arrived)
    }

    /// Returns whether a report that a node does not exist may be the only one that reached the client: both other primaries had
    /// a fault.
    fn may_believe_lie(&self, client: usize, node: usize, at: Duration) -> bool {
        let begin = at.saturating_sub(RECOVERY);
        let is_told = self.lies.iter().any(|(from, to)| (*from..=*to + SLACK).contains(&at));
        let is_seen = |other| !self.has_fault(client, self.primary(other, at), None, begin, at);
        node == 1 && is_told && !(0..SHARDS).filter(|shard| *shard != 1).any(is_seen)
    }

    /// Returns whether a client has no reason to drop a connection that existed in this time: no message was lost, and all held
    /// messages had arrived.
    pub fn keeps_connection(
        &self,
        client: usize,
        node: usize,
        from: Duration,
        to: Duration,
        held: Duration,
    ) -> bool {
        let is_running = !self.stopped.iter().any(|(at, of)| *of == client && *at <= to);
        let concerns = |fault: &&Fault| match fault.what {
            What::Node(of) => of == node,
            What::Link(of, to) => (of, to) == (client, node),
            What::Slot(_) => false,
        };
        let mut faults = self.faults.iter().filter(concerns);
        let is_owner = (0..SHARDS).any(|shard| self.primary(shard, from) == node);
        is_running
            && is_owner
            && !self.may_believe_lie(client, node, to)
            && faults.all(|fault| {
                let is_over = fault.to + held <= to && !fault.loses_messages;
                fault.from > to || fault.to < from || is_over
            })
    }
}
