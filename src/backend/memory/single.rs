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
    check::{Namespace, PairRef, Purpose, Receipt},
    decision::Decision,
    key::PartitionKey,
};

/// A check of one pair at one instant.
struct Single<'a> {
    pair: PairRef<'a>,
    purpose: Purpose,
    clock: u64,
    generations: &'a Generations,
}

impl State {
    /// Decides a check of one pair. Returns `None` if there is no room for its record or its key. Then nothing was charged.
    #[inline]
    pub(super) fn decide_single(
        &self,
        namespace: &Namespace,
        pair: PairRef<'_>,
        purpose: Purpose,
    ) -> Option<Decision> {
        let key = pair.key.bounded();
        let mut shard = self.shard_of(&key);
        // Read under the lock, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_idle(&mut shard, self.idle_since(clock), INSPECTIONS_PER_CHECK);
        let single = Single { pair, purpose, clock, generations: &self.generations };
        let (index, mut new) = (shard.seek(&key), None);
        let stored = index.and_then(|index| shard.slot(index, namespace, pair.policy));
        let (decision, is_charged) =
            single.decide(stored.unwrap_or_else(|| new.insert(Slot::new(namespace, pair))))?;
        if is_charged && let Some(slot) = new {
            self.store(slot, &mut shard, index, &key, purpose)?;
        }
        Some(decision)
    }

    /// Stores the slot of a charged pair, unless it was charged by a peek. Its partition key has this index, or none if it is new.
    /// Returns `None` if there is no room for the key.
    fn store(
        &self,
        slot: Slot,
        shard: &mut Shard,
        index: Option<usize>,
        key: &PartitionKey,
        purpose: Purpose,
    ) -> Option<()> {
        self.reserve(usize::from(index.is_none()), purpose, &mut 0).ok()?;
        if purpose != Purpose::Peek {
            shard.insert(index, key, slot);
            self.note_due(shard);
        }
        Some(())
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
        let reading = count.read(clock, pair.policy);
        let admits = purpose == Purpose::Overage || reading.admits(pair);
        let is_charged = admits && pair.cost > 0;
        if is_charged && !reading.has_room() {
            return None;
        }
        let (status, instant) = (reading.status(pair, admits, admits), C::instant(&reading));
        drop(reading);
        if is_charged && purpose != Purpose::Peek {
            count.charge(instant, pair.policy, pair.cost, generations);
        }
        let decision = if purpose == Purpose::Reserve && (admits || pair.is_shadow) {
            let receipt = if is_charged { count.receipt(instant, pair.policy) } else { Receipt::NO_CHARGE };
            Decision::with_receipts(clock, [status], [receipt])
        } else {
            Decision::of_one(clock, status)
        };
        Some((decision, is_charged))
    }
}
