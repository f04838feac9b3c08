//! The decision of a check of one pair, which is the usual check: no list, one lock, one search for the key.

use super::{
    count::{Count, Reading},
    shard::Shard,
    slot::Slot,
    state::{INSPECTIONS_PER_CHECK, State},
    usage::Usage,
};
use crate::{
    backend::generation::Generations,
    check::{Check, Pair, Purpose, Receipt},
    decision::Decision,
    key::PartitionKey,
};

/// A check of one pair at one instant.
struct Single<'a> {
    pair: &'a Pair,
    purpose: Purpose,
    clock: u64,
    generations: &'a Generations,
}

impl State {
    /// Decides a check of one pair. Returns `None` if there is no room for its record or its key. Then nothing was charged.
    #[inline]
    pub(super) fn decide_single(&self, check: &Check, pair: &Pair) -> Option<Decision> {
        let key = pair.key.bounded();
        let mut shard = self.shard_of(&key);
        // Read under the lock, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_idle(&mut shard, self.idle_since(clock), INSPECTIONS_PER_CHECK);
        let single = Single { pair, purpose: check.purpose(), clock, generations: &self.generations };
        match shard.slot(&key, check, &pair.policy) {
            Some(slot) => single.decide(slot).map(|(decision, _)| decision),
            None => self.decide_new(&mut shard, &key, check, &single),
        }
    }

    /// Decides the check of a pair that is not stored.
    fn decide_new(
        &self,
        shard: &mut Shard,
        key: &PartitionKey,
        check: &Check,
        single: &Single<'_>,
    ) -> Option<Decision> {
        let mut slot = Slot::new(check, single.pair);
        let (decision, needs_room) = single.decide(&mut slot)?;
        if needs_room {
            let new_keys = usize::from(!shard.contains(key));
            self.reserve(new_keys, single.purpose, &mut 0).ok()?;
            if single.purpose != Purpose::Peek {
                shard.insert(key, slot);
                self.note_due(shard);
            }
        }
        Some(decision)
    }
}

impl Single<'_> {
    /// Decides the check. Returns whether it charges the slot, or would charge it if it were no peek. Returns `None` if the record
    /// is full.
    #[inline]
    fn decide(&self, slot: &mut Slot) -> Option<(Decision, bool)> {
        let (decision, is_charged) = match &mut slot.usage {
            Usage::Log(log) => self.decide_by(log),
            Usage::Windows(windows) => self.decide_by(windows),
        }?;
        if is_charged && self.purpose != Purpose::Peek {
            slot.note_charge(self.pair);
        }
        Some((decision, is_charged))
    }

    #[inline]
    fn decide_by<C: Count>(&self, count: &mut C) -> Option<(Decision, bool)> {
        let Self { pair, purpose, clock, generations } = *self;
        let reading = count.read(clock, &pair.policy);
        let admits = purpose == Purpose::Overage || reading.admits(pair);
        let is_charged = admits && pair.cost > 0;
        if is_charged && !reading.has_room() {
            return None;
        }
        let (status, instant) = (reading.status(pair, admits, admits), C::instant(&reading));
        drop(reading);
        if is_charged && purpose != Purpose::Peek {
            count.charge(instant, &pair.policy, pair.cost, generations);
        }
        let decision = if purpose == Purpose::Reserve && (admits || pair.is_shadow) {
            let receipt = if is_charged { count.receipt(instant, &pair.policy) } else { Receipt::NO_CHARGE };
            Decision::with_receipts(clock, [status], [receipt])
        } else {
            Decision::of_one(clock, status)
        };
        Some((decision, is_charged))
    }
}
