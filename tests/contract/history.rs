//! Histories: what happens to a backend, one check after the other, at instants of our own.

use std::time::Duration;

use proptest::prelude::*;
use tower_sliding_window::{Check, Pair, PartitionKey, Policy};

/// Checks at instants, against one set of policies.
#[derive(Clone, Debug)]
pub struct History {
    /// Quota and window in microseconds of each policy.
    pub policies: Vec<(u32, u64)>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// How far the clock moves before the check, in microseconds, forward or backward.
    pub moves: i64,
    /// Which partition keys; two of them make a check of all policies for both.
    pub keys: Keys,
    pub cost: u32,
    /// Which policies, and in which order: from this one on, around the end, so many.
    pub policies: (usize, usize),
    /// Another quota for the first policy, from here on until the next change.
    pub quota: Option<u32>,
    /// After a denial: wait exactly as long as it said, and try again.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    A,
    B,
    Both,
}

impl History {
    /// Whether the quota is the same throughout.
    pub fn is_constant(&self) -> bool {
        self.steps.iter().all(|step| step.quota.is_none())
    }

    /// The policies as they are when `quota` is the first one's.
    pub fn policies(&self, quota: u32) -> Vec<Policy> {
        let with_quota = |(i, (given, window)): (usize, &(u32, u64))| {
            let quota = if i == 0 { quota } else { *given };
            Policy::new(&format!("policy {i}"), quota, Duration::from_micros(*window)).unwrap()
        };
        self.policies.iter().enumerate().map(with_quota).collect()
    }
}

impl Step {
    /// The check of this step. `salt` keeps histories on one server apart.
    pub fn check(&self, salt: &str, policies: &[Policy]) -> Check {
        let names: &[&str] = match self.keys {
            Keys::A => &["a"],
            Keys::B => &["b"],
            Keys::Both => &["a", "b"],
        };
        let (from, count) = self.policies;
        let policies: Vec<&Policy> =
            policies.iter().cycle().skip(from % policies.len()).take(count.min(policies.len())).collect();
        let key = |name: &&str| PartitionKey::new("key", format!("{salt} {name}"));
        let pairs = names.iter().flat_map(|name| {
            // At most eight pairs; the second key has one policy only.
            let count = if *name == "b" && names.len() == 2 { 1 } else { count };
            policies.iter().take(count).map(move |policy| Pair::new(key(name), (*policy).clone(), self.cost))
        });
        Check::new(pairs.collect::<Vec<_>>()).unwrap()
    }
}

/// Histories of up to `most` steps, made so that edges are met often: small quotas, steps of whole windows, clocks that
/// go back.
pub fn histories(most: usize) -> impl Strategy<Value = History> {
    let window =
        prop_oneof![Just(1_000_u64), Just(10_000), 1_000..50_000_u64, Just(366 * 86_400 * 1_000_000)];
    let quota = prop_oneof![4 => 1..12_u32, 3 => 20..60_u32, 1 => Just(100_000), 1 => Just(u32::MAX)];
    let policies = prop::collection::vec((quota, window), 1..4);
    policies.prop_flat_map(move |policies| {
        let windows: Vec<i64> = policies.iter().map(|(_, window)| *window as i64).collect();
        let quotas: Vec<u32> = policies.iter().map(|(quota, _)| *quota).collect();
        // Long ones fill and empty many blocks of a log; short ones are many.
        let length = prop_oneof![4 => 1..most / 4, 1 => most / 2..most];
        let steps = length.prop_flat_map(move |length| {
            prop::collection::vec(step(windows.clone(), quotas.clone()), length)
        });
        steps.prop_map(move |steps| History { policies: policies.clone(), steps })
    })
}

fn step(windows: Vec<i64>, quotas: Vec<u32>) -> impl Strategy<Value = Step> {
    let window = prop::sample::select(windows);
    let near = -2..3_i64;
    let moves = (window, near).prop_flat_map(|(window, near)| {
        prop_oneof![
            6 => Just(0),
            6 => 0..3_i64,
            12 => 0..=window / 3,
            6 => Just(window + near),
            1 => Just(3 * window),
            2 => Just(-window / 4),
            1 => Just(-window + near),
            1 => Just(-2 * window),
        ]
    });
    let quota = prop::sample::select(quotas);
    let cost = quota.prop_flat_map(|quota| {
        prop_oneof![
            6 => Just(1),
            4 => 1..=quota,
            1 => Just(quota),
            1 => Just(quota.saturating_add(1)),
            1 => Just(0),
        ]
    });
    let keys = prop_oneof![6 => Just(Keys::A), 2 => Just(Keys::B), 1 => Just(Keys::Both)];
    let new_quota = prop_oneof![19 => Just(None), 1 => (1..12_u32).prop_map(Some)];
    let policies = prop_oneof![3 => Just((0, 3)), 1 => (0..3_usize, 1..4_usize)];
    (moves, keys, cost, policies, new_quota, prop::bool::weighted(0.3)).prop_map(
        |(moves, keys, cost, policies, quota, waits)| Step { moves, keys, cost, policies, quota, waits },
    )
}
