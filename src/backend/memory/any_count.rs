//! The count of one pair, of any type of policy, and the decision of a check of this pair alone.

use std::ops::Deref;

use super::{
    count::{Count, UsageReading},
    terms::{SmallestQuota, Term},
};
use crate::{
    backend::generation::Generations,
    check::{PairRef, Purpose, Receipt},
    decision::{Decision, Standing, Status, WaitMicros},
    policy::{Algorithm, Policy, for_each_type},
};

macro_rules! define_any_count {
    ($($(#[$attribute:meta])* $variant:ident $({ $($field:ident: $example:expr),* })? => $module:ident,)*) => {
        /// The usage of one partition key under one policy of any type, with its [`SmallestQuota`]. An empty one means the same as none.
        pub(super) enum AnyCount {
            $($(#[$attribute])* $variant(super::$module::$variant, SmallestQuota),)*
        }

        /// The usage at one instant.
        pub(super) enum AnyReading<'a> {
            $($(#[$attribute])* $variant(<super::$module::$variant as Count>::Reading<'a>),)*
        }

        impl AnyCount {
            /// Returns a shared empty count for a policy.
            pub(super) fn empty(policy: &Policy) -> &'static Self {
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => {
                        static EMPTY: AnyCount = AnyCount::$variant(Count::EMPTY, SmallestQuota::NONE);
                        &EMPTY
                    })*
                }
            }

            /// Returns the count that was packed with this term.
            #[inline]
            pub(super) fn of_term(words: [u64; 2], term: &Term) -> Self {
                Self::unpack(words, &term.policy, term.smallest)
            }

            #[inline]
            fn unpack(words: [u64; 2], policy: &Policy, smallest: SmallestQuota) -> Self {
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => Self::$variant(Count::unpack(words, policy), smallest),)*
                }
            }

            /// Decides a check of one pair, which is not stored. Returns `None` if the record is full.
            pub(super) fn decide_new(check: &mut Single<'_>) -> Option<PackedCount> {
                let (policy, smallest) = (check.pair.policy, SmallestQuota::of(*check.pair));
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => {
                        let mut count = super::$module::$variant::EMPTY;
                        check.decide(&mut count)?;
                        Some(match count.pack(policy) {
                            Some(words) => PackedCount::Words { words, smallest },
                            None => PackedCount::Count(Self::$variant(count, smallest)),
                        })
                    })*
                }
            }

            /// Decides a check of one pair, which is packed with this term, and changes the words if the term stays the same.
            #[inline(always)]
            pub(super) fn decide_packed(words: &mut [u64; 2], term: &Term, check: &mut Single<'_>) -> PackedOutcome {
                match check.pair.policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => {
                        check.decide_packed::<super::$module::$variant>(words, term, Self::$variant)
                    })*
                }
            }

            /// Decides a check of one pair. Returns `None` if the record is full.
            #[inline(never)]
            pub(super) fn decide(&mut self, check: &mut Single<'_>) -> Option<()> {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => check.decide(count).map(drop),)*
                }
            }

            pub(super) fn smallest(&self) -> SmallestQuota {
                match self {
                    $($(#[$attribute])* Self::$variant(_, smallest) => *smallest,)*
                }
            }

            /// Notes that a check has charged its pair.
            #[inline]
            pub(super) fn note_charge(&mut self, check: &Single<'_>) {
                match self {
                    $($(#[$attribute])* Self::$variant(_, smallest) => *smallest = check.smallest_with(*smallest),)*
                }
            }

            /// Reads the usage at `clock`, in microseconds, for a charge of [`Purpose::LeaseAhead`].
            #[cold]
            pub(super) fn read_ahead(&self, clock: u64, policy: &Policy) -> AnyReading<'_> {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => AnyReading::$variant(count.read_ahead(clock, policy)),)*
                }
            }

            /// Reads the usage at `clock`, in microseconds.
            pub(super) fn read(&self, clock: u64, policy: &Policy) -> AnyReading<'_> {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => AnyReading::$variant(count.read(clock, policy)),)*
                }
            }

            /// Refunds units of a charge, if the charge still counts.
            pub(super) fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => count.refund(clock, policy, receipt, units),)*
                }
            }

            /// Returns the instant from which on no charge counts.
            pub(super) fn idle_at(&self, policy: &Policy) -> u64 {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => count.idle_at(policy),)*
                }
            }
        }

        impl AnyReading<'_> {
            /// Returns the pair's status, with or without its charge. If it `admits`, it has no wait.
            #[inline]
            pub(super) fn status(&self, pair: PairRef<'_>, clock: u64, admits: bool, charged: bool) -> Status {
                let units = if charged { pair.cost } else { 0 };
                let standing = match self {
                    $($(#[$attribute])* Self::$variant(reading) => standing(reading, pair, clock, admits, units),)*
                };
                Status::of_pair(pair, &standing)
            }
        }

        impl<'a> Deref for AnyReading<'a> {
            type Target = dyn UsageReading + 'a;

            fn deref(&self) -> &Self::Target {
                match self {
                    $($(#[$attribute])* Self::$variant(reading) => reading,)*
                }
            }
        }
    };
}
for_each_type!(define_any_count);

/// A count, in two words if they are enough, with its smallest quota.
pub(super) enum PackedCount {
    Words { words: [u64; 2], smallest: SmallestQuota },
    Count(AnyCount),
}

/// The outcome of a decision for a packed count. Its tag is a byte of its own, so that the usual outcome is found at once.
#[repr(u8)]
pub(super) enum PackedOutcome {
    /// The words are up to date: the count has not changed, or it has changed in place.
    Stays,
    /// The count has another term now, or needs more than two words.
    Replaced(PackedCount),
    /// Nothing was decided, because the record is full.
    Full,
}

impl PackedCount {
    /// Returns the count, whose last charge was of this policy.
    pub(super) fn unpacked(self, policy: &Policy) -> AnyCount {
        match self {
            Self::Words { words, smallest } => AnyCount::unpack(words, policy, smallest),
            Self::Count(count) => count,
        }
    }
}

/// A check of one pair at one instant, and its outcome once a count has decided it.
pub(super) struct Single<'a> {
    pub(super) pair: &'a PairRef<'a>,
    purpose: &'a Purpose,
    clock: u64,
    generations: &'a Generations,
    standing: Standing,
    /// Whether the check charges the pair, or would charge it if it were no peek.
    is_charged: bool,
    receipt: Option<Receipt>,
}

impl<'a> Single<'a> {
    #[inline]
    pub(super) fn new(
        pair: &'a PairRef<'a>,
        purpose: &'a Purpose,
        clock: u64,
        generations: &'a Generations,
    ) -> Self {
        let (standing, is_charged, receipt) = (Standing::default(), false, None);
        Self { pair, purpose, clock, generations, standing, is_charged, receipt }
    }

    /// Decides the check, and charges the count. Returns whether the count has changed, or `None` if the record is full.
    #[inline(always)]
    fn decide<C: Count>(&mut self, count: &mut C) -> Option<bool> {
        // The usual purpose has a copy of the code that does not test the purpose.
        match self.purpose {
            Purpose::Charge => self.decide_for(Purpose::Charge, count),
            other => self.decide_for(*other, count),
        }
    }

    /// Decides as [`decide`](Self::decide) does, for this purpose.
    #[inline(always)]
    fn decide_for<C: Count>(&mut self, purpose: Purpose, count: &mut C) -> Option<bool> {
        let Self { pair: &pair, clock, .. } = *self;
        let reading = match purpose {
            Purpose::LeaseAhead => count.read_ahead(clock, pair.policy),
            _ => count.read(clock, pair.policy),
        };
        let admits = purpose.exceeds_quota() || reading.admits(pair);
        let is_charged = admits && pair.is_chargeable(purpose);
        if is_charged && !reading.has_room() {
            return None;
        }
        self.is_charged = is_charged;
        let units = if is_charged { pair.cost } else { 0 };
        self.standing = standing(&reading, pair, clock, admits, units);
        let instant = C::instant(&reading);
        drop(reading);
        // As `changes`, which does not know a constant purpose.
        let changes = is_charged && purpose != Purpose::Peek;
        if changes {
            count.charge(instant, units);
        }
        if purpose.has_receipts() && (admits || pair.is_shadow) {
            let of_charge = is_charged.then(|| count.receipt(instant, self.generations));
            self.receipt = Some(of_charge.unwrap_or(Receipt::NO_CHARGE));
        }
        Some(changes)
    }

    /// Decides the check for a count that is packed with this term. One function for each type, so that each has few variables.
    #[inline(never)]
    fn decide_packed<C: Count>(
        &mut self,
        words: &mut [u64; 2],
        term: &Term,
        any_count: fn(C, SmallestQuota) -> AnyCount,
    ) -> PackedOutcome {
        let policy = self.pair.policy;
        let mut count = C::unpack(*words, &term.policy);
        match self.decide(&mut count) {
            None => return PackedOutcome::Full,
            Some(false) => return PackedOutcome::Stays,
            Some(true) => {}
        }
        let smallest = self.smallest_with(term.smallest);
        match count.pack(policy) {
            Some(charged) if term.is_for(policy, smallest) => {
                *words = charged;
                PackedOutcome::Stays
            }
            Some(words) => PackedOutcome::Replaced(PackedCount::Words { words, smallest }),
            None => PackedOutcome::Replaced(PackedCount::Count(any_count(count, smallest))),
        }
    }

    /// Returns the smallest quota of a usage after the charge of the check.
    #[inline]
    fn smallest_with(&self, before: SmallestQuota) -> SmallestQuota {
        let own = SmallestQuota::of(*self.pair);
        // Usually all charges are of one quota.
        if before == own { own } else { self.smallest_of(before, own) }
    }

    #[cold]
    fn smallest_of(&self, before: SmallestQuota, own: SmallestQuota) -> SmallestQuota {
        let charged = u64::from(self.standing.remaining) + u64::from(self.pair.cost);
        // Nothing was used before the charge. Beyond the quota, the remaining units do not show it.
        if charged == u64::from(self.pair.policy.quota_units()) && !self.purpose.exceeds_quota() {
            return own;
        }
        before.min(own)
    }

    /// Returns whether the check charges the pair, or would charge it if it were no peek.
    #[inline]
    pub(super) fn is_charged(&self) -> bool {
        self.is_charged
    }

    /// Returns whether the check changes the count.
    #[inline]
    pub(super) fn changes(&self) -> bool {
        self.is_charged && *self.purpose != Purpose::Peek
    }

    /// Returns the status of the pair, whose count has decided the check.
    #[inline]
    pub(super) fn status(&self) -> Status {
        Status::of_pair(*self.pair, &self.standing)
    }

    /// Returns the receipt, if the check is admitted and has receipts.
    #[inline]
    pub(super) fn receipt(&self) -> Option<Receipt> {
        self.receipt
    }

    /// Returns the decision of the check, which has no receipt.
    #[inline]
    pub(super) fn decision(&self) -> Decision {
        Decision::from_status(self.clock, self.status())
    }

    /// Returns the decision of the check with its receipt.
    #[cold]
    pub(super) fn decision_with(&self, receipt: Receipt) -> Decision {
        Decision::with_receipts(self.clock, [self.status()], [receipt])
    }
}

/// Returns how a pair stands after a charge of these units. If it `admits`, it has no wait.
#[inline(always)]
fn standing(
    reading: &impl UsageReading,
    pair: PairRef<'_>,
    clock: u64,
    admits: bool,
    units: u32,
) -> Standing {
    // From the clock as read, so that a wait includes the time until the clock has caught up with the pair.
    let wait_until = |at: u64| at.saturating_sub(clock);
    let retry_after = if admits {
        WaitMicros::ZERO
    } else {
        let free = pair.policy.quota_units().checked_sub(pair.cost).map(u64::from);
        match free.map(|free| reading.falls_to(free)) {
            None => WaitMicros::NEVER,
            Some(u64::MAX) => WaitMicros::UNKNOWN,
            Some(at) => WaitMicros::new(wait_until(at)),
        }
    };
    let quota = u64::from(pair.policy.quota_units());
    let after = reading.forecast(u64::from(units), quota);
    let remaining = quota.saturating_sub(after.used) as u32;
    let (next_after, reset_after) = match after.used {
        0 => (pair.policy.next_of_unused().unwrap_or_else(|| wait_until(after.next)), 0),
        _ => (wait_until(after.next), wait_until(after.reset)),
    };
    Standing { remaining, retry_after, next_after, reset_after }
}
