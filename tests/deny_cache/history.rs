//! The reference model of the deny cache: a cached denial must match the decision of the store.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::advance;
use tower_sliding_window::{
    Algorithm, Limiter, PartitionKey, Policy, Reservation, Wait,
    backend::{Backend, Check, Pair, Purpose},
    policy::Rate,
};

use super::{MINUTE, Remote, SECOND, policy, with_max_age};

#[derive(Clone, Debug)]
enum Step {
    /// Bit `i` of `shadows` is set if pair `i` is a shadow pair.
    Check {
        keys: Vec<u8>,
        quota: u32,
        cost: u32,
        shadows: u8,
    },
    Reserve {
        keys: Vec<u8>,
        quota: u32,
        cost: u32,
        shadows: u8,
    },
    Settle {
        which: usize,
        used: u32,
    },
    Reset {
        key: u8,
    },
    Wait(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || prop::sample::subsequence(vec![0, 1, 2], 1..=2);
    let (quota, cost) = (prop_oneof![3 => Just(10u32), 1 => 8..=12u32], 0..=13u32);
    let shadows = prop_oneof![3 => Just(0), 1 => any::<u8>()];
    prop_oneof![
        8 => (keys(), quota.clone(), cost.clone(), shadows.clone())
            .prop_map(|(keys, quota, cost, shadows)| Step::Check { keys, quota, cost, shadows }),
        2 => (keys(), quota, cost.clone(), shadows)
            .prop_map(|(keys, quota, cost, shadows)| Step::Reserve { keys, quota, cost, shadows }),
        1 => (any::<usize>(), cost).prop_map(|(which, used)| Step::Settle { which, used }),
        1 => (0..3u8).prop_map(|key| Step::Reset { key }),
        4 => (0..3_000u64).prop_map(|millis| Step::Wait(Duration::from_millis(millis))),
    ]
}

fn pairs(policies: &[Policy], keys: &[u8], quota: u32, cost: u32) -> Vec<Pair> {
    let policies = policies.iter().map(|policy| {
        // A token bucket ignores the window.
        let other = Policy::new(policy.name(), quota, policy.window().unwrap_or(SECOND)).unwrap();
        other.with_algorithm(policy.algorithm()).unwrap()
    });
    let policies: Vec<_> = policies.collect();
    let keys = keys.iter().map(|key| PartitionKey::new("user", key.to_string()));
    let pairs =
        keys.flat_map(|key| policies.iter().map(move |policy| Pair::new(key.clone(), policy.clone(), cost)));
    // The most that a check may have. Those of the second key are fewer.
    pairs.take(8).collect()
}

async fn run(steps: Vec<Step>) -> usize {
    let buckets = Algorithm::SlidingBuckets { precision: SECOND };
    let policies = [
        policy("log", 10, 5 * SECOND),
        policy("buckets", 10, 3 * SECOND).with_algorithm(buckets).unwrap(),
        policy("counter", 10, 4 * SECOND).with_algorithm(Algorithm::SlidingCounter).unwrap(),
        policy("fixed", 10, 2 * SECOND).with_algorithm(Algorithm::FixedWindow).unwrap(),
        Policy::token_bucket("tokens", 10, Rate::per_second(3)).unwrap(),
    ];
    let remote = Remote::new();
    let builder = Limiter::builder(remote.clone()).without_policies();
    let limiter = builder.deny_cache(with_max_age(MINUTE)).build().unwrap();
    let mut reservations: Vec<Reservation> = Vec::new();
    let mut hits = 0;
    for step in steps {
        let (keys, quota, cost, shadows, reserves) = match step {
            Step::Check { keys, quota, cost, shadows } => (keys, quota, cost, shadows, false),
            Step::Reserve { keys, quota, cost, shadows } => (keys, quota, cost, shadows, true),
            Step::Settle { which, used } => {
                if !reservations.is_empty() {
                    reservations.swap_remove(which % reservations.len()).settle(used).await;
                }
                continue;
            }
            Step::Reset { key } => {
                limiter.reset(pairs(&policies, &[key], 10, 0)).await.unwrap();
                continue;
            }
            Step::Wait(time) => {
                advance(time).await;
                continue;
            }
        };
        let mut pairs = pairs(&policies, &keys, quota, cost);
        for (i, pair) in pairs.iter_mut().enumerate() {
            pair.is_shadow = shadows >> i & 1 == 1;
        }
        let expected = Check::new(pairs.clone()).unwrap().with_purpose(Purpose::Peek);
        let expected = remote.now().check(&expected).await.unwrap();
        let decision = if reserves {
            match limiter.reserve(pairs).await {
                Ok(reservation) => {
                    let decision = reservation.decision().unwrap().clone();
                    reservations.push(reservation);
                    decision
                }
                Err(rejection) => rejection.decision().unwrap().clone(),
            }
        } else {
            limiter.check(pairs).await.unwrap()
        };
        assert_eq!(decision.is_admitted(), expected.is_admitted());
        if !decision.is_cached() {
            continue;
        }
        hits += 1;
        // A cached wait must not exceed the wait of the store, and must not be zero. It is `Never` only if no wait helps.
        assert!(decision.retry_after() <= expected.retry_after(), "{decision:?} {expected:?}");
        for status in decision.statuses() {
            assert!(!status.is_shadow());
            let same = expected.statuses().iter().filter(|other| other.policy() == status.policy());
            let longest = same.map(|other| other.retry_after()).max().unwrap();
            assert!(!status.retry_after().is_zero() && status.retry_after() <= longest);
            assert!(
                !status.next_after().is_zero()
                    && status.reset_after() <= status.policy().window().unwrap_or(5 * SECOND) * 2
            );
            assert_eq!(status.retry_after() == Wait::Never, status.cost() > status.quota().unwrap());
            assert!(status.remaining() < status.cost());
        }
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn cached_denials_match_store_decisions(steps in prop::collection::vec(step(), 1..400)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let hits = runtime.block_on(run(steps.clone()));
        // A long history must contain a hit.
        prop_assert!(hits > 0 || steps.len() < 200, "{} steps", steps.len());
    }
}
