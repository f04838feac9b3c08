//! Checks, and the changes of a charge: what a limiter sends to a backend.

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{
    error::ConfigError,
    key::PartitionKey,
    policy::{Policy, Properties},
};

mod invalidation;
mod namespace;
mod pairs;
mod releases;

pub(crate) use invalidation::Invalidation;
pub(crate) use namespace::{KnownDenials, Namespace, NamespaceNumber, PairKey, ReleaseSignal};
pub(crate) use releases::{ReleaseListener, ReleasedPairs};

pub use crate::policy::policies::MAX_PAIRS;

/// One request against one or more pairs of a partition key and a policy, with one cost for each.
///
/// A check is admitted as a whole or not at all. [Shadow pairs](Pair::shadow) do not take part in the verdict: an admitted check
/// charges those that have room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    namespace: Namespace,
    pub(crate) purpose: Purpose,
    pub(crate) deadline: Option<Instant>,
    pairs: Pairs,
    pub(crate) hints: Hints,
}

/// The pairs of a check. One pair needs no memory of the heap.
type Pairs = SmallVec<[Pair; 1]>;

/// What does not change the decision of a check: what a backend may need to know if it cannot decide it in one call, and whether the
/// decision counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints {
    /// Whether a denied request may wait. Then [`Limiter::wait`](crate::Limiter::wait) counts the denial.
    pub(crate) may_wait: bool,
    /// Whether the request is admitted if the backend makes no decision. Then the charges of a part of the check do no harm.
    pub(crate) fails_open: bool,
    /// For each pair, whether the store has denied it a moment ago. `None` if this is not known.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a cluster has several slots"))]
    pub(crate) recently_denied: Option<[bool; MAX_PAIRS]>,
}

impl Default for Hints {
    fn default() -> Self {
        Self { may_wait: false, fails_open: false, recently_denied: Some([false; MAX_PAIRS]) }
    }
}

/// The purpose of a check. A backend that does not [change charges](crate::backend::Backend::changes_charges) receives
/// only plain charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Charges, if every enforcing pair admits.
    #[default]
    Charge,
    /// Charges, if every enforcing pair admits, and returns a [`Receipt`] for every pair.
    Reserve,
    /// Returns the decision of a charge, and charges nothing.
    Peek,
    /// Charges even if a pair does not admit, because the client has already used the units. The statuses are those after the
    /// charge, with a wait of zero. After the deadline, it charges nothing. For a [gate](crate::Policy::gate), the cost is how long it
    /// blocks, in units of 10 ms. A policy [in flight](crate::Policy::in_flight) is not charged.
    Overage,
    /// Charges as [`Reserve`](Self::Reserve) does, and charges [`Pair::lease`] more units of each pair, or as many of them as fit. Too
    /// little room for these units never denies the check. All pairs have sliding buckets and the same partition key, and none is a
    /// shadow pair. Only a backend that [grants leases](crate::backend::Backend::grants_leases) receives this purpose. It answers with
    /// [`Decision::with_leases`](crate::Decision::with_leases).
    Lease,
    /// Charges as [`Reserve`](Self::Reserve) does, into the next bucket: the units of [sliding
    /// buckets](crate::Algorithm::SlidingBuckets) with a precision of at most half the window count until one window after its end. Until
    /// that bucket begins, all charges of these pairs count with it. Any other pair is charged as for `Reserve`. Only a backend that
    /// [grants leases](crate::backend::Backend::grants_leases) receives this purpose from a limiter, for one pair.
    LeaseAhead,
    /// Charges the costs times the largest number of units that every enforcing pair admits, at most this number, and otherwise as
    /// [`Reserve`](Self::Reserve) does. The statuses are those of pairs with the costs that were charged: [`Status::cost`] states how
    /// many units there are. If not even one fits, the check is denied, with the statuses of one unit. All keys must be in one slot.
    ///
    /// The number is at most [`Check::max_units`].
    ///
    /// [`Status::cost`]: crate::Status::cost
    TakeUpTo(u32),
    /// Charges as [`Overage`](Self::Overage) does, and returns a [`Receipt`] for every pair.
    Debit,
    /// Charges as many units as leave at most the cost of the pair: what an API has answered that remains. The status has the cost
    /// that was charged.
    ///
    /// It charges nothing unless the answer is newer than every answer that the store knows of this pair, and still applies: unless
    /// `at_micros <= now < at_micros + min(holds_micros, window)`. A store knows an answer for one window. So several processes may
    /// send one answer, and the store charges it once.
    ///
    /// The check has one pair, which is no shadow, and whose policy is neither a gate nor in flight. Otherwise,
    /// [`Check::with_purpose`] makes it a [`Peek`](Self::Peek). [`Purpose::leave_at_most`] creates it.
    #[non_exhaustive]
    LeaveAtMost {
        /// The instant of the answer: that of the decision that has admitted its request, in microseconds of the clock of the backend.
        at_micros: u64,
        /// How long the answer applies, in microseconds.
        holds_micros: u64,
    },
}

impl Purpose {
    /// Creates the purpose [`LeaveAtMost`](Self::LeaveAtMost) of an answer of this instant that applies for this time, both in microseconds.
    pub const fn leave_at_most(at_micros: u64, holds_micros: u64) -> Self {
        Self::LeaveAtMost { at_micros, holds_micros }
    }

    /// Returns whether it charges beyond the quota.
    pub(crate) fn exceeds_quota(self) -> bool {
        matches!(self, Self::Overage | Self::Debit | Self::LeaveAtMost { .. })
    }

    /// Returns whether it is the check of a request, which the metrics and the counters count.
    pub(crate) fn is_counted(self) -> bool {
        !matches!(self, Self::Peek | Self::Debit | Self::LeaseAhead | Self::LeaveAtMost { .. })
    }

    /// Returns whether an admission has receipts.
    pub(crate) fn has_receipts(self) -> bool {
        matches!(self, Self::Reserve | Self::Debit | Self::LeaseAhead)
    }
}

/// The place of a charge, in the terms of the backend that has made it.
///
/// A receipt identifies one charge of one pair as long as that charge counts. A pair with cost 0, and a
/// [shadow pair](Pair::shadow) that was not charged, have no charge: all fields of their receipts are 0. A
/// [debit](crate::Limiter::debit) that reaches the largest usage of a token bucket has a charge that receives no refund: only the
/// generation of its receipt is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Receipt {
    /// The generation of the pair's record: a random number of 56 bits, 0 to 2^56-1. A record that was lost, reset, or empty
    /// in between has another generation. So a refund never reaches a charge of another record.
    pub generation: u64,
    /// The instant at which the charge is recorded, in microseconds. For sliding buckets, it is the end of the bucket, and
    /// for the other algorithms the instant of the decision.
    pub at_micros: u64,
    /// Its place among the charges of this instant, from 0.
    pub ordinal: u32,
}

impl Receipt {
    /// Creates the receipt of a charge, for the [`Backend`](crate::backend::Backend) that has made it: the generation of its record, 0 to
    /// 2^56-1; the instant at which it is recorded, in microseconds; and its place among the charges of this instant, from 0.
    pub const fn new(generation: u64, at_micros: u64, ordinal: u32) -> Self {
        Self { generation, at_micros, ordinal }
    }

    /// The receipt of a pair without a charge.
    pub(crate) const NO_CHARGE: Self = Self { generation: 0, at_micros: 0, ordinal: 0 };

    /// Returns the receipt of a charge that no refund changes. No pair has its generation.
    pub(crate) const fn without_refund(at_micros: u64) -> Self {
        Self { generation: 0, at_micros, ordinal: 0 }
    }
}

/// A refund: units that are returned to the place of their charge. For every pair, at most the charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refund {
    namespace: Namespace,
    deadline: Option<Instant>,
    pairs: SmallVec<[RefundPair; 1]>,
}

/// The refund of one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefundPair {
    /// The partition key.
    pub key: PartitionKey,
    /// The policy.
    pub policy: Policy,
    /// The charge.
    pub receipt: Receipt,
    /// The units to return, in quota units, 1 to the charge.
    pub units: u32,
}

/// A partition key and a policy, with the cost of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pair {
    /// The partition key.
    pub key: PartitionKey,
    /// The policy.
    pub policy: Policy,
    /// The cost in quota units, 0 to 2^32-1. A cost of 0 admits and records nothing.
    pub cost: u32,
    /// Whether the pair is a [shadow](Pair::shadow), and does not take part in the verdict.
    pub is_shadow: bool,
    /// The units to charge in advance, for [`Purpose::Lease`]: 0 to 2^32-1 quota units beyond the cost. 0 for any other purpose.
    pub lease: u32,
}

/// A pair whose key and policy are borrowed.
#[derive(Clone, Copy)]
pub(crate) struct PairRef<'a> {
    pub(crate) key: &'a PartitionKey,
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u32,
    pub(crate) is_shadow: bool,
}

impl PairRef<'_> {
    /// Returns whether an admitted check of this purpose charges the pair. If the policy has no quota, only an overage does. If it is in
    /// flight, nothing beyond the quota does.
    #[inline]
    pub(crate) fn is_chargeable(&self, purpose: Purpose) -> bool {
        let Properties { has_quota, is_held, .. } = *self.policy.properties();
        self.cost > 0 && (has_quota || purpose == Purpose::Overage) && !(is_held && purpose.exceeds_quota())
    }
}

impl Pair {
    /// Creates a pair with its cost in quota units. The pair of a [shadow policy](Policy::shadow) is a shadow pair.
    #[inline]
    pub fn new(key: PartitionKey, policy: Policy, cost: u32) -> Self {
        let is_shadow = policy.is_shadow();
        Self { key, policy, cost, is_shadow, lease: 0 }
    }

    /// Returns this pair as a shadow pair, which does not take part in the verdict of its check:
    ///
    /// - An admitted check charges the pair, if the cost fits. If it does not fit, the pair is not charged, and its status has the
    ///   wait.
    /// - A check that an enforcing pair denies charges nothing, and no shadow pair either.
    /// - A check of shadow pairs only is always admitted.
    ///
    /// Shadow pairs and enforcing pairs of the same key and policy share their usage. The
    /// [guide](crate::guide::rollout) describes how to use them.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { is_shadow: true, ..self }
    }

    /// Returns this pair without a copy of its key and without another count of its policy.
    #[inline]
    pub(crate) fn borrowed(&self) -> PairRef<'_> {
        let Self { key, policy, cost, is_shadow, .. } = self;
        PairRef { key, policy, cost: *cost, is_shadow: *is_shadow }
    }

    /// Returns whether an admitted reservation has charged nothing that a settlement changes: a shadow pair whose cost did not fit, or a
    /// pair of a policy without a quota or in flight.
    pub(crate) fn is_uncharged(&self, receipt: &Receipt) -> bool {
        let is_shadow = self.is_shadow && self.cost > 0 && *receipt == Receipt::NO_CHARGE;
        is_shadow || !self.policy.properties().is_settled()
    }

    /// Returns the refund of units of a charge of this pair.
    pub(crate) fn refund(&self, receipt: Receipt, units: u32) -> RefundPair {
        RefundPair { key: self.key.clone(), policy: self.policy.clone(), receipt, units }
    }

    /// Returns this pair, as a shadow pair if `is_shadow`.
    #[inline]
    pub(crate) fn shadow_if(mut self, is_shadow: bool) -> Self {
        self.is_shadow |= is_shadow;
        self
    }
}

impl Check {
    /// Creates a check in the default namespace, for a [`Backend`](crate::backend::Backend) that is called directly.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Pairs`] unless there are 1 to [`MAX_PAIRS`] pairs, and [`ConfigError::DuplicatePair`] if two
    /// of them have the same partition key and the same policy name.
    pub fn new(pairs: impl Into<Box<[Pair]>>) -> Result<Self, ConfigError> {
        let pairs = pairs.into();
        if !(1..=MAX_PAIRS).contains(&pairs.len()) {
            return Err(ConfigError::Pairs { given: pairs.len(), max: MAX_PAIRS });
        }
        for (i, pair) in pairs.iter().enumerate() {
            let same = |other: &Pair| other.key == pair.key && other.policy.name() == pair.policy.name();
            if pairs[..i].iter().any(same) {
                return Err(ConfigError::DuplicatePair { policy: pair.policy.name().to_owned() });
            }
        }
        Ok(Self::from_valid_pairs(Namespace::default(), pairs.into_vec().into()))
    }

    /// Returns the same check with another purpose. With pairs that cannot have an [answer](Purpose::LeaveAtMost), it is a peek.
    #[must_use]
    pub fn with_purpose(self, purpose: Purpose) -> Self {
        let counts = |pair: &Pair| !pair.is_shadow && pair.policy.properties().is_settled();
        match (purpose, &self.pairs[..]) {
            (Purpose::LeaveAtMost { .. }, [pair]) if counts(pair) => Self { purpose, ..self },
            (Purpose::LeaveAtMost { .. }, _) => Self { purpose: Purpose::Peek, ..self },
            _ => Self { purpose, ..self },
        }
    }

    /// Returns the same check as a lease request for these units, one number for each pair.
    pub(crate) fn leasing(mut self, units: impl Iterator<Item = u32>) -> Self {
        for (pair, units) in self.pairs.iter_mut().zip(units) {
            pair.lease = units;
        }
        self.with_purpose(Purpose::Lease)
    }

    /// Returns the same check with a deadline. If the deadline is exceeded, a backend must not charge the check, and returns
    /// [`Reason::DeadlineExceeded`](crate::backend::Reason::DeadlineExceeded), if it can. A limiter sets the deadline of every
    /// check that it waits for.
    #[must_use]
    pub fn with_deadline(self, deadline: impl Into<Option<Instant>>) -> Self {
        Self { deadline: deadline.into(), ..self }
    }

    /// Creates a check of 1 to [`MAX_PAIRS`] different pairs, which were validated when the limiter was built. No backend receives
    /// the check of an exempt request, which has no pair.
    #[inline]
    pub(crate) fn from_valid_pairs(namespace: Namespace, pairs: Pairs) -> Self {
        debug_assert!(pairs.len() <= MAX_PAIRS);
        let (purpose, hints) = (Purpose::default(), Hints::default());
        Self { namespace, purpose, deadline: None, pairs, hints }
    }

    /// Returns whether the pairs have different partition keys.
    pub(crate) fn has_several_keys(&self) -> bool {
        self.pairs.windows(2).any(|pairs| matches!(pairs, [a, b] if a.key != b.key))
    }

    /// Returns whether the check has shadow pairs only. Such a check is always admitted.
    pub(crate) fn is_shadow(&self) -> bool {
        self.pairs.iter().all(|pair| pair.is_shadow)
    }

    /// Returns whether no wait helps: an enforcing pair costs more than its quota.
    pub(crate) fn is_never_admitted(&self) -> bool {
        self.pairs.iter().any(|pair| !pair.is_shadow && pair.cost > pair.policy.quota_units())
    }

    /// Returns the same check with the pairs whose policies have these properties. `None` if there are none.
    pub(crate) fn of_policies(&self, of: impl Fn(&Properties) -> bool) -> Option<Self> {
        let pairs: Pairs = self.pairs.iter().filter(|pair| of(pair.policy.properties())).cloned().collect();
        (!pairs.is_empty()).then(|| self.with_pairs(pairs))
    }

    /// Returns the overage of these units for each pair. No pair is a shadow.
    pub(crate) fn charging_overage(mut self, units: u32) -> Self {
        self.pairs.iter_mut().for_each(|pair| pair.is_shadow = false);
        Self { purpose: Purpose::Overage, ..self.costing(units) }
    }

    /// Returns the same check with this cost of each pair.
    pub(crate) fn costing(mut self, units: u32) -> Self {
        self.pairs.iter_mut().for_each(|pair| pair.cost = units);
        self
    }

    /// Lowers each cost above the quota of its policy to the quota. Equal costs are one amount, so an enforcing pair lowers those of the
    /// others, too: a client must not reserve more of a quota that it shares than its own quota permits. Units in flight are no amount that
    /// is settled.
    pub(crate) fn clamp(&mut self) {
        let quota = |pair: &Pair| pair.policy.quota_units();
        if self.pairs.iter().all(|pair| pair.cost <= quota(pair)) {
            return;
        }
        let pairs = self.pairs.clone();
        for pair in &mut self.pairs {
            let is_held = |pair: &Pair| pair.policy.properties().is_held;
            let is_same = |other: &&Pair| {
                other.cost == pair.cost && !other.is_shadow && !is_held(other) && !is_held(pair)
            };
            let same = pairs.iter().filter(is_same);
            pair.cost = same.map(quota).fold(pair.cost.min(quota(pair)), u32::min);
        }
    }

    /// Returns the largest number of units, at most `wanted`, whose costs are in their range: at most 2^32-1, and for an enforcing pair
    /// at most the quota. Returns 1 if one unit exceeds it, so that the check is denied. For [`Purpose::TakeUpTo`].
    pub fn max_units(&self, wanted: u32) -> u32 {
        let limit = |pair: &Pair| if pair.is_shadow { u32::MAX } else { pair.policy.quota_units() };
        let fitting = self.pairs.iter().filter_map(|pair| limit(pair).checked_div(pair.cost));
        wanted.min(fitting.min().unwrap_or(wanted).max(1))
    }

    /// Returns the reservation of these units: the costs are those of this check times the units.
    #[must_use]
    pub fn times(&self, units: u32) -> Self {
        let mut check = self.clone().with_purpose(Purpose::Reserve);
        for pair in &mut check.pairs {
            pair.cost = pair.cost.saturating_mul(units);
        }
        check
    }

    /// Returns the same check with other pairs.
    pub(crate) fn with_pairs(&self, pairs: Pairs) -> Self {
        Self { namespace: self.namespace.clone(), pairs, ..*self }
    }

    pub(crate) fn in_namespace(self, namespace: Namespace) -> Self {
        Self { namespace, ..self }
    }

    /// Returns the pairs, 1 to [`MAX_PAIRS`], all different.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Returns the deadline of the decision, or `None` if there is no deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the namespace, which a backend includes in the keys of its store.
    pub fn namespace(&self) -> &str {
        self.namespace.as_str()
    }

    /// Returns the namespace with the identity of its store.
    pub(crate) fn scope(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns a check of the pairs with these indices.
    #[cfg(feature = "redis")]
    pub(crate) fn part(&self, pairs: &[usize], purpose: Purpose) -> Self {
        let pairs = pairs.iter().filter_map(|i| self.pairs.get(*i)).cloned();
        self.with_pairs(pairs.collect()).with_purpose(purpose)
    }

    /// Returns the charge of the units that were used beyond the cost of an admitted check, or `None` if there are none.
    ///
    /// A shadow pair that was not charged has no overage: for such a pair, pass its cost as the amount used.
    pub fn overage(&self, used: &[u32]) -> Option<Self> {
        // A gate counts no units, and an overage would block it. Held units stay as they are.
        let counts = |pair: &Pair| pair.policy.properties().is_settled();
        let pairs = self.pairs.iter().zip(used).filter(|(pair, used)| **used > pair.cost && counts(pair));
        let pairs: Pairs =
            pairs.map(|(pair, used)| Pair { cost: used - pair.cost, ..pair.clone() }).collect();
        (!pairs.is_empty()).then(|| Self {
            purpose: Purpose::Overage,
            deadline: None,
            ..self.with_pairs(pairs)
        })
    }
}

impl Refund {
    /// Returns the refund of an admitted [`Purpose::Reserve`] check of which each pair has used this many quota units, or `None`
    /// if there is nothing to refund. A shadow pair that was not charged receives none.
    pub fn new(check: &Check, receipts: &[Receipt], used: &[u32]) -> Option<Self> {
        let pairs = check.pairs.iter().zip(receipts).zip(used);
        let has_refund = |((pair, receipt), used): &((&Pair, &Receipt), &u32)| {
            **used < pair.cost && !pair.is_uncharged(receipt)
        };
        let refunds =
            pairs.filter(has_refund).map(|((pair, receipt), used)| pair.refund(*receipt, pair.cost - used));
        let refund = Self::from_pairs(check.namespace.clone(), refunds);
        (!refund.pairs.is_empty()).then_some(refund)
    }

    /// Returns the same refund with a deadline. If the deadline is exceeded, a backend must not apply the refund, and returns
    /// [`Reason::DeadlineExceeded`](crate::backend::Reason::DeadlineExceeded), if it can. A limiter sets the deadline of every refund.
    #[must_use]
    pub fn with_deadline(self, deadline: impl Into<Option<Instant>>) -> Self {
        Self { deadline: deadline.into(), ..self }
    }

    /// Returns the deadline, or `None` if there is no deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the pairs that receive a refund, at least one.
    pub fn pairs(&self) -> &[RefundPair] {
        &self.pairs
    }

    /// Returns the namespace of the check.
    pub fn namespace(&self) -> &str {
        self.namespace.as_str()
    }

    /// Returns the namespace with the identity of its store.
    pub(crate) fn scope(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the refund of these pairs of one namespace.
    pub(crate) fn from_pairs(namespace: Namespace, pairs: impl IntoIterator<Item = RefundPair>) -> Self {
        Self { namespace, deadline: None, pairs: pairs.into_iter().collect() }
    }

    /// Returns the refund of the pairs with these indices.
    #[cfg(feature = "redis")]
    pub(crate) fn part(&self, pairs: &[usize]) -> Self {
        let pairs = pairs.iter().filter_map(|i| self.pairs.get(*i)).cloned().collect();
        Self { namespace: self.namespace.clone(), deadline: self.deadline, pairs }
    }
}

/// Hints do not change what is checked.
impl PartialEq for Hints {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Hints {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn check_contains_one_to_eight_different_pairs() {
        let key = |value: &str| PartitionKey::new("user", value);
        let policy = |name: &str| Policy::new(name, 1, Duration::from_secs(1)).unwrap();
        let pair = |value: &str, name: &str| Pair::new(key(value), policy(name), 1);
        let text = |pairs: Vec<Pair>| Check::new(pairs).unwrap_err().to_string();

        assert_eq!(
            text(vec![]),
            "check of 0 pairs: it must have 1 to 8 pairs of a partition key and a policy"
        );
        let nine: Vec<_> = (0..9).map(|i| pair(&i.to_string(), "p")).collect();
        assert_eq!(
            text(nine.clone()),
            "check of 9 pairs: it must have 1 to 8 pairs of a partition key and a policy"
        );
        assert_eq!(Check::new(&nine[..8]).unwrap().pairs().len(), 8);
        assert_eq!(
            text(vec![pair("a", "p"), pair("b", "p"), pair("a", "p")]),
            r#"policy "p" occurs twice for one partition key: the pairs of a check must differ"#
        );
    }
}
