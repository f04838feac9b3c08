//! The status of one pair in a decision, and its waits.

use std::{fmt, time::Duration};

use crate::{
    check::{Pair, PairRef},
    policy::{Algorithm, Policy},
};

/// The time until a check would be admitted.
///
/// Waits are ordered: any duration is less than [`Unknown`](Wait::Unknown), and this is less than [`Never`](Wait::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// A duration in microseconds. Zero if no wait is needed.
    For(Duration),
    /// The wait is not known, because units may return at any time: that of a policy [in flight](crate::Policy::in_flight). Only a
    /// [`Status`] states it.
    Unknown,
    /// No wait helps, because the cost is above the quota.
    Never,
}

impl Wait {
    /// No wait.
    pub const ZERO: Self = Self::For(Duration::ZERO);

    /// Returns whether no wait is needed.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    pub(super) fn known(self) -> Option<Duration> {
        let Self::For(wait) = self else { return None };
        Some(wait)
    }
}

/// The longest time in microseconds.
const LONGEST_MICROS: u64 = u64::MAX - 2;

impl WaitMicros {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const UNKNOWN: Self = Self(u64::MAX - 1);
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Returns a wait of this many microseconds.
    #[inline]
    pub(crate) fn new(micros: u64) -> Self {
        Self(micros.min(LONGEST_MICROS))
    }

    #[inline]
    pub(super) fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    fn get(self) -> Wait {
        match self {
            Self::NEVER => Wait::Never,
            Self::UNKNOWN => Wait::Unknown,
            Self(micros) => Wait::For(Duration::from_micros(micros)),
        }
    }
}

impl From<Wait> for WaitMicros {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::For(wait) => Self::new(whole_micros(wait)),
            Wait::Unknown => Self::UNKNOWN,
            Wait::Never => Self::NEVER,
        }
    }
}

/// Rounds a time up to whole microseconds.
fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).map_or(LONGEST_MICROS, |micros| micros.min(LONGEST_MICROS))
}

/// The status of one pair in a decision.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    pub(super) policy: Policy,
    /// The hash of the partition key, for the warning about double charges. The statuses of two keys may be equal.
    pub(super) key: Uncompared<u64>,
    role: Role,
    pub(super) cost: u32,
    pub(super) standing: Standing,
}

/// How a pair stands after a decision: what the methods of the same names of [`Status`] return.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) remaining: u32,
    pub(crate) retry_after: WaitMicros,
    /// In microseconds.
    pub(crate) next_after: u64,
    /// In microseconds.
    pub(crate) reset_after: u64,
}

/// Whether a pair takes part in the verdict. A decision consists of whole words: each move of a smaller part, just after it was written,
/// would wait for the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Role {
    Enforcing,
    Shadow,
}

/// A [`Wait`] as a number of microseconds, in the same order.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WaitMicros(u64);

/// A value that takes no part in comparisons.
#[derive(Clone, Copy)]
pub(super) struct Uncompared<T>(pub(super) T);

impl<T> PartialEq for Uncompared<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Uncompared<T> {}

impl Status {
    /// Creates the status of a pair after the decision. The methods of the same names define the parameters. Times are rounded up to
    /// microseconds, and are at most 2^64-3 of them.
    pub fn new(
        pair: &Pair,
        remaining: u32,
        retry_after: Wait,
        next_after: Duration,
        reset_after: Duration,
    ) -> Self {
        let [next_after, reset_after] = [next_after, reset_after].map(whole_micros);
        let retry_after = retry_after.into();
        Self::of_pair(pair.borrowed(), Standing { remaining, retry_after, next_after, reset_after })
    }

    #[inline]
    pub(crate) fn of_pair(PairRef { key, policy, cost, is_shadow }: PairRef<'_>, standing: Standing) -> Self {
        let role = if is_shadow { Role::Shadow } else { Role::Enforcing };
        Self { policy: policy.clone(), key: Uncompared(key.hash_code()), role, cost, standing }
    }

    /// Returns whether this pair denies the check.
    #[inline]
    pub(super) fn denies(&self) -> bool {
        !self.standing.retry_after.is_zero() && !self.is_shadow()
    }

    /// Returns whether this is the status of a [shadow pair](Decision#shadow-pairs), which does not take part in the verdict.
    pub fn is_shadow(&self) -> bool {
        self.role == Role::Shadow
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the cost of the request, in quota units.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns the quota of the policy, in quota units, as [`Policy::quota`] does.
    pub fn quota(&self) -> Option<u32> {
        self.policy.quota()
    }

    /// Returns the remaining quota after the decision, in quota units. 0 if more than the quota is used. If the policy
    /// has no quota, the number has no meaning.
    /// A shadow pair that denies was not charged.
    pub fn remaining(&self) -> u32 {
        self.standing.remaining
    }

    /// Returns the part of the quota that is in use after the decision: 0 to 1. It is 1 if more than the quota is used.
    pub fn usage_fraction(&self) -> f64 {
        let quota = self.policy.quota_units();
        f64::from(quota.saturating_sub(self.remaining())) / f64::from(quota)
    }

    /// Returns whether at least this fraction of the quota is in use after the decision. For the fraction that a limiter counts,
    /// see [`Builder::near_limit`](crate::Builder::near_limit).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("mails", 10, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// let decision = limiter.check((PartitionKey::new("user", "alice"), 8)).await?;
    /// let status = &decision.statuses()[0];
    /// assert_eq!(status.usage_fraction(), 0.8);
    /// assert!(status.is_near(0.8) && !status.is_near(0.9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_near(&self, fraction: f64) -> bool {
        self.usage_fraction() >= fraction
    }

    /// Returns the same status with more remaining quota.
    pub(crate) fn with_more(mut self, units: u32) -> Self {
        self.standing.remaining = self.remaining().saturating_add(units);
        self
    }

    /// Returns the smallest wait after which this pair admits the same cost, if there are no other charges. Zero if it admits
    /// now. For a cost above one, this is not the time until the oldest charge leaves, but until enough units have left.
    ///
    /// For a shadow pair, this is its own verdict, which does not affect the check.
    pub fn retry_after(&self) -> Wait {
        self.standing.retry_after.get()
    }

    /// Returns the wait that a response states: in place of one that is not known, that of the policy.
    pub(super) fn stated_wait(&self) -> Wait {
        match (self.retry_after(), self.policy.algorithm()) {
            (Wait::Unknown, Algorithm::InFlight { retry_after, .. }) => Wait::For(retry_after),
            (wait, _) => wait,
        }
    }

    /// Returns the smallest wait after which [`remaining`](Self::remaining) is larger by at least one unit, if there are no other
    /// charges, or the window if nothing is used. Until then, the client can use no more than `remaining`. Zero for a type of
    /// policy without such a wait.
    pub fn next_after(&self) -> Duration {
        Duration::from_micros(self.standing.next_after)
    }

    /// Returns the smallest wait after which nothing is used, if there are no other charges. Zero also for a type of policy
    /// without such a wait.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.standing.reset_after)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("policy", &self.policy)
            .field("is_shadow", &self.is_shadow())
            .field("cost", &self.cost)
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("next_after", &self.next_after())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}
