//! The rules of the simulation hold in every run.

use super::simulation::run;

/// A third of the runs each: without faults, with faults, and with faults and steps of the clock. In half of each, leases are requested
/// before they are needed.
#[test]
fn processes_obey_all_rules_of_leases() {
    let (mut leased, mut ahead) = (0, 0);
    for seed in 0..120 {
        let run = run(seed);
        leased += run.leased;
        ahead += run.ahead;
        assert!(run.violations.is_empty(), "seed {seed}: {:#?}", run.violations);
    }
    assert!(leased > 3_000 && ahead > 100, "{leased} checks were leased, {ahead} leases were ahead");
}
