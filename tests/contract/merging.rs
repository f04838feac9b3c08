//! Merged checks: the same contract, and the same decisions as one check after another.

use std::{collections::HashMap, time::Duration};

use proptest::test_runner::TestCaseError;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
use tower_sliding_window::{
    Algorithm, Decision, MemoryBackend, PartitionKey, Policy, RedisBackend,
    backend::{Backend, BackendError, Check, Pair, Purpose, Receipt, Refund},
    redis::{Merging, RedisServers},
    testing::ManualClock,
};

use super::{
    check_invariants, distinct_keys, edges,
    history::{Action, History, TwoKeys, Used},
    invariants::{failed, refund_unused, require, same_decision},
    run_histories,
};
use crate::support::server::{Engine, Server};

/// A backend whose checks never travel alone: two checks of another key are in flight with each of them. The first is a call of
/// its own. The second and the check are merged.
struct Accompanied(RedisBackend);

impl Backend for Accompanied {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let policy = Policy::new("companion", 1, Duration::from_secs(1)).unwrap();
        let pair = Pair::new(PartitionKey::new("companion", ""), policy, 0);
        let companion = &Check::new([pair]).unwrap().with_purpose(check.purpose());
        let all = tokio::join!(self.0.check(companion), self.0.check(companion), self.0.check(check));
        all.2
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        self.0.refund(refund).await
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.0.reset(pairs).await
    }
}

/// Returns a connected backend that merges checks.
fn merging_backend(server: &Server, runtime: &Runtime) -> RedisBackend {
    let builder = RedisBackend::builder(RedisServers::single(server.url())).merging(Merging::On);
    runtime.block_on(builder.connect()).unwrap()
}

#[test]
fn merged_checks_uphold_invariants() {
    for engine in Engine::ALL {
        let cases = if engine == Engine::Redis { 150 } else { 50 };
        let server = Server::start(engine);
        let runtime = Runtime::new().unwrap();
        let backend = merging_backend(&server, &runtime);
        check_invariants(cases, &runtime, distinct_keys(), |clock| {
            Accompanied(backend.clone().with_clock(clock))
        });
    }
}

#[test]
fn merged_checks_pass_all_edges() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        edges::run_all(|bench, clock| {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            let connected = merging_backend(&server, bench);
            Accompanied(connected.with_clock(clock))
        });
    }
}

/// Returns the checks of a step: some are equal to the check, others to an earlier one.
fn batch(step: usize, check: &Check, earlier: Option<&Check>) -> Vec<Check> {
    let earlier = earlier.map_or_else(|| check.clone(), |earlier| earlier.clone());
    let earlier = earlier.with_purpose(check.purpose());
    let size = [1, 2, 3, 5, 8, 13][step % 6];
    (0..size).map(|i| if (i + step) % 3 == 1 { earlier.clone() } else { check.clone() }).collect()
}

/// Returns the longest time of a check on the server, in microseconds, as `lua/README.md` states it.
fn longest_micros(check: &Check) -> u64 {
    let of_pair = |pair: &Pair| {
        let records = match pair.policy.algorithm() {
            // A log keeps reservations that were settled to nothing.
            Algorithm::SlidingLog if check.purpose() == Purpose::Reserve => u64::MAX,
            Algorithm::SlidingLog => pair.policy.quota().unwrap().into(),
            Algorithm::SlidingBuckets { precision } => {
                (pair.policy.window().unwrap().as_micros() / precision.as_micros()) as u64 + 2
            }
            _ => 1,
        };
        match records {
            0..=128 => 40,
            129..=1_024 => 66,
            1_025..=4_096 => 90,
            4_097..=65_536 => 130,
            _ => 290,
        }
    };
    check.pairs().iter().map(of_pair).sum()
}

/// Drops the checks that do not fit into one call, which takes at most 2 ms of the server. The first is a call of its own. The script
/// decides a run of equal checks once, or up to three times.
fn in_two_calls(checks: Vec<Check>) -> Vec<Check> {
    let (mut kept, mut micros): (Vec<Check>, u64) = (Vec::new(), 0);
    for (i, check) in checks.into_iter().enumerate() {
        let equal = kept.iter().skip(1).filter(|other| **other == check).count();
        let more =
            [1, 2].get(equal % most_in_run(&check)).map_or(0, |decisions| decisions * longest_micros(&check));
        if i == 0 || micros + more <= 2_000 {
            micros += if i == 0 { 0 } else { more };
            kept.push(check);
        }
    }
    kept
}

/// Returns the most of equal checks in one run: one with a sliding counter, and otherwise as many as the arguments of the script have
/// room for the sum of their costs.
fn most_in_run(check: &Check) -> usize {
    let of_pair = |pair: &Pair| match pair.policy.algorithm() {
        Algorithm::SlidingCounter => 1,
        _ => u32::MAX.checked_div(pair.cost).unwrap_or(u32::MAX),
    };
    check.pairs().iter().map(of_pair).min().unwrap() as usize
}

/// Returns the order in which the checks of a batch are decided. The first is a call of its own. Of the others, equal ones follow
/// the first of them, unless they have a sliding counter, or the sum of their costs is too large for the arguments of the script.
fn execution_order(checks: &[Check]) -> Vec<usize> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for (i, check) in checks.iter().enumerate().skip(1) {
        let of_check = runs.iter_mut().rev().find(|run| checks[run[0]] == *check);
        let has_room = |run: &Vec<usize>| run.len() < most_in_run(check);
        match of_check.filter(|run| has_room(run)) {
            Some(run) => run.push(i),
            None => runs.push(vec![i]),
        }
    }
    [0].into_iter().chain(runs.into_iter().flatten()).collect()
}

/// Starts all checks at the same time, in their order. Returns their decisions in the same order.
async fn decide_together(backend: &RedisBackend, checks: &[Check]) -> Result<Vec<Decision>, TestCaseError> {
    // Opens a lost connection again. Otherwise, all checks would wait for it, and then go on in any order.
    let peek = checks[0].clone().with_purpose(Purpose::Peek);
    let _ = backend.check(&peek).await.map_err(failed)?;
    let mut all = JoinSet::new();
    for (i, check) in checks.iter().enumerate() {
        let (backend, check) = (backend.clone(), check.clone());
        all.spawn(async move { (i, backend.check(&check).await) });
    }
    let decisions: HashMap<usize, _> = all.join_all().await.into_iter().collect();
    (0..checks.len()).map(|i| decisions[&i].clone().map_err(failed)).collect()
}

/// An admitted reservation in both backends.
struct Reserved {
    check: Check,
    merged: Vec<Receipt>,
    sequential: Vec<Receipt>,
}

/// Runs a history on a backend that merges its checks, and in memory one check after another. All decisions must be equal.
async fn compare(
    merging: &RedisBackend,
    sequential: &MemoryBackend,
    clock: &ManualClock,
    keys: &TwoKeys,
    history: &History,
) -> Result<(), TestCaseError> {
    let (mut now, mut quota) = (1_900_000_000_000_000, history.policies[0].quota);
    let (mut open, mut earlier): (Vec<Reserved>, Option<Check>) = (Vec::new(), None);
    for (i, step) in history.steps.iter().enumerate() {
        now = step.movement.from(now);
        quota = step.quota.unwrap_or(quota);
        clock.set_micros(now);
        let policies = history.policies(quota);
        match &step.action {
            Action::Check { purpose, pairs, .. } => {
                // Peeks, takes, debits and checks with shadow pairs are not merged.
                let purpose = match purpose {
                    Purpose::Peek => Purpose::Charge,
                    Purpose::TakeUpTo(_) | Purpose::Debit | Purpose::LeaseAhead => Purpose::Reserve,
                    merged => *merged,
                };
                let enforced = super::history::Pairs { shadows: 0, ..pairs.clone() };
                let check = enforced.check(keys, &policies).with_purpose(purpose);
                let checks = in_two_calls(batch(i, &check, earlier.as_ref()));
                let decisions = decide_together(merging, &checks).await?;
                for index in execution_order(&checks) {
                    let (check, merged) = (&checks[index], &decisions[index]);
                    let expected = sequential.check(check).await.map_err(failed)?;
                    if !same_decision(merged, &expected) {
                        let what = format!("check {index} of {checks:#?}: {merged:#?}, not {expected:#?}");
                        return Err(TestCaseError::fail(what));
                    }
                    let [merged, sequential] = [merged, &expected].map(|it| it.receipts().to_vec());
                    require(merged.len() == sequential.len(), "a receipt for every pair")?;
                    if !merged.is_empty() {
                        open.push(Reserved { check: check.clone(), merged, sequential });
                    }
                }
                earlier = Some(check);
            }
            Action::Settle { which, used } => {
                if open.is_empty() {
                    continue;
                }
                let index = if *which == usize::MAX { open.len() - 1 } else { which % open.len() };
                let Reserved { check, merged, sequential: receipts } = open.remove(index);
                // An overage is never merged.
                let units = |pair: &Pair, used: &Used| used.units(pair.cost).min(pair.cost);
                let pairs = check.pairs().iter().zip(used.iter().cycle());
                let used: Vec<u32> = pairs.map(|(pair, used)| units(pair, used)).collect();
                refund_unused(merging, now, &check, &merged, &used).await?;
                refund_unused(sequential, now, &check, &receipts, &used).await?;
            }
            Action::Reset { pairs } => {
                let check = pairs.check(keys, &policies);
                merging.reset(&check).await.map_err(failed)?;
                sequential.reset(&check).await.map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Compares generated histories of merged checks with the same checks one after another.
fn compare_histories(engine: Engine, cases: u32) {
    let server = Server::start(engine);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let backend = merging_backend(&server, &runtime);
    let all_keys = std::cell::RefCell::new(distinct_keys());
    run_histories(cases, |history| {
        let keys = all_keys.borrow_mut().next().expect("the sequence is endless");
        let clock = ManualClock::new();
        let keep = Duration::from_secs(10 * 366 * 86_400);
        let sequential = MemoryBackend::new().with_clock(&clock).keep_idle_for(keep);
        let merging = backend.clone().with_clock(&clock);
        runtime.block_on(compare(&merging, &sequential, &clock, &keys, &history))
    });
}

#[test]
fn merged_checks_decide_as_one_after_another() {
    compare_histories(Engine::Redis, 300);
}

#[test]
fn other_servers_decide_merged_checks_one_after_another() {
    for engine in [Engine::Redis6, Engine::Redis8, Engine::Valkey] {
        compare_histories(engine, 60);
    }
}
