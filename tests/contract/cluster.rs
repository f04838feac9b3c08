//! The same in a cluster. All of it where the keys of a check are in one slot; and where they are not, what is left of it:
//! never too many, and true waits, while orders and traces are those of a slot.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use proptest::test_runner::TestCaseError;
use tokio::{runtime::Runtime, time::sleep};
use tower_sliding_window::{
    Decision, PartitionKey, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Receipt},
    testing::ManualClock,
};

use super::{
    concurrency::{self, CLIENTS, clients_at_once, one_order_explains},
    couples,
    history::{Act, Couple, History, Keys, Move, Pairs},
    invariants::{failed, give_back, require, says_the_same},
    invariants_hold,
    model::{Handle, Model},
    of_histories,
};
use crate::support::{
    cluster::{Cluster, slot},
    server::Engine,
};

/// Different partition keys without end, two by two in one slot.
fn couples_in_one_slot() -> impl Iterator<Item = Couple> {
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

fn couples_in_two_slots() -> impl Iterator<Item = Couple> {
    couples().filter(|[a, b]| slot(a) != slot(b))
}

async fn backends(cluster: &Cluster, count: usize) -> Vec<RedisBackend> {
    let mut backends = Vec::new();
    for _ in 0..count {
        // Of a cluster, one node is enough to find the others.
        backends.push(RedisBackend::connect_cluster([cluster.nodes[3].url()]).await.unwrap());
    }
    backends
}

#[test]
fn the_invariants_hold_in_one_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let runtime = Runtime::new().unwrap();
        let [backend] = &runtime.block_on(backends(&cluster, 1))[..] else { unreachable!() };
        invariants_hold(60, &runtime, couples_in_one_slot(), |clock| backend.clone().with_clock(clock));
    }
}

#[test]
fn one_order_explains_what_connections_are_told_in_one_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let couple = couples_in_one_slot().next().unwrap();
        let told = Runtime::new().unwrap().block_on(async {
            let check = move |client, round| concurrency::check(&couple, client, round);
            clients_at_once(backends(&cluster, CLIENTS).await, check).await
        });
        one_order_explains(told);
    }
}

#[test]
fn one_order_explains_what_connections_are_told_in_each_of_two_slots() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let couple = couples_in_two_slots().next().unwrap();
        let [a, b] = couple;
        let couples = [[a.clone(), b.clone()], [b, a.clone()]];
        // What is asked of both keys elsewhere, of one of them.
        let check = move |client: usize, round: usize| {
            let couple = &couples[(client + round) % 2];
            let both = concurrency::check(couple, client, round);
            let of_first = both.pairs().iter().filter(|pair| pair.key == couple[0]);
            let pairs: Vec<Pair> = of_first.cloned().collect();
            Check::new(pairs).unwrap().with_purpose(both.purpose())
        };
        let told = Runtime::new()
            .unwrap()
            .block_on(async { clients_at_once(backends(&cluster, CLIENTS).await, check).await });
        let (of_a, of_b) = told.into_iter().partition(|(check, _)| check.pairs()[0].key == a);
        one_order_explains(of_a);
        one_order_explains(of_b);
    }
}

/// With nobody else there, a check of two slots is decided as one of a single slot is: once what was charged in vain has
/// gone back.
#[test]
fn across_slots_the_decisions_are_those_of_the_model() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let runtime = Runtime::new().unwrap();
        let [backend] = &runtime.block_on(backends(&cluster, 1))[..] else { unreachable!() };
        let couples = std::cell::RefCell::new(couples_in_two_slots());
        of_histories(60, |history| {
            let couple = couples.borrow_mut().next().expect("keys without end");
            let clock = ManualClock::new();
            let backend = backend.clone().with_clock(&clock);
            let (now, model, reservations) = (0, Model::default(), Vec::new());
            let run = Across { backend, clock, couple, history: &history, now, model, reservations };
            runtime.block_on(run.hold())
        });
        assert_eq!(backend.lost_rollbacks(), 0, "{engine:?}");
    }
}

/// A history as it runs over two slots. The clock never goes back: what was charged in vain has gone back, but the instant of
/// it stays.
struct Across<'a> {
    backend: RedisBackend,
    clock: ManualClock,
    couple: Couple,
    history: &'a History,
    now: u64,
    model: Model,
    /// Those that are open.
    reservations: Vec<(Check, Vec<Receipt>, Vec<Handle>)>,
}

impl Across<'_> {
    async fn hold(mut self) -> Result<(), TestCaseError> {
        self.now = self.clock.now_micros();
        let mut quota = self.history.policies[0].quota;
        for step in &self.history.steps {
            quota = step.quota.unwrap_or(quota);
            self.now = match step.moves {
                Move::By(micros) => Move::By(micros.abs()).from(self.now),
                Move::ToEdge(of, near) => Move::ToEdge(of, near.abs()).from(self.now),
            };
            let policies = self.history.policies(quota);
            let check = |pairs: &Pairs| pairs.check(&self.couple, &policies);
            match &step.act {
                Act::Ask { purpose, pairs, waits } => {
                    let keys = if pairs.keys == Keys::A { Keys::Both } else { pairs.keys };
                    let check = check(&Pairs { keys, ..pairs.clone() }).with_purpose(*purpose);
                    self.ask(&check, *waits).await?;
                }
                Act::Settle { which, used } if !self.reservations.is_empty() => {
                    let which = *which % self.reservations.len();
                    let reserved = self.reservations.swap_remove(which);
                    let pairs = reserved.0.pairs().iter().zip(used.iter().cycle());
                    let used: Vec<u32> = pairs.map(|(pair, used)| used.of(pair.cost)).collect();
                    self.settle(reserved, &used).await?;
                }
                Act::Settle { .. } => {}
                Act::Reset { pairs } => {
                    let check = check(pairs);
                    self.model.reset(&check);
                    self.backend.reset(&check).await.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    async fn ask(&mut self, check: &Check, waits: bool) -> Result<(), TestCaseError> {
        if let (Wait::For(wait), true) = (self.decide(check).await?.retry_after(), waits)
            && !wait.is_zero()
        {
            let admitted_at = self.now + wait.as_micros() as u64;
            self.now = admitted_at - 1;
            require(
                !self.decide(check).await?.is_admitted(),
                "denied one microsecond before the wait is over",
            )?;
            self.now = admitted_at;
            require(self.decide(check).await?.is_admitted(), "admitted after the wait")?;
        }
        Ok(())
    }

    async fn decide(&mut self, check: &Check) -> Result<Decision, TestCaseError> {
        self.clock.set_micros(self.now);
        let (expected, handles) = self.model.check(self.now, check);
        let decision = self.backend.check(check).await.map_err(failed)?;
        let is_right = if expected.is_admitted() {
            says_the_same(&decision, &expected)
        } else {
            admits_the_same(&decision, &expected)
        };
        if !is_right {
            let text = format!("{check:#?}\nanswered {decision:#?}\nthe model {expected:#?}");
            return Err(TestCaseError::fail(format!("at {}: {text}", self.now)));
        }
        if !decision.is_admitted() {
            self.comes_back(check).await?;
        } else if check.purpose() == Purpose::Reserve {
            self.reservations.push((check.clone(), decision.receipts().to_vec(), handles));
        }
        Ok(decision)
    }

    /// Waits until what was charged in vain has gone back.
    async fn comes_back(&self, check: &Check) -> Result<(), TestCaseError> {
        let pairs = check.pairs().iter().map(|pair| Pair::new(pair.key.clone(), pair.policy.clone(), 0));
        let look = Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(Purpose::Peek);
        let expected = self.model.peek(self.now, &look);
        let start = Instant::now();
        loop {
            let decision = self.backend.check(&look).await.map_err(failed)?;
            if admits_the_same(&decision, &expected) {
                return Ok(());
            }
            require(start.elapsed() < Duration::from_secs(10), "what was charged in vain goes back")?;
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn settle(
        &mut self,
        (check, receipts, handles): (Check, Vec<Receipt>, Vec<Handle>),
        used: &[u32],
    ) -> Result<(), TestCaseError> {
        if self.model.is_ambiguous(&check, &handles) {
            return Ok(());
        }
        self.clock.set_micros(self.now);
        self.model.settle(self.now, &check, &handles, used);
        give_back(&self.backend, &check, &receipts, used).await?;
        match check.overage(used) {
            Some(overage) => self.decide(&overage).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Whether two decisions say the same of what is left and of when to come again: of what was given back, when everything
/// has left is known only as "no later than".
fn admits_the_same(one: &Decision, other: &Decision) -> bool {
    let pairs = one.statuses().iter().zip(other.statuses());
    let mut same = pairs.map(|(one, other)| {
        one.remaining() == other.remaining()
            && one.retry_after() == other.retry_after()
            && one.reset_after() >= other.reset_after()
    });
    one.statuses().len() == other.statuses().len() && same.all(|same| same)
}
