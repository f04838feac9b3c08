//! The contract in Redis Cluster. In one slot all of it holds. Across slots no decision exceeds the quota and every wait is
//! exact. But one order of decisions exists for each slot only, and a denial may leave a trace.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use proptest::test_runner::TestCaseError;
use tokio::{runtime::Runtime, time::sleep};
use tower_sliding_window::{
    Decision, PartitionKey, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Receipt},
    redis::RedisServers,
    testing::ManualClock,
};

use super::{
    check_invariants,
    concurrency::{self, CLIENTS, assert_one_order_explains, run_clients},
    distinct_keys,
    history::{Action, History, Keys, Movement, Pairs, TwoKeys},
    invariants::{failed, refund_unused, require, same_decision, used_of_charged},
    model::{Handle, Model},
    run_histories,
};
use crate::{
    redis_server::rig::TIMEOUT,
    support::{
        cluster::{Cluster, slot},
        server::Engine,
    },
};

/// Returns an endless sequence of partition keys, two at a time in one slot.
fn keys_in_one_slot() -> impl Iterator<Item = TwoKeys> {
    let mut single: HashMap<u16, PartitionKey> = HashMap::new();
    (0..).filter_map(move |i| {
        let key = PartitionKey::new("key", format!("{i}"));
        match single.remove(&slot(&key)) {
            Some(other) => Some([other, key]),
            None => {
                single.insert(slot(&key), key);
                None
            }
        }
    })
}

fn keys_in_two_slots() -> impl Iterator<Item = TwoKeys> {
    distinct_keys().filter(|[a, b]| slot(a) != slot(b))
}

async fn backends(cluster: &Cluster, count: usize) -> Vec<RedisBackend> {
    let mut backends = Vec::new();
    for _ in 0..count {
        // The backend finds all nodes of a cluster from one node.
        backends.push(
            RedisBackend::builder(RedisServers::cluster([cluster.nodes[3].url()])).connect().await.unwrap(),
        );
    }
    backends
}

#[test]
fn cluster_upholds_invariants_in_one_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let runtime = Runtime::new().unwrap();
        let [backend] = &runtime.block_on(backends(&cluster, 1))[..] else { unreachable!() };
        check_invariants(60, &runtime, keys_in_one_slot(), |clock| backend.clone().with_clock(clock));
    }
}

#[test]
fn one_order_explains_decisions_in_one_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let two_keys = keys_in_one_slot().next().unwrap();
        let decisions = Runtime::new().unwrap().block_on(async {
            let check = move |client, round| concurrency::check(&two_keys, client, round);
            run_clients(backends(&cluster, CLIENTS).await, check).await
        });
        assert_one_order_explains(decisions);
    }
}

#[test]
fn one_order_explains_decisions_of_each_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let two_keys = keys_in_two_slots().next().unwrap();
        let [a, b] = two_keys;
        let orders = [[a.clone(), b.clone()], [b, a.clone()]];
        // Keeps only the pairs of the first key.
        let check = move |client: usize, round: usize| {
            let two_keys = &orders[(client + round) % 2];
            let both = concurrency::check(two_keys, client, round);
            let of_first = both.pairs().iter().filter(|pair| pair.key == two_keys[0]);
            let pairs: Vec<Pair> = of_first.cloned().collect();
            Check::new(pairs).unwrap().with_purpose(both.purpose())
        };
        let decisions = Runtime::new()
            .unwrap()
            .block_on(async { run_clients(backends(&cluster, CLIENTS).await, check).await });
        let (of_a, of_b) = decisions.into_iter().partition(|(check, _)| check.pairs()[0].key == a);
        assert_one_order_explains(of_a);
        assert_one_order_explains(of_b);
    }
}

/// Without other clients, a check across two slots gets the same decision as a check in one slot. The test waits for each
/// rollback.
#[test]
fn cross_slot_decisions_match_reference_model() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let runtime = Runtime::new().unwrap();
        let [backend] = &runtime.block_on(backends(&cluster, 1))[..] else { unreachable!() };
        let keys = std::cell::RefCell::new(keys_in_two_slots());
        run_histories(60, |history| {
            let two_keys = keys.borrow_mut().next().expect("the sequence is endless");
            let clock = ManualClock::new();
            let backend = backend.clone().with_clock(&clock);
            let (now, model, reservations) = (0, Model::default(), Vec::new());
            let run = CrossSlotRun { backend, clock, two_keys, history: &history, now, model, reservations };
            runtime.block_on(run.hold())
        });
        assert_eq!(backend.lost_rollbacks(), 0, "{engine:?}");
    }
}

/// The run of a history across two slots. Its clock never goes back, because a rollback keeps the instant of the charge.
struct CrossSlotRun<'a> {
    backend: RedisBackend,
    clock: ManualClock,
    two_keys: TwoKeys,
    history: &'a History,
    now: u64,
    model: Model,
    /// The open reservations.
    reservations: Vec<(Check, Vec<Receipt>, Vec<Handle>)>,
}

impl CrossSlotRun<'_> {
    async fn hold(mut self) -> Result<(), TestCaseError> {
        self.now = self.clock.now_micros();
        let mut quota = self.history.policies[0].quota;
        for step in &self.history.steps {
            quota = step.quota.unwrap_or(quota);
            self.now = match step.movement {
                Movement::By(micros) => Movement::By(micros.abs()).from(self.now),
                Movement::ToEdge(of, near) => Movement::ToEdge(of, near.abs()).from(self.now),
            };
            let policies = self.history.policies(quota);
            let check = |pairs: &Pairs| pairs.check(&self.two_keys, &policies);
            match &step.action {
                Action::Check { purpose, pairs, waits } => {
                    let keys = if pairs.keys == Keys::A { Keys::Both } else { pairs.keys };
                    // To take units of several slots is an error, and a debit has no rollback.
                    let purpose = match purpose {
                        Purpose::TakeUpTo(_) | Purpose::Debit | Purpose::LeaseAhead => Purpose::Reserve,
                        purpose => *purpose,
                    };
                    let check = check(&Pairs { keys, ..pairs.clone() }).with_purpose(purpose);
                    self.check_and_wait(&check, *waits).await?;
                }
                Action::Settle { which, used } if !self.reservations.is_empty() => {
                    let which = *which % self.reservations.len();
                    let reserved = self.reservations.swap_remove(which);
                    let used = used_of_charged(&reserved.0, &reserved.1, used);
                    self.settle(reserved, &used).await?;
                }
                Action::Settle { .. } => {}
                Action::Reset { pairs } => {
                    let check = check(pairs);
                    self.model.reset(&check);
                    self.backend.reset(&check).await.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    async fn check_and_wait(&mut self, check: &Check, waits: bool) -> Result<(), TestCaseError> {
        if let (Wait::For(wait), true) = (self.decide(check).await?.retry_after(), waits)
            && !wait.is_zero()
        {
            let admitted_at = self.now + wait.as_micros() as u64;
            self.now = admitted_at - 1;
            require(
                !self.decide(check).await?.is_admitted(),
                "a check is denied one microsecond before the end of the wait",
            )?;
            self.now = admitted_at;
            require(self.decide(check).await?.is_admitted(), "a check is admitted after the wait")?;
        }
        Ok(())
    }

    async fn decide(&mut self, check: &Check) -> Result<Decision, TestCaseError> {
        self.clock.set_micros(self.now);
        let (expected, handles) = self.model.check(self.now, check);
        let decision = self.backend.check(check).await.map_err(failed)?;
        let is_right = if expected.is_admitted() {
            same_decision(&decision, &expected)
        } else {
            same_admission(&decision, &expected)
        };
        if !is_right {
            let text = format!(
                "{check:#?}\nthe decision is {decision:#?}\nthe reference model expects {expected:#?}"
            );
            return Err(TestCaseError::fail(format!("at {}: {text}", self.now)));
        }
        if !decision.is_admitted() {
            self.wait_for_rollback(check).await?;
        } else if check.purpose() == Purpose::Reserve {
            self.reservations.push((check.clone(), decision.receipts().to_vec(), handles));
        }
        Ok(decision)
    }

    /// Waits for the end of the rollback of a denied check.
    async fn wait_for_rollback(&self, check: &Check) -> Result<(), TestCaseError> {
        let pairs = check.pairs().iter().map(|pair| Pair::new(pair.key.clone(), pair.policy.clone(), 0));
        let peek = Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(Purpose::Peek);
        let expected = self.model.peek(self.now, &peek);
        let start = Instant::now();
        loop {
            let decision = self.backend.check(&peek).await.map_err(failed)?;
            if same_admission(&decision, &expected) {
                return Ok(());
            }
            require(start.elapsed() < TIMEOUT, "the rollback ends")?;
            // The peeks would delay the rollback.
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn settle(
        &mut self,
        (check, receipts, handles): (Check, Vec<Receipt>, Vec<Handle>),
        used: &[u32],
    ) -> Result<(), TestCaseError> {
        self.clock.set_micros(self.now);
        self.model.settle(self.now, &check, &handles, used);
        refund_unused(&self.backend, self.now, &check, &receipts, used).await?;
        match check.overage(used) {
            Some(overage) => self.decide(&overage).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Returns whether two decisions have the same remaining units and waits. After a rollback, `reset_after` is only an upper
/// bound.
fn same_admission(one: &Decision, other: &Decision) -> bool {
    let pairs = one.statuses().iter().zip(other.statuses());
    let mut same = pairs.map(|(one, other)| {
        one.remaining() == other.remaining()
            && one.retry_after() == other.retry_after()
            && one.reset_after() >= other.reset_after()
    });
    one.statuses().len() == other.statuses().len() && same.all(|same| same)
}
