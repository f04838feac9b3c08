//! A deterministic simulation with fault injection: partitions, hanging connections, crashes and clock changes. The same seed
//! replays the same run.
//!
//! The clients are the real crate over simulated streams. The server is the reference model behind the Redis protocol.

mod client;
mod cluster;
mod mutation;
mod plan;
mod random;
mod record;
mod resp;
mod rules;
mod run;
mod script;
mod server;
mod store;
mod tokens;

use std::{env, ops::Range, thread, time::Duration};

use tower_sliding_window::Policy;

use self::{
    mutation::Mutation,
    plan::{Plan, SHARED, Step},
    record::{Entry, Event, Outcome, Verdict, hash},
    rules::{Rule, Violation, check_rules},
    run::run,
};

/// The default number of seeds. `SIMULATION_SEEDS` sets another number, and `SIMULATION_SEED` runs one seed only.
const SEEDS: u64 = 32;

fn seeds(default: u64) -> Range<u64> {
    let variable = |name| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    match variable("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SIMULATION_SEEDS").unwrap_or(default),
    }
}

/// Runs a plan. Returns its events and the violations of the rules.
fn run_plan(plan: &Plan, mutation: Option<Mutation>) -> (Vec<Entry>, Vec<Violation>) {
    let entries = run(plan, mutation);
    let violations = check_rules(plan, &entries);
    (entries, violations)
}

fn run_seed(seed: u64, mutation: Option<Mutation>) -> (Vec<Entry>, Vec<Violation>) {
    run_plan(&Plan::of(seed), mutation)
}

/// Runs a plan and asserts that no rule is violated.
fn run_without_violation(plan: &Plan) -> Vec<Entry> {
    let (entries, violations) = run_plan(plan, None);
    let (seed, hash) = (plan.seed, hash(&entries));
    assert!(
        violations.is_empty(),
        "SIMULATION_SEED={seed} replays the run {hash:x}: {violations:#?}\n{plan:#?}"
    );
    entries
}

#[test]
fn clients_obey_all_rules_under_fault_injection() {
    let (mut coverage, seeds) = (Coverage::default(), seeds(SEEDS));
    for seed in seeds.clone() {
        coverage.add(&run_without_violation(&Plan::of(seed)));
    }
    println!("{coverage:#?}");
    if seeds.end - seeds.start >= SEEDS {
        coverage.assert_complete();
    }
}

/// A token bucket instead of a window: in no interval, the store or the local shares admit more than the capacity and the rate.
#[test]
fn clients_obey_rules_of_token_bucket_under_fault_injection() {
    let mut coverage = Coverage::default();
    for seed in seeds(12) {
        coverage.add(&run_without_violation(&Plan::with_token_bucket(seed)));
    }
    println!("{coverage:#?}");
    let Coverage { charged, denied, local, refunded, overages, merged, .. } = coverage;
    let events = [charged, denied, local, refunded, overages, merged];
    assert!(events.iter().all(|many| *many > 20), "{coverage:#?}");
}

#[test]
fn memory_token_bucket_obeys_rate_under_clock_steps() {
    for seed in seeds(200) {
        let violations = tokens::run(seed);
        assert!(violations.is_empty(), "SIMULATION_SEED={seed}: {violations:#?}");
    }
}

/// After some time the client uses the new clock. A connection that then hangs must not charge after a deadline.
#[test]
fn clients_forget_clock_that_was_set_back() {
    for seed in 1_000..1_003 {
        let mut plan = Plan::of(seed);
        let at = Duration::from_millis;
        plan.steps = vec![(at(1_000), Step::ShiftClock(-3_000_000))];
        for client in 0..plan.clients {
            plan.steps.extend([(at(14_500), Step::Hold(client)), (at(15_200), Step::Release(client))]);
        }
        (plan.repaired, plan.last) = (at(15_200), at(18_500));
        run_without_violation(&plan);
    }
}

/// In the other runs many unanswered checks charge nothing, so that a missing count is not visible.
#[test]
fn clients_count_charges_with_lost_replies() {
    for seed in 2_000..2_003 {
        let mut plan = Plan::of(seed);
        plan.policy = Policy::new(SHARED, u32::MAX, Duration::from_secs(1)).unwrap();
        let ends = (1..15).map(|i| Duration::from_millis(400 * i));
        let steps = ends.flat_map(|at| {
            [(at, Step::CrashSilently), (at + Duration::from_millis(5), Step::Restart { loses_data: false })]
        });
        plan.steps = steps.collect();
        run_without_violation(&plan);
    }
}

/// The number of events in all runs together.
#[derive(Debug, Default)]
struct Coverage {
    started: usize,
    charged: usize,
    denied: usize,
    local: usize,
    unchecked: usize,
    local_fallback_denied: usize,
    unavailable: usize,
    cancelled: usize,
    deadline_exceeded: usize,
    unknown_scripts: usize,
    unanswered: u64,
    lost_settlements: u64,
    connected: usize,
    refunded: usize,
    overages: usize,
    /// Checks of merged calls.
    merged: usize,
}

impl Coverage {
    fn add(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.event {
                Event::Started { .. } => self.started += 1,
                Event::Completed { outcome, .. } => match outcome {
                    Outcome::Charged { .. } => self.charged += 1,
                    Outcome::Denied { .. } | Outcome::CacheHit { .. } => self.denied += 1,
                    Outcome::Local { .. } => self.local += 1,
                    Outcome::Unchecked(_) => self.unchecked += 1,
                    Outcome::LocalFallbackDenied(_) => self.local_fallback_denied += 1,
                    Outcome::Unavailable(_) => self.unavailable += 1,
                    Outcome::Cancelled => self.cancelled += 1,
                },
                Event::Decided { verdict: Verdict::DeadlineExceeded, .. } => self.deadline_exceeded += 1,
                Event::Decided { verdict: Verdict::Overage, .. } => self.overages += 1,
                Event::Refunded { .. } => self.refunded += 1,
                Event::Merged { checks } => self.merged += checks,
                Event::UnknownScript => self.unknown_scripts += 1,
                Event::Connected { .. } => self.connected += 1,
                Event::Stopped { unanswered, lost_settlements, .. } => {
                    self.unanswered += unanswered;
                    self.lost_settlements += lost_settlements;
                }
                _ => {}
            }
        }
    }

    /// Asserts that every kind of event has occurred often enough.
    fn assert_complete(&self) {
        let Self {
            started,
            charged,
            denied,
            local,
            unchecked,
            local_fallback_denied,
            unavailable,
            cancelled,
            ..
        } = self;
        let outcomes = [charged, denied, local, unchecked, local_fallback_denied, unavailable, cancelled];
        assert!(outcomes.iter().all(|many| **many > started / 200), "{self:#?}");
        let Self { deadline_exceeded, unknown_scripts, connected, refunded, overages, merged, .. } = self;
        let events = [deadline_exceeded, unknown_scripts, connected, refunded, overages, merged];
        assert!(events.iter().all(|many| **many > 100), "{self:#?}");
        assert!(self.unanswered > 1_000 && self.lost_settlements > 50, "{self:#?}");
    }
}

#[test]
fn same_seed_replays_same_run() {
    for seed in [1, 2, 10] {
        // Each run has its own thread.
        let run = || thread::spawn(move || run_seed(seed, None).0);
        let [first, second] = [run(), run()].map(|run| run.join().unwrap());
        if let Some((a, b)) = first.iter().zip(&second).find(|(a, b)| a != b) {
            panic!("seed {seed}: {a:?} and {b:?}");
        }
        assert_eq!(hash(&first), hash(&second), "seed {seed}");
    }
    assert_ne!(hash(&run_seed(1, None).0), hash(&run_seed(2, None).0));
}

/// Asserts that one of the first seeds reports the rule that this mutation breaks.
fn assert_detected(mutation: Mutation, rule: Rule) {
    assert_detected_in(Plan::of, mutation, rule);
}

fn assert_detected_in(plan: fn(u64) -> Plan, mutation: Mutation, rule: Rule) {
    let detects =
        |seed: &u64| run_plan(&plan(*seed), Some(mutation)).1.iter().any(|violation| violation.rule == rule);
    let seed = (0..8).find(detects);
    assert!(seed.is_some(), "{mutation:?} breaks {rule:?}, but no seed reports it");
}

#[test]
fn rules_detect_server_that_ignores_deadlines() {
    assert_detected(Mutation::ServerIgnoresDeadlines, Rule::NoChargeAfterDeadline);
}

#[test]
fn rules_detect_server_that_reports_clock_ahead() {
    assert_detected(Mutation::ServerReportsClockAhead, Rule::NoChargeAfterDeadline);
}

#[test]
fn rules_detect_server_that_exceeds_quota() {
    assert_detected(Mutation::ServerExceedsQuota, Rule::QuotaHolds);
}

#[test]
fn rules_detect_client_that_repeats_check() {
    assert_detected(Mutation::RepeatsCheck, Rule::NoDoubleCharge);
}

#[test]
fn rules_detect_client_that_refunds_twice() {
    assert_detected(Mutation::RefundsTwice, Rule::SettledOnce);
}

#[test]
fn rules_detect_outage_reported_as_denial() {
    assert_detected(Mutation::ReportsOutageAsDenial, Rule::DecisionsComeFromStore);
}

#[test]
fn rules_detect_outage_reported_as_admission() {
    assert_detected(Mutation::ReportsOutageAsAdmission, Rule::DecisionsComeFromStore);
}

#[test]
fn rules_detect_ignored_outage_rule() {
    assert_detected(Mutation::AlwaysFailsOpen, Rule::OutageRuleHolds);
}

#[test]
fn rules_detect_uncounted_charge() {
    assert_detected(Mutation::ContinuesCancelledCheck, Rule::UnansweredChecksAreCounted);
}

#[test]
fn rules_detect_client_that_exceeds_deadline() {
    assert_detected(Mutation::ExceedsDeadline, Rule::OutcomeByDeadline);
}

#[test]
fn rules_detect_client_that_never_reconnects() {
    assert_detected(Mutation::NeverReconnects, Rule::Recovers);
}

#[test]
fn rules_detect_oversized_share() {
    assert_detected(Mutation::UsesWholeQuotaAsShare, Rule::SharesStayWithinQuota);
}

#[test]
fn rules_detect_stream_leak() {
    assert_detected(Mutation::LeaksStreams, Rule::NoStreamLeak);
}

#[test]
fn rules_detect_token_bucket_that_exceeds_capacity() {
    assert_detected_in(Plan::with_token_bucket, Mutation::ServerExceedsQuota, Rule::QuotaHolds);
}

#[test]
fn rules_detect_oversized_share_of_token_bucket() {
    let mutation = Mutation::UsesWholeQuotaAsShare;
    assert_detected_in(Plan::with_token_bucket, mutation, Rule::SharesStayWithinQuota);
}
