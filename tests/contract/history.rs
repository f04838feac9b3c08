//! Histories: what happens to a backend, one step after the other, at instants of our own.

use std::time::Duration;

use proptest::prelude::*;
use tower_sliding_window::{
    Algorithm, PartitionKey, Policy,
    backend::{Check, Pair, Purpose},
};

/// Steps at instants, against one set of policies.
#[derive(Clone, Debug)]
pub struct History {
    pub policies: Vec<Rule>,
    pub steps: Vec<Step>,
}

/// What a policy is made of.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub quota: u32,
    /// In microseconds.
    pub window: u64,
    pub algorithm: Algorithm,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// How the clock moves before it.
    pub moves: Move,
    /// Another quota for the first policy, from here on until the next change.
    pub quota: Option<u32>,
    pub act: Act,
}

#[derive(Clone, Copy, Debug)]
pub enum Move {
    /// So many microseconds, forward or backward.
    By(i64),
    /// To the next multiple of this, and then so many microseconds, forward or backward.
    ToEdge(u64, i64),
}

#[derive(Clone, Debug)]
pub enum Act {
    Ask {
        purpose: Purpose,
        pairs: Pairs,
        /// After a denial: wait exactly as long as it said, and try again.
        waits: bool,
    },
    /// Settles one of the reservations that are open, with an amount for the first pair, the second, and so on in turn.
    Settle { which: usize, used: [Used; 2] },
    /// Forgets some pairs.
    Reset { pairs: Pairs },
}

/// The partition keys of a history, which no other history on the same server has.
pub type Couple = [PartitionKey; 2];

/// The pairs of a check.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// Which partition keys; two of them make a check of all policies for both.
    pub keys: Keys,
    /// The costs of the first pair, the second, and so on in turn.
    pub costs: [u32; 2],
    /// Which policies, and in which order: from this one on, around the end, so many.
    pub policies: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    A,
    B,
    Both,
}

/// What was really used of a reservation.
#[derive(Clone, Copy, Debug)]
pub enum Used {
    /// So many eighths of its cost.
    Eighths(u8),
    /// All, and so much more.
    More(u32),
}

impl History {
    /// Whether the quota is the same throughout.
    pub fn is_constant(&self) -> bool {
        self.steps.iter().all(|step| step.quota.is_none())
    }

    /// Whether the clock never goes back.
    pub fn is_forward(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.moves, Move::By(0..) | Move::ToEdge(_, 0..)))
    }

    /// The policies as they are when `quota` is the first one's.
    pub fn policies(&self, quota: u32) -> Vec<Policy> {
        let with_quota = |(i, rule): (usize, &Rule)| {
            let quota = if i == 0 { quota } else { rule.quota };
            let policy = Policy::new(&format!("policy {i}"), quota, Duration::from_micros(rule.window));
            policy.unwrap().with_algorithm(rule.algorithm).unwrap()
        };
        self.policies.iter().enumerate().map(with_quota).collect()
    }
}

impl Move {
    pub fn from(self, now: u64) -> u64 {
        match self {
            Self::By(micros) => now.saturating_add_signed(micros),
            Self::ToEdge(of, near) => ((now / of + 1) * of).saturating_add_signed(near),
        }
    }
}

impl Used {
    pub fn of(self, cost: u32) -> u32 {
        match self {
            Self::Eighths(eighths) => (u64::from(cost) * u64::from(eighths) / 8) as u32,
            Self::More(more) => cost.saturating_add(more),
        }
    }
}

impl Pairs {
    /// A check of these pairs.
    pub fn check(&self, [a, b]: &Couple, policies: &[Policy]) -> Check {
        let keys: &[&PartitionKey] = match self.keys {
            Keys::A => &[a],
            Keys::B => &[b],
            Keys::Both => &[a, b],
        };
        let (from, count) = self.policies;
        let policies: Vec<&Policy> =
            policies.iter().cycle().skip(from % policies.len()).take(count.min(policies.len())).collect();
        let named = keys.iter().enumerate().flat_map(|(i, key)| {
            // At most eight pairs; the second key has one policy only.
            let count = if i == 1 { 1 } else { count };
            policies.iter().take(count).map(|policy| ((*key).clone(), (*policy).clone()))
        });
        let pairs = named.zip(self.costs.iter().cycle());
        let pairs = pairs.map(|((key, policy), cost)| Pair::new(key, policy, *cost));
        Check::new(pairs.collect::<Vec<_>>()).unwrap()
    }
}

/// Histories of up to `most` steps, made so that edges are met often: small quotas, steps of whole windows and to the
/// edges of windows and buckets, clocks that go back.
pub fn histories(most: usize) -> impl Strategy<Value = History> {
    prop::collection::vec(rule(), 1..4).prop_flat_map(move |policies| {
        let mut spans: Vec<u64> = policies.iter().map(|rule| rule.window).collect();
        spans.extend(policies.iter().filter_map(|rule| match rule.algorithm {
            Algorithm::SlidingBuckets { precision } => Some(precision.as_micros() as u64),
            _ => None,
        }));
        let quotas: Vec<u32> = policies.iter().map(|rule| rule.quota).collect();
        // Long ones fill and empty many blocks of a log; short ones are many.
        let length = prop_oneof![4 => 1..most / 4, 1 => most / 2..most];
        let steps = length.prop_flat_map(move |length| {
            // In some the clock never goes back.
            let (spans, quotas) = (spans.clone(), quotas.clone());
            any::<bool>().prop_flat_map(move |back| {
                prop::collection::vec(step(spans.clone(), quotas.clone(), back), length)
            })
        });
        steps.prop_map(move |steps| History { policies: policies.clone(), steps })
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let window =
        prop_oneof![Just(1_000_u64), Just(10_000), 1_000..50_000_u64, Just(366 * 86_400 * 1_000_000)];
    let quota = prop_oneof![4 => 1..12_u32, 3 => 20..60_u32, 1 => Just(100_000), 1 => Just(u32::MAX)];
    // Which algorithm; and of those precisions that are possible, one of a thousand.
    let algorithm = prop_oneof![4 => Just(0), 3 => Just(1), 3 => Just(2), 2 => Just(3)];
    (quota, window, algorithm, 0..=1_000_u64).prop_map(|(quota, window, algorithm, wide)| {
        let finest = window.div_ceil(4_096).max(1_000);
        let precision = Duration::from_micros(finest + (window - finest) / 1_000 * wide);
        let algorithm = match algorithm {
            0 => Algorithm::SlidingLog,
            1 => Algorithm::SlidingBuckets { precision },
            2 => Algorithm::SlidingCounter,
            _ => Algorithm::FixedWindow,
        };
        Rule { quota, window, algorithm }
    })
}

fn step(spans: Vec<u64>, quotas: Vec<u32>, back: bool) -> impl Strategy<Value = Step> {
    let quota = prop_oneof![19 => Just(None), 1 => (1..12_u32).prop_map(Some)];
    (moves(spans, back), quota, act(quotas)).prop_map(|(moves, quota, act)| Step { moves, quota, act })
}

fn moves(spans: Vec<u64>, back: bool) -> impl Strategy<Value = Move> {
    let backward = u32::from(back);
    let span = prop::sample::select(spans.clone());
    (span, prop::sample::select(spans), -2..3_i64).prop_flat_map(move |(span, other, near)| {
        let (edge, near_edge) = (span, if back { near } else { near.abs() });
        let (span, other) = (span as i64, other as i64);
        prop_oneof![
            6 => Just(Move::By(0)),
            6 => (0..3_i64).prop_map(Move::By),
            12 => (0..=span / 3).prop_map(Move::By),
            4 => Just(Move::By(span + near)),
            2 => Just(Move::By(span + other + near)),
            3 => Just(Move::ToEdge(edge, near_edge)),
            1 => Just(Move::By(3 * span)),
            2 * backward => Just(Move::By(-span / 4)),
            backward => Just(Move::By(-span + near)),
            backward => Just(Move::By(-2 * span)),
        ]
    })
}

fn act(quotas: Vec<u32>) -> impl Strategy<Value = Act> {
    let purpose =
        prop_oneof![4 => Just(Purpose::Charge), 4 => Just(Purpose::Reserve), 1 => Just(Purpose::Peek)];
    let ask = (purpose, pairs(quotas.clone()), prop::bool::weighted(0.3))
        .prop_map(|(purpose, pairs, waits)| Act::Ask { purpose, pairs, waits });
    let used = || prop_oneof![2 => Just(Used::Eighths(0)), 3 => (0..8_u8).prop_map(Used::Eighths), 2 => (0..20_u32).prop_map(Used::More)];
    // Often the last one, or the first.
    let which = prop_oneof![Just(usize::MAX), Just(0), 0..64_usize];
    let settle = (which, used(), used()).prop_map(|(which, a, b)| Act::Settle { which, used: [a, b] });
    let reset = pairs(quotas).prop_map(|pairs| Act::Reset { pairs });
    prop_oneof![50 => ask, 12 => settle, 1 => reset]
}

fn pairs(quotas: Vec<u32>) -> impl Strategy<Value = Pairs> {
    let cost = move || {
        prop::sample::select(quotas.clone()).prop_flat_map(|quota| {
            prop_oneof![
                6 => Just(1),
                4 => 1..=quota,
                1 => Just(quota),
                1 => Just(quota.saturating_add(1)),
                1 => Just(0),
            ]
        })
    };
    let costs =
        prop_oneof![3 => cost().prop_map(|cost| [cost; 2]), 1 => (cost(), cost()).prop_map(|(a, b)| [a, b])];
    let keys = prop_oneof![6 => Just(Keys::A), 2 => Just(Keys::B), 1 => Just(Keys::Both)];
    let policies = prop_oneof![3 => Just((0, 3)), 1 => (0..3_usize, 1..4_usize)];
    (keys, costs, policies).prop_map(|(keys, costs, policies)| Pairs { keys, costs, policies })
}
