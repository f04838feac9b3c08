//! A plain model of a replay: a list of charges, and sums over it. It uses nothing of the crate.

use std::collections::BTreeMap;

/// The time by which lines may be out of order, in microseconds. It is the default of the example.
const REORDER: u64 = 60_000_000;

#[derive(Clone)]
pub struct ModelPolicy {
    pub name: &'static str,
    pub quota: u64,
    /// In microseconds.
    pub window: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Log,
    Fixed,
    /// Buckets of this many microseconds.
    Buckets(u64),
}

/// A request, as the generator has made it.
#[derive(Clone)]
pub struct Event {
    pub line: u64,
    pub at: u64,
    pub key: BTreeMap<&'static str, String>,
    /// The units of each policy.
    pub costs: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelDenial {
    pub line: u64,
    pub at: u64,
    pub key: BTreeMap<&'static str, String>,
    pub costs: Vec<u64>,
    pub policies: Vec<&'static str>,
    pub wait: u64,
}

struct Charge {
    key: BTreeMap<&'static str, String>,
    policy: usize,
    at: u64,
    cost: u64,
}

impl ModelPolicy {
    /// Returns the instant at which a charge no longer counts.
    fn end(&self, at: u64) -> u64 {
        match self.kind {
            Kind::Log => at + self.window,
            Kind::Fixed => (at / self.window + 1) * self.window,
            Kind::Buckets(precision) => (at / precision + 1) * precision + self.window,
        }
    }
}

/// Returns the events in the order in which they are decided. One that is too late counts as late as it may be.
pub fn ordered(events: &[Event]) -> Vec<Event> {
    let mut latest = 0;
    let mut ordered = Vec::new();
    for event in events {
        let at = event.at.max(latest - REORDER.min(latest));
        latest = latest.max(event.at);
        ordered.push(Event { at, ..event.clone() });
    }
    // Equal instants keep the order of their lines.
    ordered.sort_by_key(|event| event.at);
    ordered
}

fn used(charges: &[Charge], policies: &[ModelPolicy], policy: usize, event: &Event, at: u64) -> u64 {
    let counts = |charge: &&Charge| {
        charge.policy == policy
            && charge.key == event.key
            && charge.at <= at
            && at < policies[policy].end(charge.at)
    };
    charges.iter().filter(counts).map(|charge| charge.cost).sum()
}

/// Returns the denials of these events.
pub fn denials(events: &[Event], policies: &[ModelPolicy]) -> Vec<ModelDenial> {
    let mut charges: Vec<Charge> = Vec::new();
    let mut denials = Vec::new();
    for event in ordered(events) {
        // What has left the window of every policy no longer counts, and would only make the model slower.
        charges.retain(|charge| event.at < policies[charge.policy].end(charge.at));
        let mut waits = Vec::new();
        for (policy, model) in policies.iter().enumerate() {
            let fits = |at| used(&charges, policies, policy, &event, at) + event.costs[policy] <= model.quota;
            if event.costs[policy] > 0 && !fits(event.at) {
                // Usage changes only when a charge ends.
                let ends = charges
                    .iter()
                    .filter(|charge| charge.policy == policy)
                    .map(|charge| model.end(charge.at));
                let first = ends.filter(|end| fits(*end)).min().unwrap();
                waits.push((model.name, first - event.at));
            }
        }
        if waits.is_empty() {
            for (policy, cost) in
                event.costs.iter().take(policies.len()).enumerate().filter(|(_, cost)| **cost > 0)
            {
                charges.push(Charge { key: event.key.clone(), policy, at: event.at, cost: *cost });
            }
        } else {
            denials.push(ModelDenial {
                line: event.line,
                at: event.at,
                key: event.key,
                costs: event.costs,
                policies: waits.iter().map(|(name, _)| *name).collect(),
                wait: waits.iter().map(|(_, wait)| *wait).max().unwrap(),
            });
        }
    }
    denials
}

/// Returns the highest use of each key and policy, if nothing is denied.
pub fn highest(events: &[Event], policies: &[ModelPolicy]) -> BTreeMap<(&'static str, String), u64> {
    let mut highest = BTreeMap::new();
    let events = ordered(events);
    for (policy, model) in policies.iter().enumerate() {
        for (index, event) in events.iter().enumerate() {
            let before = events[..=index].iter().filter(|other| other.key == event.key);
            let counts = before.filter(|other| event.at < model.end(other.at));
            let used: u64 = counts.map(|other| other.costs[policy]).sum();
            let key = event.key.values().cloned().collect::<Vec<_>>().join(" ");
            let most = highest.entry((model.name, key)).or_insert(0);
            *most = used.max(*most);
        }
    }
    highest
}
