//! Decisions: the vocabulary that all levels share.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    check::{Check, Pair, Receipt},
    policy::Policy,
};

/// The time until a check would be admitted.
///
/// Waits are ordered: any duration is less than [`Never`](Wait::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// A duration in microseconds. Zero if no wait is needed.
    For(Duration),
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
}

/// The result of one check: admitted or denied, with a status for every pair.
///
/// A check is admitted if every pair admits. Then all pairs were charged, at one instant: in a cluster, at one instant for each slot. If a pair does not admit, nothing was
/// charged and nothing was written. If the store cannot decide, the result is not a decision but a
/// [`BackendError`](crate::backend::BackendError).
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Decision(Arc<Inner>);

#[derive(PartialEq, Eq)]
struct Inner {
    at_micros: u64,
    statuses: Box<[Status]>,
    receipts: Box<[Receipt]>,
    origin: Origin,
}

/// The origin of a decision.
#[derive(PartialEq, Eq)]
enum Origin {
    /// A backend, at one instant of one clock.
    Backend,
    /// A backend, at several instants of several clocks: one for each slot of a cluster.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a cluster has several slots"))]
    Divided {
        /// The policies of the check.
        policies: Box<[Policy]>,
        /// The indices of the pairs that have a status.
        known: Box<[usize]>,
    },
    /// The deny cache, for a check of these policies.
    Cache(Box<[Policy]>),
}

/// The status of one pair in a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    policy: Policy,
    cost: u32,
    remaining: u32,
    retry_after: Wait,
    next_after: Duration,
    reset_after: Duration,
}

impl Decision {
    /// Creates a decision that was made at the instant `at_micros`, in microseconds of the backend's clock, from the statuses of
    /// all pairs in the order of the check. It is admitted if every `retry_after` is zero.
    pub fn new(at_micros: u64, statuses: impl Into<Box<[Status]>>) -> Self {
        Self::with_receipts(at_micros, statuses, [])
    }

    /// Creates the decision of a check whose purpose was [`Purpose::Reserve`](crate::backend::Purpose::Reserve): with a receipt for every
    /// pair if it was admitted, and none if not.
    pub fn with_receipts(
        at_micros: u64,
        statuses: impl Into<Box<[Status]>>,
        receipts: impl Into<Box<[Receipt]>>,
    ) -> Self {
        Self::of(Origin::Backend, at_micros, statuses.into(), receipts.into())
    }

    /// Creates the decision of a check across several slots. A denial may have the statuses of some pairs only: of those that
    /// are `known`.
    #[cfg(feature = "redis")]
    pub(crate) fn divided(
        at_micros: u64,
        statuses: Vec<Status>,
        receipts: Vec<Receipt>,
        check: &Check,
        known: Vec<usize>,
    ) -> Self {
        let policies = check.pairs().iter().map(|pair| pair.policy.clone()).collect();
        let origin = Origin::Divided { policies, known: known.into() };
        Self::of(origin, at_micros, statuses.into(), receipts.into())
    }

    /// Creates a denial from the deny cache, for a check of these policies: the statuses of the pairs that are known to deny.
    pub(crate) fn cached(at_micros: u64, statuses: Box<[Status]>, policies: Box<[Policy]>) -> Self {
        Self::of(Origin::Cache(policies), at_micros, statuses, [].into())
    }

    fn of(origin: Origin, at_micros: u64, statuses: Box<[Status]>, receipts: Box<[Receipt]>) -> Self {
        Self(Arc::new(Inner { at_micros, statuses, receipts, origin }))
    }

    /// Returns whether the check was admitted and charged.
    pub fn is_admitted(&self) -> bool {
        self.retry_after().is_zero()
    }

    /// Returns the time until the same check would be admitted, if there are no other charges: the largest wait of all pairs,
    /// because all must admit. Zero if the check was admitted. If a slot of a cluster has not replied, it is a lower bound.
    pub fn retry_after(&self) -> Wait {
        let waits = self.0.statuses.iter().map(|status| status.retry_after);
        waits.max().unwrap_or(Wait::ZERO)
    }

    /// Returns the status of every pair, in the order of the check. A [cached](Self::is_cached) denial contains only the pairs
    /// that are known to deny. A denial across several slots of a cluster contains only the pairs whose slots have replied.
    pub fn statuses(&self) -> &[Status] {
        &self.0.statuses
    }

    /// Returns the policies that deny.
    pub fn violated(&self) -> impl Iterator<Item = &Policy> {
        let denying = self.0.statuses.iter().filter(|status| !status.retry_after.is_zero());
        denying.map(|status| &status.policy)
    }

    /// Returns the receipts of an admitted reservation, in the order of the check. Empty for any other check.
    pub fn receipts(&self) -> &[Receipt] {
        &self.0.receipts
    }

    /// Returns the instant of the decision, in microseconds of the backend's clock: the time of Redis, or for the memory backend
    /// the Unix time at start plus a monotonic clock. For a [cached](Self::is_cached) denial, the instant of the newest denial
    /// that it repeats.
    pub fn at_micros(&self) -> u64 {
        self.0.at_micros
    }

    /// Returns whether this is a denial from the deny cache; see [`DenyCache`](crate::outage::DenyCache) for what it
    /// contains. An admission is never cached.
    pub fn is_cached(&self) -> bool {
        matches!(self.0.origin, Origin::Cache(_))
    }

    /// Returns whether the check was decided at several instants of several clocks.
    pub(crate) fn is_divided(&self) -> bool {
        matches!(self.0.origin, Origin::Divided { .. })
    }

    /// Returns whether every pair of this check that must have a status has one.
    pub(crate) fn is_complete(&self, check: &Check) -> bool {
        match &self.0.origin {
            Origin::Divided { known, .. } if !self.is_admitted() => known.len() == self.0.statuses.len(),
            _ => self.0.statuses.len() == check.pairs().len(),
        }
    }

    /// Returns the pairs of this check that have a status, each with its status.
    pub(crate) fn statuses_of<'a>(
        &'a self,
        check: &'a Check,
    ) -> impl Iterator<Item = (&'a Pair, &'a Status)> {
        self.0.statuses.iter().enumerate().filter_map(|(i, status)| {
            let pair = match &self.0.origin {
                Origin::Divided { known, .. } => *known.get(i)?,
                Origin::Backend | Origin::Cache(_) => i,
            };
            Some((check.pairs().get(pair)?, status))
        })
    }

    /// Returns all policies of the check, in its order, also those of pairs without a status.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let (listed, known): (&[Policy], &[Status]) = match &self.0.origin {
            Origin::Cache(policies) | Origin::Divided { policies, .. } => (policies, &[]),
            Origin::Backend => (&[], &self.0.statuses),
        };
        listed.iter().chain(known.iter().map(|status| &status.policy))
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("admitted", &self.is_admitted())
            .field("cached", &self.is_cached())
            .field("at_micros", &self.at_micros())
            .field("statuses", &self.statuses())
            .finish()
    }
}

impl Status {
    /// Creates the status of a pair after the decision. The methods of the same names define the parameters.
    pub fn new(
        pair: &Pair,
        remaining: u32,
        retry_after: Wait,
        next_after: Duration,
        reset_after: Duration,
    ) -> Self {
        Self { policy: pair.policy.clone(), cost: pair.cost, remaining, retry_after, next_after, reset_after }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the cost of the request, in quota units.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns the quota of the policy, in quota units.
    pub fn limit(&self) -> u32 {
        self.policy.quota()
    }

    /// Returns the remaining quota after the decision, in quota units. 0 if more than the quota is used.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Returns the part of the quota that is in use after the decision: 0 to 1. It is 1 if more than the quota is used.
    pub fn usage_fraction(&self) -> f64 {
        f64::from(self.limit().saturating_sub(self.remaining)) / f64::from(self.limit())
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
    /// let decision = limiter.check(PartitionKey::new("user", "alice"), 8).await?;
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

    /// Returns the smallest wait after which this pair admits the same cost, if there are no other charges. Zero if it admits
    /// now. For a cost above one, this is not the time until the oldest charge leaves, but until enough units have left.
    pub fn retry_after(&self) -> Wait {
        self.retry_after
    }

    /// Returns the smallest wait after which less is used than now, or the window if nothing is used. Until then, the client can
    /// use no more than [`remaining`](Self::remaining).
    pub fn next_after(&self) -> Duration {
        self.next_after
    }

    /// Returns the smallest wait after which nothing is used, if there are no other charges.
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PartitionKey;

    fn status(wait: Wait) -> Status {
        let policy = Policy::new("p", 5, Duration::from_secs(1)).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
        Status::new(&pair, 0, wait, Duration::ZERO, Duration::ZERO)
    }

    #[test]
    fn decision_wait_is_largest_of_pairs() {
        let seconds = |s| Wait::For(Duration::from_secs(s));
        let wait = |waits: &[Wait]| {
            Decision::new(0, waits.iter().copied().map(status).collect::<Vec<_>>()).retry_after()
        };
        assert_eq!(wait(&[seconds(1), seconds(7), Wait::ZERO]), seconds(7));
        assert_eq!(wait(&[Wait::Never, Wait::For(Duration::MAX)]), Wait::Never);
        assert_eq!(wait(&[Wait::ZERO, Wait::ZERO]), Wait::ZERO);
    }

    #[test]
    fn decision_is_admitted_if_every_pair_admits() {
        let decision = |waits: [Wait; 2]| Decision::new(0, waits.map(status));
        assert!(decision([Wait::ZERO, Wait::ZERO]).is_admitted());
        assert!(!decision([Wait::ZERO, Wait::For(Duration::from_micros(1))]).is_admitted());
        assert!(!decision([Wait::Never, Wait::ZERO]).is_admitted());
    }
}
