//! The count of one pair, of any type of policy, and the decision of a check of this pair alone.

use std::{ops::Deref, time::Duration};

use super::{
    count::{Count, UsageReading},
    terms::Term,
};
use crate::{
    backend::generation::Generations,
    check::{PairRef, Purpose, Receipt},
    decision::{Decision, Status, Wait},
    policy::{Algorithm, Policy, for_each_type},
};

macro_rules! define_any_count {
    ($($(#[$attribute:meta])* $variant:ident $({ $($field:ident: $example:expr),* })? => $module:ident,)*) => {
        /// The usage of one partition key under one policy of any type, and whether only shadow pairs were charged: such usage
        /// does not protect the key from an eviction. An empty one means the same as none.
        pub(super) enum AnyCount {
            $($(#[$attribute])* $variant(super::$module::$variant, bool),)*
        }

        /// The usage at one instant.
        pub(super) enum AnyReading<'a> {
            $($(#[$attribute])* $variant(<super::$module::$variant as Count>::Reading<'a>),)*
        }

        impl AnyCount {
            /// Returns an empty count for a policy.
            #[inline]
            pub(super) fn new(policy: &Policy, is_shadow: bool) -> Self {
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => Self::$variant(Count::EMPTY, is_shadow),)*
                }
            }

            /// Returns a shared empty count for a policy.
            pub(super) fn empty(policy: &Policy) -> &'static Self {
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => {
                        static EMPTY: AnyCount = AnyCount::$variant(Count::EMPTY, true);
                        &EMPTY
                    })*
                }
            }

            /// Returns the count that was packed with this term.
            #[inline]
            pub(super) fn of_term(words: [u64; 2], term: &Term) -> Self {
                Self::unpack(words, &term.policy, term.is_shadow)
            }

            #[inline]
            fn unpack(words: [u64; 2], policy: &Policy, is_shadow: bool) -> Self {
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => Self::$variant(Count::unpack(words, policy), is_shadow),)*
                }
            }

            /// Packs this count, whose last charge was of this policy, if two words are enough.
            pub(super) fn packed(self, policy: &Policy) -> PackedCount {
                let words = match &self {
                    $($(#[$attribute])* Self::$variant(count, _) => count.pack(policy),)*
                };
                let is_shadow = self.is_shadow();
                words.map_or(PackedCount::Count(self), |words| PackedCount::Words { words, is_shadow })
            }

            /// Decides a check of one pair, which is not stored or packed. Returns `None` if the record is full.
            #[inline]
            pub(super) fn decide_packed(
                stored: Option<([u64; 2], &Term)>,
                check: &Single<'_>,
            ) -> Option<(SingleDecision, PackedCount)> {
                let PairRef { policy, is_shadow, .. } = check.pair;
                // The charge of an enforcing pair clears the mark.
                let is_shadow = is_shadow && stored.is_none_or(|(_, term)| term.is_shadow);
                match policy.algorithm() {
                    $($(#[$attribute])* Algorithm::$variant { .. } => {
                        let mut count = match stored {
                            Some((words, term)) => super::$module::$variant::unpack(words, &term.policy),
                            None => Count::EMPTY,
                        };
                        let decision = check.decide(&mut count)?;
                        let packed = match count.pack(policy) {
                            Some(words) => PackedCount::Words { words, is_shadow },
                            None => PackedCount::Count(Self::$variant(count, is_shadow)),
                        };
                        Some((decision, packed))
                    })*
                }
            }

            /// Decides a check of one pair. Returns `None` if the record is full.
            #[inline]
            pub(super) fn decide(&mut self, check: &Single<'_>) -> Option<SingleDecision> {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => check.decide(count),)*
                }
            }

            /// Returns whether only shadow pairs were charged.
            pub(super) fn is_shadow(&self) -> bool {
                match self {
                    $($(#[$attribute])* Self::$variant(_, is_shadow) => *is_shadow,)*
                }
            }

            /// Notes that a pair was charged.
            #[inline]
            pub(super) fn note_charge(&mut self, by_shadow: bool) {
                match self {
                    $($(#[$attribute])* Self::$variant(_, is_shadow) => *is_shadow &= by_shadow,)*
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

            /// Charges a pair at `clock`. Returns the receipt, if the purpose has receipts.
            pub(super) fn charge(
                &mut self,
                clock: u64,
                PairRef { policy, cost, .. }: PairRef<'_>,
                purpose: Purpose,
                generations: &Generations,
            ) -> Receipt {
                match self {
                    $($(#[$attribute])* Self::$variant(count, _) => {
                        let instant = <super::$module::$variant as Count>::instant(&match purpose {
                            Purpose::LeaseAhead => count.read_ahead(clock, policy),
                            _ => count.read(clock, policy),
                        });
                        count.charge(instant, cost);
                        if purpose.has_receipts() { count.receipt(instant, generations) } else { Receipt::NO_CHARGE }
                    })*
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
                match self {
                    $($(#[$attribute])* Self::$variant(reading) => status(reading, pair, clock, admits, charged),)*
                }
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

/// A count, in two words if they are enough, with its mark.
pub(super) enum PackedCount {
    Words { words: [u64; 2], is_shadow: bool },
    Count(AnyCount),
}

impl PackedCount {
    /// Returns the count, whose last charge was of this policy.
    pub(super) fn unpacked(self, policy: &Policy) -> AnyCount {
        match self {
            Self::Words { words, is_shadow } => AnyCount::unpack(words, policy, is_shadow),
            Self::Count(count) => count,
        }
    }
}

/// A check of one pair at one instant.
pub(super) struct Single<'a> {
    pub(super) pair: PairRef<'a>,
    pub(super) purpose: Purpose,
    pub(super) clock: u64,
    pub(super) generations: &'a Generations,
}

/// The decision of a check of one pair.
pub(super) struct SingleDecision {
    pub(super) decision: Decision,
    /// Whether the check charges the pair, or would charge it if it were no peek.
    pub(super) is_charged: bool,
}

impl Single<'_> {
    /// Decides the check, and charges the count. Returns `None` if the record is full.
    #[inline]
    pub(super) fn decide<C: Count>(&self, count: &mut C) -> Option<SingleDecision> {
        let Self { pair, purpose, clock, generations } = *self;
        let reading = count.read(clock, pair.policy);
        let admits = purpose.exceeds_quota() || reading.admits(pair);
        let is_charged = admits && pair.is_chargeable(purpose);
        if is_charged && !reading.has_room() {
            return None;
        }
        let (status, instant) = (status(&reading, pair, clock, admits, is_charged), C::instant(&reading));
        drop(reading);
        if is_charged && purpose != Purpose::Peek {
            count.charge(instant, pair.cost);
        }
        let decision = if purpose.has_receipts() && (admits || pair.is_shadow) {
            let receipt = if is_charged { count.receipt(instant, generations) } else { Receipt::NO_CHARGE };
            Decision::with_receipts(clock, [status], [receipt])
        } else {
            Decision::from_status(clock, status)
        };
        Some(SingleDecision { decision, is_charged })
    }
}

/// Returns the pair's status, with or without its charge. If it `admits`, it has no wait.
#[inline(always)]
fn status(reading: &impl UsageReading, pair: PairRef<'_>, clock: u64, admits: bool, charged: bool) -> Status {
    // From the clock as read, so that a wait includes the time until the clock has caught up with the pair.
    let wait_until = |at: u64| Duration::from_micros(at.saturating_sub(clock));
    let retry_after = if admits {
        Wait::ZERO
    } else {
        let free = pair.policy.quota_units().checked_sub(pair.cost).map(u64::from);
        match free.map(|free| reading.falls_to(free)) {
            None => Wait::Never,
            Some(u64::MAX) => Wait::Unknown,
            Some(at) => Wait::For(wait_until(at)),
        }
    };
    let quota = u64::from(pair.policy.quota_units());
    let after = reading.forecast(if charged { u64::from(pair.cost) } else { 0 }, quota);
    let remaining = quota.saturating_sub(after.used) as u32;
    let (next, reset) = match after.used {
        0 => (pair.policy.next_of_unused().unwrap_or_else(|| wait_until(after.next)), Duration::ZERO),
        _ => (wait_until(after.next), wait_until(after.reset)),
    };
    Status::from_parts(pair, remaining, retry_after, next, reset)
}
