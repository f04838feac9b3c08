//! The simulation of a cluster: several nodes with slots, epochs and failovers. Nodes crash, hang, report a wrong map, or are cut
//! off from the other nodes, and slots move.
//!
//! `tests/planted` runs it against a copy of the crate with planted bugs.

mod client;
mod health;
mod node;
mod plan;
mod record;
mod rules;
mod run;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use self::{
    plan::{Plan, Step},
    record::{Entry, Event, Outcome},
    rules::check_rules,
    run::run,
};
use super::{record::hash, seeds};

/// The default number of seeds.
const SEEDS: u64 = 50;

/// The number of threads, each with a run of its own.
const THREADS: usize = 2;

#[test]
fn cluster_clients_obey_all_rules_under_fault_injection() {
    let seeds = seeds(SEEDS);
    let (next, coverage) = (AtomicU64::new(seeds.start), Mutex::new(Coverage::default()));
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let plan = Plan::of(seed);
                    let entries = run(&plan);
                    coverage.lock().unwrap().add(&entries);
                    let violations = check_rules(&plan, &entries);
                    if !violations.is_empty() {
                        let hash = hash(&entries);
                        let what =
                            format!("SIMULATION_SEED={seed} replays the run {hash:x}: {violations:#?}");
                        failed.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} runs: {}", failed.len(), failed.join("\n"));
    let coverage = coverage.into_inner().unwrap();
    println!("{coverage:#?}");
    if seeds.end - seeds.start >= SEEDS {
        coverage.assert_complete();
    }
}

/// Kinds of events, and how often each must occur in all runs together.
const EXPECTED: [(&[&str], usize); 3] = [
    (
        &[
            "charged",
            "denied",
            "cache hit",
            "local",
            "unchecked",
            "unavailable",
            "cancelled",
            "rollback",
            "refund",
            "reset",
            "merged",
        ],
        500,
    ),
    (&["MOVED", "CLUSTERDOWN", "promoted", "lie", "isolated", "hang", "crash"], 15),
    (&["local fallback denied", "ASK", "TRYAGAIN", "swallowed connections"], 3),
];

/// The number of events in all runs together, by kind.
#[derive(Debug, Default)]
struct Coverage(BTreeMap<&'static str, usize>);

impl Coverage {
    fn add(&mut self, entries: &[Entry]) {
        for entry in entries {
            let kind = match &entry.event {
                Event::Completed { outcome, .. } => match outcome {
                    Outcome::Charged { .. } => "charged",
                    Outcome::Denied { .. } => "denied",
                    Outcome::CacheHit { .. } => "cache hit",
                    Outcome::Local { .. } => "local",
                    Outcome::Unchecked(_) => "unchecked",
                    Outcome::LocalFallbackDenied(_) => "local fallback denied",
                    Outcome::Unavailable(_) => "unavailable",
                    Outcome::Cancelled => "cancelled",
                },
                Event::Refunded { is_rollback: true, .. } => "rollback",
                Event::Refunded { is_rollback: false, .. } => "refund",
                Event::Refused { code, .. } => code,
                Event::Merged { checks } => {
                    *self.0.entry("merged").or_default() += checks;
                    continue;
                }
                Event::Promoted { .. } => "promoted",
                Event::Reset { .. } => "reset",
                Event::Step(Step::Lie(..), _) => "lie",
                Event::Step(Step::Isolate(_), _) => "isolated",
                Event::Step(Step::Hang(_), _) => "hang",
                Event::Step(Step::Crash { .. }, _) => "crash",
                Event::Step(Step::SwallowConnections(..), _) => "swallowed connections",
                _ => continue,
            };
            *self.0.entry(kind).or_default() += 1;
        }
    }

    /// Asserts that every kind of event has occurred often enough.
    fn assert_complete(&self) {
        for (kinds, many) in EXPECTED {
            for kind in kinds {
                assert!(self.0.get(kind).is_some_and(|count| *count >= many), "{kind}: {self:#?}");
            }
        }
    }

    /// Returns whether every kind of event has occurred.
    fn has_every_kind(&self) -> bool {
        EXPECTED.iter().flat_map(|(kinds, _)| *kinds).all(|kind| self.0.contains_key(kind))
    }
}

/// Returns the events without the connections that a client closes after it has stopped. When the runtime drops what is left of it
/// depends on the other tests of the process.
fn until_stopped(mut entries: Vec<Entry>) -> Vec<Entry> {
    let mut stopped = Vec::new();
    entries.retain(|entry| match &entry.event {
        Event::Stopped(event) => {
            stopped.push(event.client);
            true
        }
        Event::Disconnected { client, .. } => !stopped.contains(client),
        _ => true,
    });
    entries
}

/// Replays as many runs as have every kind of event.
#[test]
fn same_seed_replays_same_cluster_run() {
    // Each run has its own thread.
    let run_seed = |seed| thread::spawn(move || until_stopped(run(&Plan::of(seed))));
    let mut coverage = Coverage::default();
    for seed in 0..20 {
        let [first, second] = [run_seed(seed), run_seed(seed)].map(|run| run.join().unwrap());
        if let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) {
            panic!("seed {seed}: {a:?} and {b:?}");
        }
        assert_eq!(hash(&first), hash(&second), "seed {seed}");
        coverage.add(&first);
        if coverage.has_every_kind() {
            return;
        }
    }
    panic!("a kind of event has not occurred: {coverage:#?}");
}
