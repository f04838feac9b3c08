//! The simulations against a copy of the crate with planted bugs: the rules must find each bug.
#![allow(missing_docs, unreachable_pub, dead_code, unused_imports, clippy::unwrap_used)]

#[path = "../bugs.rs"]
mod bugs;

#[path = "../../contract"]
mod contract {
    pub mod model;
}

#[path = "../../support"]
mod support {
    pub mod key_name;
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
    pub mod rules;
    pub mod run;
    pub mod script;
    pub mod server;
    pub mod store;
    pub mod tokens;

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

#[path = "../../lease"]
mod lease {
    pub mod simulation;
    pub mod store;
}

use std::{env, ops::Range};

use bugs::{BUGS, Bug, LEASE_BUGS, MERGING_BUGS, SHARE_BUGS, TOKEN_BUGS};
use simulation::{
    cluster::{
        plan::Plan,
        rules::{Violation, check_rules},
        run::run,
    },
    plan, rules,
};
use tower_sliding_window::planted;

/// The number of seeds within which each bug must be found.
const SEEDS: Range<u64> = 0..10;

/// Runs a seed with a bug, or without one.
fn run_seed(seed: u64, bug: Option<&Bug>) -> Vec<Violation> {
    let plan = Plan::of(seed);
    planted::switch(bug.map(|bug| bug.name));
    let entries = run(&plan);
    planted::switch(None);
    check_rules(&plan, &entries)
}

/// Asserts that the rules find every other bug, from `first` on. The two halves run at the same time.
fn assert_found(first: usize) {
    let mut missed = Vec::new();
    // `PLANTED_BUG` selects the bugs whose names contain it.
    let wanted = env::var("PLANTED_BUG").unwrap_or_default();
    for bug in BUGS.iter().skip(first).step_by(2).filter(|bug| bug.name.contains(&wanted)) {
        let finds = |violation: &Violation| format!("{:?}", violation.rule) == bug.rule;
        match SEEDS.into_iter().find(|seed| run_seed(*seed, Some(bug)).iter().any(finds)) {
            Some(seed) => println!("{}: seed {seed}, {}", bug.name, bug.rule),
            None => missed.push((bug.name, bug.rule)),
        }
    }
    assert!(missed.is_empty(), "no seed of {SEEDS:?} reports {missed:#?}");
}

#[test]
fn rules_find_planted_bugs_with_even_index() {
    assert_found(0);
}

#[test]
fn rules_find_planted_bugs_with_odd_index() {
    assert_found(1);
}

/// Runs a seed of the simulation of one server. Clients merge their checks if the seed is odd.
fn run_merging_seed(seed: u64, bug: Option<&Bug>) -> Vec<rules::Violation> {
    let plan = plan::Plan::of(seed);
    planted::switch(bug.map(|bug| bug.name));
    let entries = simulation::run::run(&plan, None);
    planted::switch(None);
    rules::check_rules(&plan, &entries)
}

#[test]
fn rules_find_planted_bugs_of_merged_checks() {
    let seeds = || SEEDS.map(|seed| 2 * seed + 1);
    let wanted = env::var("PLANTED_BUG").unwrap_or_default();
    let bugs = || MERGING_BUGS.iter().filter(|bug| bug.name.contains(&wanted));
    let mut missed = Vec::new();
    for bug in bugs() {
        let finds = |violation: &rules::Violation| format!("{:?}", violation.rule) == bug.rule;
        match seeds().find(|seed| run_merging_seed(*seed, Some(bug)).iter().any(finds)) {
            Some(seed) => println!("{}: seed {seed}, {}", bug.name, bug.rule),
            None => missed.push((bug.name, bug.rule)),
        }
    }
    assert!(missed.is_empty(), "no seed reports {missed:#?}");
    for seed in seeds().take(3) {
        let violations = run_merging_seed(seed, None);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

/// Asserts that a run of one of these seeds reports the rule of each bug.
fn assert_reported(bugs: &[Bug], seeds: Range<u64>, run: impl Fn(u64) -> Vec<rules::Violation>) {
    let wanted = env::var("PLANTED_BUG").unwrap_or_default();
    let mut missed = Vec::new();
    for bug in bugs.iter().filter(|bug| bug.name.contains(&wanted)) {
        planted::switch(Some(bug.name));
        let finds = |violation: &rules::Violation| format!("{:?}", violation.rule) == bug.rule;
        match seeds.clone().find(|seed| run(*seed).iter().any(finds)) {
            Some(seed) => println!("{}: seed {seed}, {}", bug.name, bug.rule),
            None => missed.push((bug.name, bug.rule)),
        }
        planted::switch(None);
    }
    assert!(missed.is_empty(), "no seed of {seeds:?} reports {missed:#?}");
}

#[test]
fn rules_find_planted_bugs_of_token_buckets() {
    assert_reported(TOKEN_BUGS, 0..30, simulation::tokens::run);
    let run = |seed| {
        let plan = plan::Plan::with_token_bucket(seed);
        rules::check_rules(&plan, &simulation::run::run(&plan, None))
    };
    assert_reported(SHARE_BUGS, SEEDS, run);
    for seed in 0..30 {
        let violations = simulation::tokens::run(seed);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

/// The seeds of the simulation of leases, whose runs are short.
const LEASE_SEEDS: Range<u64> = 0..30;

/// Runs a seed of the simulation of leases with a bug, or without one.
fn run_lease_seed(seed: u64, bug: Option<&Bug>) -> Vec<lease::simulation::Violation> {
    planted::switch(bug.map(|bug| bug.name));
    let run = lease::simulation::run(seed);
    planted::switch(None);
    run.violations
}

#[test]
fn rules_find_planted_bugs_of_leases() {
    let wanted = env::var("PLANTED_BUG").unwrap_or_default();
    let mut missed = Vec::new();
    for bug in LEASE_BUGS.iter().filter(|bug| bug.name.contains(&wanted)) {
        let finds = |violation: &lease::simulation::Violation| format!("{:?}", violation.rule) == bug.rule;
        match LEASE_SEEDS.into_iter().find(|seed| run_lease_seed(*seed, Some(bug)).iter().any(finds)) {
            Some(seed) => println!("{}: seed {seed}, {}", bug.name, bug.rule),
            None => missed.push((bug.name, bug.rule)),
        }
    }
    assert!(missed.is_empty(), "no seed of {LEASE_SEEDS:?} reports {missed:#?}");
    for seed in LEASE_SEEDS {
        let violations = run_lease_seed(seed, None);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

/// Without a bug, the rules report nothing. So a bug is the only reason for a violation. The crate itself runs these seeds and more in
/// `simulation::cluster`.
#[test]
fn copy_without_bug_obeys_all_rules() {
    for seed in SEEDS.take(4) {
        let violations = run_seed(seed, None);
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}
