//! The rules of the simulation hold in every run.

use super::simulation::run;

/// A third of the runs each: without faults, with faults, and with faults and steps of the clock.
#[test]
fn processes_obey_all_rules_of_leases() {
    let mut leased = 0;
    for seed in 0..60 {
        let run = run(seed);
        leased += run.leased;
        assert!(run.violations.is_empty(), "seed {seed}: {:#?}", run.violations);
    }
    assert!(leased > 2_000, "{leased} checks were leased");
}
