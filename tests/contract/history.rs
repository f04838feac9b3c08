//! Histories: generated sequences of operations on a backend, on a controlled clock.

use std::time::Duration;

use proptest::prelude::*;
use tower_sliding_window::{
    Algorithm, PartitionKey, Policy,
    backend::{Check, Pair, Purpose},
    policy::{Anchor, Period, Rate, Zone},
};

/// A sequence of steps with one set of policies.
#[derive(Clone, Debug)]
pub struct History {
    pub policies: Vec<PolicySpec>,
    pub steps: Vec<Step>,
}

/// The parameters of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicySpec {
    pub quota: u32,
    /// In microseconds.
    pub window: u64,
    pub algorithm: Algorithm,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// The movement of the clock before the action.
    pub movement: Movement,
    /// A new quota of the first policy, until the next change.
    pub quota: Option<u32>,
    pub action: Action,
}

#[derive(Clone, Copy, Debug)]
pub enum Movement {
    /// Moves by this number of microseconds, forward or backward.
    By(i64),
    /// Moves to the next multiple of the first number, and then by the second number of microseconds, forward or backward.
    ToEdge(u64, i64),
}

#[derive(Clone, Debug)]
pub enum Action {
    Check {
        purpose: Purpose,
        pairs: Pairs,
        /// Whether a denied check is repeated one microsecond before and exactly after its wait.
        waits: bool,
    },
    /// Settles an open reservation. The pairs use the two amounts in turn.
    Settle { which: usize, used: [Used; 2] },
    /// Resets some pairs.
    Reset { pairs: Pairs },
}

/// The two partition keys of a history. No other history on the same server uses them.
pub type TwoKeys = [PartitionKey; 2];

/// The pairs of a check.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The partition keys of the check.
    pub keys: Keys,
    /// The costs. The pairs use them in turn.
    pub costs: [u32; 2],
    /// The index of the first policy and the number of policies. The order wraps around the end.
    pub policies: (usize, usize),
    /// The shadow pairs: bit `i` is set if pair `i` is one.
    pub shadows: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    A,
    B,
    Both,
}

/// The actual cost of a reservation.
#[derive(Clone, Copy, Debug)]
pub enum Used {
    /// This number of eighths of the reserved cost.
    Eighths(u8),
    /// The reserved cost and this overage.
    More(u32),
}

impl History {
    /// Returns whether the quota never changes.
    pub fn is_constant(&self) -> bool {
        self.steps.iter().all(|step| step.quota.is_none())
    }

    /// Returns whether the clock never goes back.
    pub fn is_forward(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.movement, Movement::By(0..) | Movement::ToEdge(_, 0..)))
    }

    /// Returns this history with a clock that never goes back. So no check looks ahead at its waits.
    pub fn into_forward(mut self) -> Self {
        for step in &mut self.steps {
            step.movement = match step.movement {
                Movement::By(micros) => Movement::By(micros.abs()),
                Movement::ToEdge(of, near) => Movement::ToEdge(of, near.abs()),
            };
            if let Action::Check { waits, .. } = &mut step.action {
                *waits = false;
            }
        }
        self
    }

    /// Returns whether the settlement of a charge is that of a charge that had the smaller amount from the start. It is not in a
    /// token bucket. After a charge of the next bucket, later charges belong to it, whether it is settled to nothing or not.
    pub fn settles_in_past(&self) -> bool {
        let is_ahead =
            |step: &Step| matches!(step.action, Action::Check { purpose: Purpose::LeaseAhead, .. });
        !self.policies.iter().any(|policy| matches!(policy.algorithm, Algorithm::TokenBucket { .. }))
            && !self.steps.iter().any(is_ahead)
    }

    /// Returns the policies, with `quota` as the quota of the first one.
    pub fn policies(&self, quota: u32) -> Vec<Policy> {
        let with_quota = |(i, policy_spec): (usize, &PolicySpec)| {
            let quota = if i == 0 { quota } else { policy_spec.quota };
            let policy =
                Policy::new(&format!("policy {i}"), quota, Duration::from_micros(policy_spec.window));
            policy.unwrap().with_algorithm(policy_spec.algorithm).unwrap()
        };
        self.policies.iter().enumerate().map(with_quota).collect()
    }
}

impl Movement {
    pub fn from(self, now: u64) -> u64 {
        match self {
            Self::By(micros) => now.saturating_add_signed(micros),
            Self::ToEdge(of, near) => ((now / of + 1) * of).saturating_add_signed(near),
        }
    }
}

impl Used {
    pub fn units(self, cost: u32) -> u32 {
        match self {
            Self::Eighths(eighths) => (u64::from(cost) * u64::from(eighths) / 8) as u32,
            Self::More(more) => cost.saturating_add(more),
        }
    }
}

impl Pairs {
    /// Builds the check of these pairs.
    pub fn check(&self, [a, b]: &TwoKeys, policies: &[Policy]) -> Check {
        let keys: &[&PartitionKey] = match self.keys {
            Keys::A => &[a],
            Keys::B => &[b],
            Keys::Both => &[a, b],
        };
        let (from, count) = self.policies;
        let policies: Vec<&Policy> =
            policies.iter().cycle().skip(from % policies.len()).take(count.min(policies.len())).collect();
        let named = keys.iter().enumerate().flat_map(|(i, key)| {
            // A check has at most eight pairs, so the second key has one policy only.
            let count = if i == 1 { 1 } else { count };
            policies.iter().take(count).map(|policy| ((*key).clone(), (*policy).clone()))
        });
        let pairs = named.zip(self.costs.iter().cycle());
        let pairs = pairs.enumerate().map(|(i, ((key, policy), cost))| {
            let pair = Pair::new(key, policy, *cost);
            if self.shadows >> i & 1 == 1 { pair.shadow() } else { pair }
        });
        Check::new(pairs.collect::<Vec<_>>()).unwrap()
    }
}

/// Generates histories of fewer than `most` steps that often reach edges. They have small quotas, steps of whole windows and
/// to the edges of windows and buckets, and clocks that go back.
pub fn histories(most: usize) -> impl Strategy<Value = History> {
    prop::collection::vec(policy_spec(), 1..4).prop_flat_map(move |policies| {
        let mut spans: Vec<u64> = policies.iter().map(|policy_spec| policy_spec.window).collect();
        spans.extend(policies.iter().filter_map(|policy_spec| match policy_spec.algorithm {
            Algorithm::SlidingBuckets { precision } => Some(precision.as_micros() as u64),
            _ => None,
        }));
        let quotas: Vec<u32> = policies.iter().map(|policy_spec| policy_spec.quota).collect();
        // Long histories fill and empty many blocks of a log. Most histories are short.
        let length = prop_oneof![4 => 1..most / 4, 1 => most / 2..most];
        let steps = length.prop_flat_map(move |length| {
            // In half of the histories the clock never goes back.
            let (spans, quotas) = (spans.clone(), quotas.clone());
            // In a quarter of them, some charges are of the next bucket.
            (any::<bool>(), prop::bool::weighted(0.25)).prop_flat_map(move |(back, leases_ahead)| {
                prop::collection::vec(step(spans.clone(), quotas.clone(), back, leases_ahead), length)
            })
        });
        steps.prop_map(move |steps| History { policies: policies.clone(), steps })
    })
}

fn policy_spec() -> impl Strategy<Value = PolicySpec> {
    let window =
        prop_oneof![Just(1_000_u64), Just(10_000), 1_000..50_000_u64, Just(366 * 86_400 * 1_000_000)];
    let quota = prop_oneof![4 => 1..12_u32, 3 => 20..60_u32, 1 => Just(100_000), 1 => Just(u32::MAX)];
    // Chooses the algorithm and one of a thousand possible precisions.
    let algorithm =
        prop_oneof![4 => Just(0), 3 => Just(1), 3 => Just(2), 2 => Just(3), 3 => Just(4), 3 => Just(5)];
    (quota, window, algorithm, 0..=1_000_u64).prop_map(|(quota, window, algorithm, wide)| {
        let finest = window.div_ceil(4_096).max(1_000);
        let precision = Duration::from_micros(finest + (window - finest) / 1_000 * wide);
        let algorithm = match algorithm {
            0 => Algorithm::SlidingLog,
            1 => Algorithm::SlidingBuckets { precision },
            2 => Algorithm::SlidingCounter,
            3 => Algorithm::FixedWindow,
            4 => Algorithm::TokenBucket { rate: rate(quota, window, wide) },
            _ => return calendar_period(quota, wide as usize),
        };
        PolicySpec { quota, window, algorithm }
    })
}

/// Returns a calendar period. Steps of its window reach many of its boundaries.
fn calendar_period(quota: u32, which: usize) -> PolicySpec {
    let day = 86_400_000_000;
    let calendars = [
        (Period::Day, "UTC", Anchor::default(), day),
        (Period::Day, "Asia/Kolkata", Anchor::default().at(5, 30), day),
        // The clock begins in September.
        (Period::Day, "Europe/Berlin", Anchor::default().at(2, 0), day / 24),
        (Period::Week, "UTC", Anchor::day(4), 7 * day),
        (Period::Month, "America/New_York", Anchor::day(31), day),
        (Period::Month, "UTC", Anchor::day(17).at(8, 0), 31 * day),
        (Period::Year, "Pacific/Auckland", Anchor::date(4, 1), 90 * day),
    ];
    let (period, zone, anchor, window) = calendars[which % calendars.len()];
    let zone = Zone::new(zone).unwrap();
    PolicySpec { quota, window, algorithm: super::model::calendar_period::algorithm(period, zone, anchor) }
}

/// Returns a rate at which the quota returns in about a window.
fn rate(quota: u32, window: u64, wide: u64) -> Rate {
    // Steps change the quota to less than 12 units.
    let quota = quota.max(12);
    let units = 1 + (u64::from(quota - 1) * wide / 1_000) as u32;
    let period = (u128::from(window) * u128::from(units) / u128::from(quota)) as u64;
    let rate = Rate::new(units, Duration::from_micros(period.max(1)));
    // The reference model counts in small numbers.
    let fits = period.checked_mul(u64::from(quota)).is_some_and(|product| product < 1 << 50);
    if fits { rate } else { Rate::new(1, Duration::from_micros((window / u64::from(quota)).max(1))) }
}

fn step(spans: Vec<u64>, quotas: Vec<u32>, back: bool, leases_ahead: bool) -> impl Strategy<Value = Step> {
    let quota = prop_oneof![19 => Just(None), 1 => (1..12_u32).prop_map(Some)];
    (movement(spans, back), quota, action(quotas, leases_ahead)).prop_map(|(movement, quota, action)| Step {
        movement,
        quota,
        action,
    })
}

fn movement(spans: Vec<u64>, back: bool) -> impl Strategy<Value = Movement> {
    let backward = u32::from(back);
    let span = prop::sample::select(spans.clone());
    (span, prop::sample::select(spans), -2..3_i64).prop_flat_map(move |(span, other, near)| {
        let (edge, near_edge) = (span, if back { near } else { near.abs() });
        let (span, other) = (span as i64, other as i64);
        prop_oneof![
            6 => Just(Movement::By(0)),
            6 => (0..3_i64).prop_map(Movement::By),
            12 => (0..=span / 3).prop_map(Movement::By),
            4 => Just(Movement::By(span + near)),
            2 => Just(Movement::By(span + other + near)),
            3 => Just(Movement::ToEdge(edge, near_edge)),
            1 => Just(Movement::By(3 * span)),
            2 * backward => Just(Movement::By(-span / 4)),
            backward => Just(Movement::By(-span + near)),
            backward => Just(Movement::By(-2 * span)),
        ]
    })
}

fn action(quotas: Vec<u32>, leases_ahead: bool) -> impl Strategy<Value = Action> {
    let most_units = prop_oneof![6 => 0..15_u32, 1 => Just(1_000), 1 => Just(u32::MAX)];
    let purpose = prop_oneof![
        8 => Just(Purpose::Charge),
        8 => Just(Purpose::Reserve),
        2 => Just(Purpose::Peek),
        3 => most_units.prop_map(Purpose::TakeUpTo),
        1 => Just(Purpose::Debit),
        3 => Just(if leases_ahead { Purpose::LeaseAhead } else { Purpose::Reserve }),
    ];
    let check = (purpose, pairs(quotas.clone()), prop::bool::weighted(0.3)).prop_map(
        |(purpose, mut pairs, waits)| {
            if purpose == Purpose::Debit {
                // More would saturate the usage of a large quota.
                pairs.costs = pairs.costs.map(|cost| cost.min(200));
            }
            Action::Check { purpose, pairs, waits }
        },
    );
    let used = || {
        prop_oneof![
            2 => Just(Used::Eighths(0)),
            3 => (0..8_u8).prop_map(Used::Eighths),
            2 => (0..20_u32).prop_map(Used::More),
        ]
    };
    // Often chooses the last or the first reservation.
    let which = prop_oneof![Just(usize::MAX), Just(0), 0..64_usize];
    let settle = (which, used(), used()).prop_map(|(which, a, b)| Action::Settle { which, used: [a, b] });
    let reset = pairs(quotas).prop_map(|pairs| Action::Reset { pairs });
    // Boxes, because a value tree of all of these is large, and each layer of strategies moves it.
    prop_oneof![50 => check.boxed(), 12 => settle.boxed(), 1 => reset.boxed()]
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
    // Most checks have no shadow pair. Of the others, a few have no other pair.
    let shadows = prop_oneof![6 => Just(0), 3 => any::<u8>(), 1 => Just(u8::MAX)];
    (keys, costs, policies, shadows).prop_map(|(keys, costs, policies, shadows)| Pairs {
        keys,
        costs,
        policies,
        shadows,
    })
}
