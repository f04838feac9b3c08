//! The decision of a check of one pair, which is the usual check: no list of pairs, and one reading.

use super::count::{Count, UsageReading};
use crate::{
    backend::generation::Generations,
    check::{PairRef, Purpose, Receipt},
    decision::Decision,
};

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
        let admits = purpose == Purpose::Overage || reading.admits(pair);
        let is_charged = admits && pair.cost > 0;
        if is_charged && !reading.has_room() {
            return None;
        }
        let (status, instant) = (reading.status(pair, admits, admits), C::instant(&reading));
        drop(reading);
        if is_charged && purpose != Purpose::Peek {
            count.charge(instant, pair.cost, generations);
        }
        let decision = if purpose == Purpose::Reserve && (admits || pair.is_shadow) {
            let receipt = if is_charged { count.receipt(instant) } else { Receipt::NO_CHARGE };
            Decision::with_receipts(clock, [status], [receipt])
        } else {
            Decision::of_one(clock, status)
        };
        Some(SingleDecision { decision, is_charged })
    }
}
