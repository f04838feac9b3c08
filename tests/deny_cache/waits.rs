//! The waits of hits: with many costs on one key, and after changes by other processes.

use std::{cell::Cell, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::time::{Instant, advance};
use tower_sliding_window::{
    Algorithm, Decision, Limiter, Policy, Wait,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    policy::Rate,
};

use super::{MINUTE, REFRESH_AGE, Remote, SECOND, TICK, alice, policy, wait, with_max_age};

/// The store and a limiter of Alice's only policy.
struct Rig {
    remote: Remote,
    limiter: Limiter,
    policy: Policy,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let remote = Remote::new();
        let builder = Limiter::builder(remote.clone()).policy(policy.clone());
        let limiter = builder.deny_cache(with_max_age(SECOND)).build().unwrap();
        Self { remote, limiter, policy }
    }

    /// Returns the answer of the store to a check by another process.
    async fn ask_store(&self, cost: u32, purpose: Purpose) -> Decision {
        let check = Check::new([Pair::new(alice(), self.policy.clone(), cost)]).unwrap();
        self.remote.now().check(&check.with_purpose(purpose)).await.unwrap()
    }

    async fn check(&self, cost: u32) -> Decision {
        self.limiter.check((alice(), cost)).await.unwrap()
    }

    /// Returns by how much the wait of a hit is shorter than that of the store. `None` if the check is not a hit.
    async fn shortfall_of_hit(&self, cost: u32) -> Option<Duration> {
        let denied = self.check(cost).await;
        let truth = self.ask_store(cost, Purpose::Peek).await;
        assert!(!denied.is_admitted() && wait(&denied) <= wait(&truth), "{cost}: {denied:?} {truth:?}");
        denied.is_cached().then(|| wait(&truth) - wait(&denied))
    }
}

/// Panics if the store has received more than four checks in one second.
fn assert_rate(asks: &[Instant]) {
    for window in asks.windows(5) {
        assert!(window[4] - window[0] >= SECOND, "{:?}", window[4] - window[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn hits_of_many_costs_return_their_own_waits() {
    let buckets = Algorithm::SlidingBuckets { precision: SECOND };
    for algorithm in [Algorithm::SlidingLog, buckets, Algorithm::FixedWindow] {
        // The quota is used in full, or all but four units.
        for quota in [72, 76] {
            let rig = Rig::new(policy("p", quota, 60 * MINUTE).with_algorithm(algorithm).unwrap());
            // Eight costs each share a wait.
            for _ in 0..9 {
                assert!(rig.check(8).await.is_admitted());
                advance(SECOND).await;
            }
            let smallest = quota - 72 + 1;
            let mut asks = Vec::new();
            let (mut hits, mut short) = (0, 0);
            for step in 0..640 {
                let sent = rig.remote.checks();
                // Every cost in turn, beginning with the smallest one.
                let cost = smallest + step * 7 % 24;
                let shortfall = rig.shortfall_of_hit(cost).await;
                asks.extend((sent..rig.remote.checks()).map(|_| Instant::now()));
                if step >= 320
                    && let Some(shortfall) = shortfall
                {
                    hits += 1;
                    short += usize::from(shortfall > 20 * TICK);
                }
                advance(25 * TICK).await;
            }
            assert_rate(&asks);
            assert!(hits >= 240, "{algorithm:?}, {quota}: {hits} hits");
            assert_eq!(short, 0, "{algorithm:?}, {quota}: of {hits} hits");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cost_between_equal_waits_hits_with_exact_wait() {
    let rig = Rig::new(policy("p", 10, MINUTE));
    assert!(rig.check(2).await.is_admitted());
    advance(SECOND).await;
    assert!(rig.check(8).await.is_admitted());
    // The wait of this cost is that of the whole quota, which the store states too.
    assert!(!rig.check(3).await.is_cached());
    for cost in 4..=10 {
        assert_eq!(rig.shortfall_of_hit(cost).await, Some(Duration::ZERO), "{cost}");
    }
    assert_eq!(rig.remote.checks(), 3);
}

#[tokio::test(start_paused = true)]
async fn unknown_cost_asks_store_at_bounded_rate() {
    for (max_age, period) in [(SECOND / 10, SECOND / 10), (SECOND, SECOND), (MINUTE, SECOND)] {
        let remote = Remote::new();
        let quota = policy("p", 1_000, 60 * MINUTE);
        let limiter = Limiter::builder(remote.clone()).policy(quota).deny_cache(with_max_age(max_age));
        let limiter = limiter.build().unwrap();
        for _ in 0..1_000 {
            assert!(limiter.check(alice()).await.unwrap().is_admitted());
            advance(TICK).await;
        }
        let mut asks = Vec::new();
        for step in 0..5_000 {
            let sent = remote.checks();
            assert!(!limiter.check((alice(), 1 + step % 999)).await.unwrap().is_admitted());
            asks.extend((sent..remote.checks()).map(|_| Instant::now()));
            advance(period / 1_000).await;
        }
        assert!(asks.windows(5).all(|five| five[4] - five[0] >= period), "{max_age:?}");
        assert!((15..=20).contains(&asks.len()), "{max_age:?}: {}", asks.len());
    }
}

#[tokio::test(start_paused = true)]
async fn charge_by_limiter_makes_larger_costs_ask_again() {
    let rig = Rig::new(policy("p", 10, MINUTE));
    assert!(rig.check(4).await.is_admitted());
    advance(SECOND).await;
    assert!(rig.check(2).await.is_admitted());
    assert!(!rig.check(5).await.is_cached());
    assert!(rig.check(5).await.is_cached());
    advance(SECOND / 10).await;
    assert!(rig.check(4).await.is_admitted());
    // Five units were free after the first charge has left. Now more must leave.
    let denied = rig.check(9).await;
    assert_eq!((denied.is_cached(), wait(&denied)), (false, MINUTE));
}

#[tokio::test(start_paused = true)]
async fn refund_by_other_process_ends_known_waits() {
    let rig = Rig::new(policy("p", 10, MINUTE));
    let mut receipts = Vec::new();
    for _ in 0..9 {
        receipts.push(rig.ask_store(1, Purpose::Reserve).await.receipts()[0]);
        advance(SECOND).await;
    }
    for cost in [2, 5, 8] {
        assert!(!rig.check(cost).await.is_cached());
    }
    advance(SECOND / 2).await;
    assert!(rig.check(8).await.is_cached());
    refund(&rig, receipts[5], 1, 1).await;
    advance(SECOND * 4 / 10).await;
    // The refresh finds fewer units in use, although none has left.
    assert!(!rig.check(5).await.is_cached());
    advance(SECOND / 10).await;
    assert_eq!(rig.shortfall_of_hit(8).await, None);
}

#[tokio::test(start_paused = true)]
async fn refund_while_units_leave_ends_known_waits() {
    let rig = Rig::new(policy("p", 16, 20 * SECOND));
    let mut receipts = Vec::new();
    for _ in 0..5 {
        receipts.push(rig.ask_store(3, Purpose::Reserve).await.receipts()[0]);
        advance(SECOND).await;
    }
    advance(SECOND * 145 / 10).await;
    for cost in [6, 14] {
        assert!(!rig.check(cost).await.is_cached());
    }
    // The wait of the larger cost is shorter now. Then the oldest units leave, and the refresh finds fewer units in use.
    refund(&rig, receipts[4], 3, 1).await;
    advance(REFRESH_AGE).await;
    assert!(!rig.check(6).await.is_cached());
    advance(SECOND / 4).await;
    let _ = rig.check(6).await;
    // This panics if the wait is too long.
    rig.shortfall_of_hit(14).await;
}

/// Charges 16 units of a quota of 12, which leave in three parts: 4 after 8 s, 4 after 9 s, and 8 after 10 s. Returns the rig after
/// 6.9 s, and the receipt of a charge of 4 units that leaves last.
async fn exceeded() -> (Rig, Receipt) {
    let rig = Rig::new(policy("p", 12, 8 * SECOND));
    for _ in 0..2 {
        assert!(rig.ask_store(4, Purpose::Charge).await.is_admitted());
        advance(SECOND).await;
    }
    let receipt = rig.ask_store(4, Purpose::Reserve).await.receipts()[0];
    let _ = rig.ask_store(4, Purpose::Overage).await;
    advance(SECOND * 49 / 10).await;
    (rig, receipt)
}

#[tokio::test(start_paused = true)]
async fn refund_of_hidden_excess_ends_denials_as_units_leave() {
    let (rig, receipt) = exceeded().await;
    assert!(!rig.check(4).await.is_cached());
    refund(&rig, receipt, 4, 4).await;
    advance(SECOND * 7 / 10).await;
    // This does not show the refund, because the usage is not below the quota.
    assert!(!rig.check(6).await.is_cached());
    assert!(rig.check(4).await.is_cached());
    advance(SECOND / 2).await;
    assert!(rig.check(4).await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn later_denial_does_not_prove_wait_after_hidden_refund() {
    let (rig, receipt) = exceeded().await;
    assert!(!rig.check(5).await.is_cached());
    refund(&rig, receipt, 4, 4).await;
    advance(SECOND * 7 / 10).await;
    // This does not show the refund, because the usage is not below the quota.
    assert!(!rig.check(4).await.is_cached());
    advance(SECOND * 9 / 10).await;
    // The usage is as expected after the wait of the last check, but the wait of the first one is shorter now.
    assert!(!rig.check(9).await.is_admitted());
    advance(SECOND * 6 / 10).await;
    assert!(rig.check(5).await.is_admitted());
}

async fn refund(rig: &Rig, receipt: Receipt, cost: u32, units: u32) {
    let check = Check::new([Pair::new(alice(), rig.policy.clone(), cost)]).unwrap();
    if let Some(refund) = Refund::new(&check, &[receipt], &[cost - units]) {
        rig.remote.now().refund(&refund).await.unwrap();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Check(u32),
    /// What other processes do.
    Charge(u32),
    Overage(u32),
    Refund {
        which: usize,
        units: u32,
    },
    Reset,
    /// By how many milliseconds the clock of the store is stepped.
    Clock(i64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => (1..=12u32).prop_map(Step::Check),
        4 => (1..=4u32).prop_map(Step::Charge),
        1 => (1..=3u32).prop_map(Step::Overage),
        2 => (any::<usize>(), 1..=4u32).prop_map(|(which, units)| Step::Refund { which, units }),
        1 => Just(Step::Reset),
        1 => (-1_500..4_000i64).prop_map(Step::Clock),
        12 => prop_oneof![3 => 0..300u64, 1 => 0..3_000u64].prop_map(Step::Wait),
    ]
}

/// Checks every hit against the store. A hit may be wrong for at most the maximum age after units were returned, or after the clock of
/// the store was stepped. The wait, but not the verdict, may be too long for eight more if the usage was above the quota. Returns the
/// number of hits.
async fn run(algorithm: Algorithm, steps: &[Step]) -> usize {
    let rig = Rig::new(policy("p", 12, 8 * SECOND).with_algorithm(algorithm).unwrap());
    let mut charges = Vec::new();
    let (mut returned, mut exceeded) = (None::<Instant>, None::<Instant>);
    let mut hits = 0;
    for step in steps {
        let now = Instant::now();
        match *step {
            Step::Check(cost) => {
                let truth = rig.ask_store(cost, Purpose::Peek).await;
                let decision = rig.check(cost).await;
                if !decision.is_cached() {
                    continue;
                }
                hits += 1;
                let within = |at: Option<Instant>, time| at.is_some_and(|at| now - at <= time);
                if !within(returned, SECOND) {
                    assert!(!truth.is_admitted(), "{decision:?} {truth:?}");
                    if !(within(returned, 9 * SECOND) && within(exceeded, 17 * SECOND)) {
                        assert!(wait(&decision) <= wait(&truth), "{decision:?} {truth:?}");
                    }
                }
                assert_eq!(decision.retry_after() == Wait::Never, cost > 12);
            }
            Step::Charge(cost) => {
                if let [receipt] = rig.ask_store(cost, Purpose::Reserve).await.receipts() {
                    charges.push((*receipt, cost));
                }
            }
            Step::Overage(cost) => {
                let _ = rig.ask_store(cost, Purpose::Overage).await;
                exceeded = Some(now);
            }
            Step::Refund { which, units } => {
                if !charges.is_empty() {
                    let (receipt, cost) = charges.swap_remove(which % charges.len());
                    refund(&rig, receipt, cost, units.min(cost)).await;
                    returned = Some(now);
                }
            }
            Step::Reset => {
                rig.remote.reset_by_other_process(std::slice::from_ref(&rig.policy)).await;
                returned = Some(now);
            }
            Step::Clock(millis) => {
                rig.remote.step_clock(millis);
                returned = Some(now);
            }
            Step::Wait(millis) => advance(Duration::from_millis(millis)).await,
        }
    }
    hits
}

const TOKENS: Algorithm = Algorithm::TokenBucket { rate: Rate::per_second(3) };

#[test]
fn repeated_waits_never_exceed_waits_of_store() {
    let buckets = Algorithm::SlidingBuckets { precision: SECOND };
    let algorithms =
        [Algorithm::SlidingLog, buckets, Algorithm::SlidingCounter, Algorithm::FixedWindow, TOKENS];
    let hits = [(); 5].map(|()| Cell::new(0));
    let config = ProptestConfig { cases: 256, ..ProptestConfig::with_source_file(file!()) };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(step(), 1..300), |steps| {
        for (algorithm, hits) in algorithms.into_iter().zip(&hits) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            hits.set(hits.get() + runtime.block_on(run(algorithm, &steps)));
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    for (algorithm, hits) in algorithms.into_iter().zip(&hits) {
        println!("{algorithm:?}: {} hits", hits.get());
        assert!(hits.get() >= 1_000, "{algorithm:?}: {} hits", hits.get());
    }
}
