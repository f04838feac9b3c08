//! The decision of a check of one stored pair, which is the usual check: no list, one lock, one search for the key.

use super::state::{INSPECTIONS_PER_CHECK, State};
use crate::{
    check::{Check, Pair, Purpose, Receipt},
    decision::Decision,
};

impl State {
    /// Decides a check of one pair that is stored already. Returns `None` if the pair is not stored, or if its record is full. Then
    /// nothing was charged.
    #[inline]
    pub(super) fn decide_stored(&self, check: &Check, pair: &Pair) -> Option<Decision> {
        let (key, purpose) = (pair.key.bounded(), check.purpose());
        let mut shard = self.shard_of(&key);
        // Read under the lock, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_idle(&mut shard, self.idle_since(clock), INSPECTIONS_PER_CHECK);
        let slot = shard.slot(&key, check, &pair.policy)?;

        let reading = slot.read(clock, &pair.policy);
        let admits = purpose == Purpose::Overage || reading.admits(pair);
        let is_charged = admits && pair.cost > 0;
        if is_charged && !reading.has_room() {
            return None;
        }
        let (status, instant) = (reading.status(pair, admits, admits), reading.instant());
        if is_charged && purpose != Purpose::Peek {
            slot.charge_at(instant, pair, &self.generations);
        }
        Some(if purpose == Purpose::Reserve && (admits || pair.is_shadow) {
            let receipt = if is_charged { slot.receipt(instant, pair) } else { Receipt::NO_CHARGE };
            Decision::with_receipts(clock, [status], [receipt])
        } else {
            Decision::of_one(clock, status)
        })
    }
}
