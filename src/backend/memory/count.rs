//! What the counts of all types of policies have in common.

use crate::{
    backend::generation::Generations,
    check::{PairRef, Receipt},
    policy::Policy,
};

/// The usage of one partition key under one policy. An empty one means the same as none.
pub(super) trait Count: Sized {
    const EMPTY: Self;

    /// The usage at one instant. Reading changes nothing.
    type Reading<'a>: UsageReading
    where
        Self: 'a;
    /// What a charge needs of a reading. The usage must not have changed since.
    type Instant: Copy;

    /// Reads the usage at `clock`, in microseconds. A record from another clock counts as empty.
    fn read(&self, clock: u64, policy: &Policy) -> Self::Reading<'_>;

    /// Reads the usage for a charge of [`Purpose::LeaseAhead`](crate::check::Purpose::LeaseAhead).
    fn read_ahead(&self, clock: u64, policy: &Policy) -> Self::Reading<'_> {
        self.read(clock, policy)
    }

    /// Returns what a charge needs of a reading.
    fn instant(reading: &Self::Reading<'_>) -> Self::Instant;

    /// Charges a cost at the instant of a reading, and drops expired charges. If nothing is used, a generation begins.
    fn charge(&mut self, instant: Self::Instant, cost: u32);

    /// Returns the receipt of the last charge, which was made at this instant. None by default: no settlement changes such a charge.
    fn receipt(&mut self, _: Self::Instant, _: &Generations) -> Receipt {
        Receipt::NO_CHARGE
    }

    /// Refunds units of a charge, at most those that are recorded, if the charge still counts. Nothing by default.
    fn refund(&mut self, _clock: u64, _: &Policy, _: Receipt, _units: u32) {}

    /// Returns the instant from which on no charge counts.
    fn idle_at(&self, policy: &Policy) -> u64;

    /// Returns this count, whose last charge was of this policy, in two words. `None` if it needs more: always, if it has a generation.
    fn pack(&self, _: &Policy) -> Option<[u64; 2]> {
        None
    }

    /// Returns the count that was packed with this policy.
    fn unpack(_: [u64; 2], _: &Policy) -> Self {
        Self::EMPTY
    }
}

/// The usage at one instant.
pub(super) trait UsageReading {
    /// Returns the usage in quota units, rounded up.
    fn used(&self) -> u64;

    /// Returns whether no more than these units are used.
    #[inline]
    fn uses_at_most(&self, units: u64) -> bool {
        self.used() <= units
    }

    /// Returns whether one more charge can be recorded. True by default.
    #[inline]
    fn has_room(&self) -> bool {
        true
    }

    /// Returns the first instant at which no more than these units are used, or `u64::MAX` if it is not known.
    fn falls_to(&self, units: u64) -> u64;

    /// Returns the usage after a charge of these units now, under this quota.
    fn forecast(&self, units: u64, quota: u64) -> Forecast;

    /// Returns whether the pair's cost fits into its quota.
    #[inline]
    fn admits(&self, pair: PairRef<'_>) -> bool {
        let free = pair.policy.quota_units().checked_sub(pair.cost);
        pair.cost == 0 || free.is_some_and(|free| self.uses_at_most(u64::from(free)))
    }
}

/// The usage after a charge, and what follows if there is no other charge. If the usage is 0, the instants are meaningless, except `next` of a
/// calendar period.
pub(super) struct Forecast {
    /// In quota units, rounded up.
    pub(super) used: u64,
    /// When one unit more remains of the quota.
    pub(super) next: u64,
    /// When the usage is 0.
    pub(super) reset: u64,
}

/// Returns the instant of a pair whose last charge was at `last`: it never goes back, so it stays at `last` until the clock has
/// caught up. Returns None if `last` is more than a window ahead: the record is from another clock.
#[inline]
pub(super) fn monotonic_instant(clock: u64, last: u64, window: u64) -> Option<u64> {
    (last <= clock + window).then(|| clock.max(last))
}
