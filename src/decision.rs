//! What was decided: the one vocabulary that crosses all floors.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    check::{Pair, Receipt},
    policy::Policy,
};

/// How long to wait.
///
/// Ordered: any time is less than [`Never`](Wait::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// This long, to the microsecond; zero if there is nothing to wait for.
    For(Duration),
    /// No wait helps: the cost is above the quota.
    Never,
}

impl Wait {
    /// Nothing to wait for.
    pub const ZERO: Self = Self::For(Duration::ZERO);

    /// Whether there is nothing to wait for.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// The answer to one check: admitted or denied, with a status for every pair.
///
/// A check is admitted if every pair admits; then all pairs were charged, at one instant. If one pair does not
/// admit, nothing was charged and nothing was written. A store that cannot answer is no decision: it is a
/// [`BackendError`](crate::BackendError).
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

/// Where a decision comes from.
#[derive(PartialEq, Eq)]
enum Origin {
    /// A backend, at one instant of one clock.
    Backend,
    /// A backend, at several instants of several clocks.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a cluster divides"))]
    Divided,
    /// What was known without asking, of a check of these policies.
    Cache(Box<[Policy]>),
}

/// What a decision tells of one pair.
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
    /// A decision taken at the instant `at_micros`, in microseconds of the backend's clock, from the statuses of all
    /// pairs in the order of the check. It is admitted if no status has to wait.
    pub fn new(at_micros: u64, statuses: impl Into<Box<[Status]>>) -> Self {
        Self::with_receipts(at_micros, statuses, [])
    }

    /// The same of a check whose purpose was [`Purpose::Reserve`](crate::Purpose::Reserve): with a receipt for every
    /// pair if it was admitted, and none if not.
    pub fn with_receipts(
        at_micros: u64,
        statuses: impl Into<Box<[Status]>>,
        receipts: impl Into<Box<[Receipt]>>,
    ) -> Self {
        Self::of(Origin::Backend, at_micros, statuses.into(), receipts.into())
    }

    /// The same of a check that was divided among several clocks.
    #[cfg(feature = "redis")]
    pub(crate) fn divided(at_micros: u64, statuses: Vec<Status>, receipts: Vec<Receipt>) -> Self {
        Self::of(Origin::Divided, at_micros, statuses.into(), receipts.into())
    }

    /// A denial that is known without asking, of a check of these policies: the statuses of the pairs that are known to deny.
    pub(crate) fn cached(at_micros: u64, statuses: Box<[Status]>, policies: Box<[Policy]>) -> Self {
        Self::of(Origin::Cache(policies), at_micros, statuses, [].into())
    }

    fn of(origin: Origin, at_micros: u64, statuses: Box<[Status]>, receipts: Box<[Receipt]>) -> Self {
        Self(Arc::new(Inner { at_micros, statuses, receipts, origin }))
    }

    /// Whether the request may go on, and was charged.
    pub fn is_admitted(&self) -> bool {
        self.retry_after().is_zero()
    }

    /// When the same check would be admitted if nobody else charges: the largest wait of all pairs, for all must
    /// admit. Zero if this one was admitted.
    pub fn retry_after(&self) -> Wait {
        let waits = self.0.statuses.iter().map(|status| status.retry_after);
        waits.max().unwrap_or(Wait::ZERO)
    }

    /// The status of every pair, in the order of the check; of a [cached](Self::is_cached) denial, of those pairs only that are
    /// known to deny.
    pub fn statuses(&self) -> &[Status] {
        &self.0.statuses
    }

    /// The policies that did not admit.
    pub fn violated(&self) -> impl Iterator<Item = &Policy> {
        let refusing = self.0.statuses.iter().filter(|status| !status.retry_after.is_zero());
        refusing.map(|status| &status.policy)
    }

    /// Where the charges of an admitted reservation stand, in the order of the check; empty for any other check.
    pub fn receipts(&self) -> &[Receipt] {
        &self.0.receipts
    }

    /// When this was decided, in microseconds of the backend's clock: Redis' own time, or for the memory backend
    /// Unix time at start plus a monotonic clock. Of a [cached](Self::is_cached) denial, when what it repeats was decided, the
    /// newest of it.
    pub fn at_micros(&self) -> u64 {
        self.0.at_micros
    }

    /// Whether this is a denial that was known without asking the backend; see [`DenyCache`](crate::DenyCache) for what it
    /// tells. An admission never is.
    pub fn is_cached(&self) -> bool {
        matches!(self.0.origin, Origin::Cache(_))
    }

    /// Whether it was decided at several instants of several clocks.
    pub(crate) fn is_divided(&self) -> bool {
        matches!(self.0.origin, Origin::Divided)
    }

    /// The policies of the check, in its order, whatever is known of their pairs.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        let (listed, told): (&[Policy], &[Status]) = match &self.0.origin {
            Origin::Cache(policies) => (policies, &[]),
            Origin::Backend | Origin::Divided => (&[], &self.0.statuses),
        };
        listed.iter().chain(told.iter().map(|status| &status.policy))
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
    /// The status of a pair after the decision. What the fields mean is told by the methods of the same names.
    pub fn new(
        pair: &Pair,
        remaining: u32,
        retry_after: Wait,
        next_after: Duration,
        reset_after: Duration,
    ) -> Self {
        Self { policy: pair.policy.clone(), cost: pair.cost, remaining, retry_after, next_after, reset_after }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the request was to take, in quota units.
    pub fn cost(&self) -> u32 {
        self.cost
    }

    /// The policy's quota, in quota units.
    pub fn limit(&self) -> u32 {
        self.policy.quota()
    }

    /// What is left of the quota after the decision, in quota units; 0 if more than the quota is used.
    pub fn remaining(&self) -> u32 {
        self.remaining
    }

    /// The smallest wait after which this pair admits the same cost if nobody else charges; zero if it admits now.
    /// For a cost above one this is not when the oldest charge leaves, but when enough units have left.
    pub fn retry_after(&self) -> Wait {
        self.retry_after
    }

    /// The smallest wait after which less is used than now, or the window if nothing is used. Until then, no more
    /// than [`remaining`](Self::remaining) can be used.
    pub fn next_after(&self) -> Duration {
        self.next_after
    }

    /// The smallest wait after which nothing is used if nobody charges.
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
    fn the_wait_of_a_decision_is_the_largest_of_its_pairs() {
        let seconds = |s| Wait::For(Duration::from_secs(s));
        let wait = |waits: &[Wait]| {
            Decision::new(0, waits.iter().copied().map(status).collect::<Vec<_>>()).retry_after()
        };
        assert_eq!(wait(&[seconds(1), seconds(7), Wait::ZERO]), seconds(7));
        assert_eq!(wait(&[Wait::Never, Wait::For(Duration::MAX)]), Wait::Never);
        assert_eq!(wait(&[Wait::ZERO, Wait::ZERO]), Wait::ZERO);
    }

    #[test]
    fn a_decision_is_admitted_if_every_pair_admits() {
        let decision = |waits: [Wait; 2]| Decision::new(0, waits.map(status));
        assert!(decision([Wait::ZERO, Wait::ZERO]).is_admitted());
        assert!(!decision([Wait::ZERO, Wait::For(Duration::from_micros(1))]).is_admitted());
        assert!(!decision([Wait::Never, Wait::ZERO]).is_admitted());
    }
}
