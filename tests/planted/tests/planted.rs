//! The simulation of a cluster against a copy of the crate with planted bugs: the rules must find each bug.
#![allow(missing_docs, unreachable_pub, dead_code, unused_imports, clippy::unwrap_used)]

#[path = "../bugs.rs"]
mod bugs;

#[path = "../../contract"]
mod contract {
    mod account;
    pub mod model;
}

// The tests of the simulation run elsewhere.
#[path = "../../simulation"]
mod simulation {
    pub mod client;
    pub mod mutation;
    pub mod plan;
    pub mod random;
    pub mod record;
    pub mod resp;
    pub mod run;
    pub mod script;
    pub mod server;
    pub mod store;

    pub mod cluster {
        pub mod client;
        pub mod health;
        pub mod node;
        pub mod plan;
        pub mod record;
        pub mod rules;
        pub mod run;
    }
}

use std::collections::BTreeMap;

use simulation::cluster::{plan::Plan, rules, run::run};
use tower_sliding_window::planted;

#[test]
fn dev_probe() {
    let var = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let from = var("SIMULATION_SEED");
    let seeds = match from {
        Some(seed) => seed..seed + 1,
        None => 0..var("SIMULATION_SEEDS").unwrap_or(10),
    };
    let many = var("SHOW").unwrap_or(1) as usize;
    let bug = std::env::var("BUG").ok();
    let bug = bug.map(|bug| &*bug.leak());
    let start = std::time::Instant::now();
    let mut totals: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for seed in seeds {
        let plan = Plan::of(seed);
        planted::switch(bug);
        let entries = run(&plan);
        planted::switch(None);
        if std::env::var("DUMP").is_ok() {
            for entry in &entries {
                println!("{entry:?}");
            }
        }
        let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for violation in rules::check_rules(&plan, &entries) {
            kinds.entry(violation.rule).or_default().push(violation);
        }
        println!(
            "seed {seed}: {} events {:x} {:?}",
            entries.len(),
            simulation::record::hash(&entries),
            start.elapsed()
        );
        for (rule, violations) in kinds {
            let total = totals.entry(rule).or_default();
            *total = (total.0 + 1, total.1 + violations.len());
            println!("  {} of", violations.len());
            for violation in violations.iter().take(many) {
                println!("    {violation:?}");
            }
        }
    }
    println!("{totals:#?}");
}

#[test]
fn dev_bugs() {
    let var = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seeds = var("SIMULATION_SEEDS").unwrap_or(10);
    let only = std::env::var("BUG").ok();
    for bug in bugs::BUGS.iter().filter(|bug| only.as_ref().is_none_or(|only| bug.name.contains(only))) {
        let start = std::time::Instant::now();
        let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for seed in 0..seeds {
            let plan = Plan::of(seed);
            planted::switch(Some(bug.name));
            let entries = run(&plan);
            planted::switch(None);
            for violation in rules::check_rules(&plan, &entries) {
                let seeds = found.entry(format!("{:?}", violation.rule)).or_default();
                if seeds.last() != Some(&seed) {
                    seeds.push(seed);
                }
            }
        }
        println!("{} ({}), {:?}: {found:?}", bug.name, bug.rule, start.elapsed());
    }
}
