//! The count of one pair, of any type of policy.

use std::ops::Deref;

use super::{
    count::{Count, UsageReading},
    single::{Single, SingleDecision},
};
use crate::{
    backend::generation::Generations,
    check::Receipt,
    policy::{Algorithm, Policy, for_each_type},
};

macro_rules! define_any_count {
    ($($variant:ident $({ $($field:ident: $example:expr),* })? => $module:ident,)*) => {
        /// The usage of one partition key under one policy of any type, and whether only shadow pairs were charged: such usage
        /// does not protect the key from an eviction. An empty one means
        /// the same as none. The mark needs no memory of its own: it is beside the tag.
        pub(super) enum AnyCount {
            $($variant(super::$module::$variant, bool),)*
        }

        /// The usage at one instant.
        pub(super) enum AnyReading<'a> {
            $($variant(<super::$module::$variant as Count>::Reading<'a>),)*
        }

        impl AnyCount {
            /// Returns an empty count for a policy.
            #[inline]
            pub(super) fn new(policy: &Policy, is_shadow: bool) -> Self {
                match policy.algorithm() {
                    $(Algorithm::$variant { .. } => Self::$variant(Count::EMPTY, is_shadow),)*
                }
            }

            /// Returns a shared empty count for a policy.
            pub(super) fn empty(policy: &Policy) -> &'static Self {
                match policy.algorithm() {
                    $(Algorithm::$variant { .. } => {
                        static EMPTY: AnyCount = AnyCount::$variant(Count::EMPTY, true);
                        &EMPTY
                    })*
                }
            }

            /// Decides a check of one pair. Returns `None` if the record is full.
            #[inline]
            pub(super) fn decide(&mut self, check: &Single<'_>) -> Option<SingleDecision> {
                match self {
                    $(Self::$variant(count, _) => check.decide(count),)*
                }
            }

            /// Returns whether only shadow pairs were charged.
            pub(super) fn is_shadow(&self) -> bool {
                match self {
                    $(Self::$variant(_, is_shadow) => *is_shadow,)*
                }
            }

            /// Notes that a pair was charged.
            #[inline]
            pub(super) fn note_charge(&mut self, by_shadow: bool) {
                match self {
                    $(Self::$variant(_, is_shadow) => *is_shadow &= by_shadow,)*
                }
            }

            /// Reads the usage at `clock`, in microseconds.
            pub(super) fn read(&self, clock: u64, policy: &Policy) -> AnyReading<'_> {
                match self {
                    $(Self::$variant(count, _) => AnyReading::$variant(count.read(clock, policy)),)*
                }
            }

            /// Charges a cost at `clock`. Returns the receipt.
            pub(super) fn charge(
                &mut self,
                clock: u64,
                policy: &Policy,
                cost: u32,
                generations: &Generations,
            ) -> Receipt {
                match self {
                    $(Self::$variant(count, _) => count.charge_at(clock, policy, cost, generations),)*
                }
            }

            /// Refunds units of a charge, if the charge still counts.
            pub(super) fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
                match self {
                    $(Self::$variant(count, _) => count.refund(clock, policy, receipt, units),)*
                }
            }

            /// Returns the instant from which on no charge counts.
            pub(super) fn idle_at(&self, policy: &Policy) -> u64 {
                match self {
                    $(Self::$variant(count, _) => count.idle_at(policy),)*
                }
            }
        }

        impl<'a> Deref for AnyReading<'a> {
            type Target = dyn UsageReading + 'a;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$variant(reading) => reading,)*
                }
            }
        }
    };
}
for_each_type!(define_any_count);
