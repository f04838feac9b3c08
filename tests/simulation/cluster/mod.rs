//! The simulation of a cluster: several nodes with slots, epochs and failovers. Nodes crash, hang, lie, or are cut off from the
//! other nodes, and slots move.

mod client;
mod health;
mod node;
mod plan;
mod record;
mod rules;
mod run;

use self::{
    plan::Plan,
    record::Entry,
    rules::{Violation, check_rules},
    run::run,
};
use super::seeds;

/// The number of seeds. `SIMULATION_SEEDS` sets another number, and `SIMULATION_SEED` runs one seed only.
const SEEDS: u64 = 50;

/// Runs a plan. Returns its events and the violations of the rules.
fn run_plan(plan: &Plan) -> (Vec<Entry>, Vec<Violation>) {
    let entries = run(plan);
    let violations = check_rules(plan, &entries);
    (entries, violations)
}

#[test]
fn cluster_clients_obey_all_rules_under_fault_injection() {
    let mut failed = Vec::new();
    let start = std::time::Instant::now();
    for seed in seeds(SEEDS) {
        let (entries, violations) = run_plan(&Plan::of(seed));
        let mut kinds = std::collections::BTreeMap::new();
        for violation in &violations {
            kinds.entry(violation.rule).or_insert_with(Vec::new).push(violation.clone());
        }
        println!(
            "seed {seed}: {} events, {:?}",
            entries.len(),
            kinds.iter().map(|(r, v)| (*r, v.len())).collect::<Vec<_>>()
        );
        for (rule, violations) in kinds {
            println!("   {rule:?} {:?}", violations[0]);
            failed.push(seed);
        }
    }
    println!("{:?}", start.elapsed());
    assert!(failed.is_empty(), "{failed:?}");
}
