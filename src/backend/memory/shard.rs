//! The shards of the partition keys, each under one lock. Each check removes the idle keys of one group.

use std::sync::MutexGuard;

use super::{
    any_count::{AnyCount, AnyReading, PackedCount, Single},
    due::DueGroups,
    key_map::{KeyMap, Keyed},
    partition::{KeySlot, PairCount, Partition, ShortKey},
    terms::TermTable,
};
use crate::{
    backend::generation::Generations,
    check::{Check, Namespace, Pair, PairRef, Purpose, Receipt},
    key::PartitionKey,
    lock::Lock,
    per_thread::Apart,
    policy::Policy,
};

/// The number of shards, each with its own lock.
pub(super) const SHARDS: usize = 64;

/// The number of slots in a row that are inspected together. With more, the removal of a key costs more inspections. With fewer, the
/// heap takes more bytes for each key.
const GROUP: usize = 16;

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct KeyShard {
    /// A map with indices, so that a random key is found without a search.
    pub(super) slots: KeyMap<KeySlot>,
    terms: TermTable,
    /// The instant of the next inspection of every group of slots: at the latest when one of its keys is idle. The inspection updates
    /// this instant, so that a charge need not.
    due: DueGroups,
}

impl KeyShard {
    /// Decides a check of a pair whose partition key has this index. Returns `None` if the pair is not stored, and `Some(None)` if its
    /// record is full.
    #[inline]
    pub(super) fn decide(
        &mut self,
        key: usize,
        namespace: &Namespace,
        check: &mut Single<'_>,
    ) -> Option<Option<()>> {
        let policy = check.pair.policy;
        let (term, words) = match self.slots.get_mut(key)? {
            KeySlot::Small { term, words, .. } => (self.terms.get(*term), words),
            KeySlot::Large { large, .. } => {
                return Some(large.partition.count_mut(namespace, policy)?.decide(check));
            }
        };
        if !term.is_of(namespace, policy) {
            return None;
        }
        let Some(packed) = AnyCount::decide_packed(Some((*words, term)), check) else { return Some(None) };
        if check.changes() {
            match packed {
                PackedCount::Words { words: charged, is_shadow }
                    if is_shadow == term.is_shadow && *policy == term.policy =>
                {
                    *words = charged;
                }
                packed => self.replace(key, namespace, policy, packed),
            }
        }
        Some(Some(()))
    }

    /// Stores the count of a pair that is not stored. The partition key has this index, or none if it is new.
    pub(super) fn insert(
        &mut self,
        index: Option<usize>,
        key: &PartitionKey,
        namespace: &Namespace,
        policy: &Policy,
        count: PackedCount,
    ) {
        if let Some(partition) = index.and_then(|index| self.partition_mut(index)) {
            // The next inspection is not later than before, so it is in time for the other counts, and updates the instant.
            partition.push(PairCount::new(namespace, policy, count));
            return;
        }
        let (key, long_key) = ShortKey::new(key);
        let slot = self.slot(key, long_key, namespace, policy, count);
        let due = slot.idle_at(&self.terms);
        let index = self.slots.len();
        self.slots.push(slot);
        if index.is_multiple_of(GROUP) { self.due.push(due) } else { self.due.lower(index / GROUP, due) }
    }

    /// Replaces the packed count of the partition key with this index.
    #[cold]
    fn replace(&mut self, index: usize, namespace: &Namespace, policy: &Policy, count: PackedCount) {
        let Some(KeySlot::Small { key, term, .. }) = self.slots.get(index) else { return };
        let (key, term) = (*key, *term);
        self.terms.release(term);
        let slot = self.slot(key, None, namespace, policy, count);
        // Its new rate may return the units earlier.
        self.due.lower(index / GROUP, slot.idle_at(&self.terms));
        if let Some(replaced) = self.slots.get_mut(index) {
            *replaced = slot;
        }
    }

    /// Returns the slot of a key and a count.
    fn slot(
        &mut self,
        key: ShortKey,
        long_key: Option<Box<[u8]>>,
        namespace: &Namespace,
        policy: &Policy,
        count: PackedCount,
    ) -> KeySlot {
        if let PackedCount::Words { words, is_shadow } = count
            && long_key.is_none()
            && let Some(term) = self.terms.acquire(namespace, policy, is_shadow)
        {
            return KeySlot::Small { key, term, words };
        }
        KeySlot::large(key, long_key, PairCount::new(namespace, policy, count))
    }

    /// Returns the counts of the partition key with this index, none of which is packed any longer.
    fn partition_mut(&mut self, index: usize) -> Option<&mut Partition> {
        let slot = self.slots.get_mut(index)?;
        if let KeySlot::Small { key, term, words } = *slot {
            let stated = self.terms.get(term);
            let (namespace, policy) = (stated.namespace.clone(), stated.policy.clone());
            *slot = KeySlot::large(
                key,
                None,
                PairCount { namespace, policy, count: AnyCount::of_term(words, stated) },
            );
            self.terms.release(term);
        }
        match slot {
            KeySlot::Large { large, .. } => Some(&mut large.partition),
            KeySlot::Small { .. } => None,
        }
    }

    /// Returns a count that is not packed, if it is stored.
    #[inline]
    pub(super) fn large_count_mut(
        &mut self,
        index: usize,
        namespace: &Namespace,
        policy: &Policy,
    ) -> Option<&mut PairCount> {
        match self.slots.get_mut(index)? {
            KeySlot::Large { large, .. } => large.partition.count_mut(namespace, policy),
            KeySlot::Small { .. } => None,
        }
    }

    /// Returns the count of a pair, if it is stored.
    pub(super) fn count(
        &self,
        index: usize,
        namespace: &Namespace,
        policy: &Policy,
    ) -> Option<StoredCount<'_>> {
        match self.slots.get(index)? {
            KeySlot::Large { large, .. } => {
                Some(StoredCount::Large(&large.partition.count(namespace, policy)?.count))
            }
            KeySlot::Small { term, words, .. } => {
                let term = self.terms.get(*term);
                term.is_of(namespace, policy).then(|| StoredCount::Unpacked(AnyCount::of_term(*words, term)))
            }
        }
    }

    /// Charges a pair, and stores it if it is new. Returns the receipt, if the purpose has receipts.
    pub(super) fn charge(
        &mut self,
        key: &PartitionKey,
        namespace: &Namespace,
        purpose: Purpose,
        pair: PairRef<'_>,
        clock: u64,
        generations: &Generations,
    ) -> Receipt {
        let index = self.slots.seek(key);
        if let Some(count) = index.and_then(|index| self.large_count_mut(index, namespace, pair.policy)) {
            return count.charge(pair, clock, purpose, generations);
        }
        let packed = match index.and_then(|index| self.count(index, namespace, pair.policy)) {
            Some(StoredCount::Unpacked(count)) => Some(count),
            _ => None,
        };
        let is_packed = packed.is_some();
        let mut count = packed.unwrap_or_else(|| AnyCount::new(pair.policy, pair.is_shadow));
        count.note_charge(pair.is_shadow);
        let receipt = count.charge(clock, pair, purpose, generations);
        let count = count.packed(pair.policy);
        match index {
            Some(index) if is_packed => self.replace(index, namespace, pair.policy, count),
            index => self.insert(index, key, namespace, pair.policy, count),
        }
        receipt
    }

    /// Removes the usage of a pair, if it is stored. The partition key with this index may be idle then.
    pub(super) fn reset(&mut self, index: usize, namespace: &Namespace, policy: &Policy) {
        match self.slots.get_mut(index) {
            Some(KeySlot::Large { large, .. }) => large.partition.remove(namespace, policy),
            Some(KeySlot::Small { term, .. }) if self.terms.get(*term).is_of(namespace, policy) => {
                self.replace(index, namespace, policy, AnyCount::new(policy, true).packed(policy));
            }
            _ => {}
        }
    }

    /// Returns whether a partition key is stored.
    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.slots.index_of(key).is_some()
    }

    /// Inspects up to `max` groups that are due, and removes the partition keys that are idle at `now`. Returns how many were removed.
    #[inline]
    pub(super) fn remove_idle(&mut self, now: u64, max: usize) -> usize {
        if self.first_due() > now { 0 } else { self.remove_due(now, max) }
    }

    #[cold]
    fn remove_due(&mut self, now: u64, max: usize) -> usize {
        let stored = self.slots.len();
        for _ in 0..max {
            let Some((_, group)) = self.due.first().filter(|(due, _)| *due <= now) else { break };
            self.inspect_group(group, now);
        }
        if self.slots.capacity() > 1_024 && self.slots.len() < self.slots.capacity() / 8 {
            let kept = self.slots.len() * 2;
            self.slots.shrink_to(kept);
            self.due.shrink_to(kept.div_ceil(GROUP));
        }
        stored - self.slots.len()
    }

    /// Removes the partition keys of a group that are idle at `now`, at most as many as a group has, and notes when the next one is idle.
    fn inspect_group(&mut self, group: usize, now: u64) {
        let (mut index, end, mut due) = (group * GROUP, (group + 1) * GROUP, u64::MAX);
        for _ in 0..2 * GROUP {
            match self.drop_idle(index, now) {
                Some(idle_at) if index < end && idle_at > now => (index, due) = (index + 1, due.min(idle_at)),
                // The last key receives the index.
                Some(_) if index < end => self.remove(index),
                _ => break,
            }
        }
        // Otherwise, keys of the last group were moved, and the next inspection continues.
        if index == self.slots.len().min(end) {
            self.due.set(group, due);
        }
    }

    /// Removes a partition key if it is idle at `now`, and otherwise its policies that are. Returns whether the key was removed.
    pub(super) fn remove_if_idle(&mut self, key: &PartitionKey, now: u64) -> bool {
        let Some(index) = self.slots.index_of(key) else { return false };
        let idle_at = self.drop_idle(index, now).unwrap_or(u64::MAX);
        if idle_at > now {
            // A refund may have made it idle earlier.
            self.due.lower(index / GROUP, idle_at);
            return false;
        }
        self.remove(index);
        true
    }

    /// Removes the policies of the partition key with this index that are idle at `now`. Returns when the others are idle, and 0 if there
    /// are none. `None` if there is no such key.
    fn drop_idle(&mut self, index: usize, now: u64) -> Option<u64> {
        let slot = self.slots.get_mut(index)?;
        if let KeySlot::Large { large, .. } = slot {
            // An idle policy must not stay because another policy of the same key is in use.
            large.partition.retain(|count| count.idle_at() > now);
        }
        Some(slot.idle_at(&self.terms))
    }

    /// Removes the partition key with this index. The last one receives its index.
    fn remove(&mut self, index: usize) {
        if let Some(KeySlot::Small { term, .. }) = self.slots.swap_remove(index) {
            self.terms.release(term);
        }
        if let Some(moved) = self.slots.get(index) {
            self.due.lower(index / GROUP, moved.idle_at(&self.terms));
        }
        if self.slots.len().is_multiple_of(GROUP) {
            self.due.swap_remove(self.slots.len() / GROUP);
        }
    }

    /// Returns the earliest instant at which a partition key is due, or `u64::MAX` if there is none.
    #[inline]
    pub(super) fn first_due(&self) -> u64 {
        self.due.first().map_or(u64::MAX, |(due, _)| due)
    }

    /// Returns up to `max` partition keys, each with its largest share of a quota in use at `now`. If there are more keys, chooses
    /// them by `random`, which returns a number below its argument; one key may then be chosen twice.
    pub(super) fn sample(
        &self,
        max: usize,
        now: u64,
        mut random: impl FnMut(usize) -> usize,
    ) -> impl Iterator<Item = (PartitionKey, f64)> {
        let stored = self.slots.len();
        let indices = (0..stored.min(max)).map(move |i| if stored > max { random(stored) } else { i });
        let slots = indices.filter_map(|index| self.slots.get(index));
        slots.map(move |slot| (PartitionKey::from_bytes(slot.key()), slot.share(&self.terms, now)))
    }

    /// Evicts a partition key if its largest share of a quota in use is below `max_share`. Returns the units that it had in use,
    /// over all its policies, or `None` if it stays.
    pub(super) fn evict(&mut self, key: &PartitionKey, now: u64, max_share: f64) -> Option<u64> {
        let index = self.slots.index_of(key)?;
        let slot = self.slots.get(index)?;
        if slot.share(&self.terms, now) >= max_share {
            return None;
        }
        let (units, group) = (slot.used(&self.terms, now), index / GROUP);
        self.remove(index);
        // Otherwise, a new key at the bound would search all shards for a key that is no longer stored.
        let left = (group * GROUP..(group + 1) * GROUP).map_while(|index| self.slots.get(index));
        if let Some(due) = left.map(|slot| slot.idle_at(&self.terms)).min() {
            self.due.set(group, due);
        }
        Some(units)
    }
}

/// A count that is stored.
pub(super) enum StoredCount<'a> {
    Large(&'a AnyCount),
    Unpacked(AnyCount),
}

impl StoredCount<'_> {
    /// Reads the usage of a pair at `clock`.
    pub(super) fn read<'a>(&'a self, pair: PairRef<'a>, purpose: Purpose, clock: u64) -> PairReading<'a> {
        let count = match self {
            Self::Large(count) => *count,
            Self::Unpacked(count) => count,
        };
        let reading = match purpose {
            Purpose::LeaseAhead => count.read_ahead(clock, pair.policy),
            _ => count.read(clock, pair.policy),
        };
        PairReading { pair, fits: purpose.exceeds_quota() || reading.admits(pair), reading }
    }
}

/// The locked shards of the pairs of a check. They are locked in ascending order, so that no two callers deadlock.
pub(super) struct LockedShards<'a> {
    /// Each shard once, with its index, in ascending order.
    guards: Vec<(usize, MutexGuard<'a, KeyShard>)>,
    /// The partition keys of the pairs, as they are stored.
    keys: Vec<PartitionKey>,
}

/// A pair of a check, with its usage at the instant of the check.
pub(super) struct PairReading<'a> {
    pub(super) pair: PairRef<'a>,
    pub(super) reading: AnyReading<'a>,
    /// Whether the cost fits into the quota, or is charged even if it does not.
    pub(super) fits: bool,
}

impl<'a> LockedShards<'a> {
    /// Locks the shards of these keys.
    pub(super) fn new<'k>(
        shards: &'a [Apart<Lock<KeyShard>>; SHARDS],
        keys: impl Iterator<Item = &'k PartitionKey>,
    ) -> Self {
        let keys: Vec<PartitionKey> = keys.map(|key| key.bounded().into_owned()).collect();
        let mut indices: Vec<usize> = keys.iter().map(shard_of).collect();
        indices.sort_unstable();
        indices.dedup();
        let guards = indices.into_iter().map(|index| (index, shards[index].lock())).collect();
        Self { guards, keys }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut KeyShard> {
        self.guards.iter_mut().map(|(_, shard)| &mut **shard)
    }

    /// Returns the position of the guard of a pair.
    fn position(&self, pair: usize) -> usize {
        let shard = shard_of(&self.keys[pair]);
        self.guards.partition_point(|(index, _)| *index < shard)
    }

    fn shard(&self, pair: usize) -> &KeyShard {
        &self.guards[self.position(pair)].1
    }

    pub(super) fn shard_mut(&mut self, pair: usize) -> (&mut KeyShard, &PartitionKey) {
        let position = self.position(pair);
        (&mut self.guards[position].1, &self.keys[pair])
    }

    /// Returns the counts of the pairs of a check.
    pub(super) fn counts<'c>(&'c self, check: &Check) -> Vec<StoredCount<'c>> {
        let count = |(i, pair): (usize, &Pair)| {
            let shard = self.shard(i);
            let index = shard.slots.index_of(&self.keys[i]);
            let stored = index.and_then(|index| shard.count(index, check.scope(), &pair.policy));
            stored.unwrap_or_else(|| StoredCount::Unpacked(AnyCount::new(&pair.policy, true)))
        };
        check.pairs().iter().enumerate().map(count).collect()
    }

    /// Returns the reservation of the largest number of units that fit, and of one unit if none fits. `None` unless the check takes units.
    pub(super) fn take(&self, check: &Check, clock: u64) -> Option<Check> {
        let Purpose::TakeUpTo(wanted) = check.purpose() else { return None };
        let fitting = |PairReading { pair, reading, .. }: &PairReading<'_>| {
            let free = u64::from(pair.policy.quota_units()).saturating_sub(reading.used());
            free.checked_div(u64::from(pair.cost)).filter(|_| !pair.is_shadow)
        };
        let units = read(&self.counts(check), check, clock).iter().filter_map(fitting).min();
        // At most the quota.
        Some(check.times(check.max_units(wanted).min(units.map_or(wanted, |units| units.max(1) as u32))))
    }

    /// Returns the overage that leaves at most the cost of the only pair. `None` unless this is the purpose of the check.
    pub(super) fn leave_at_most(&self, check: &Check, clock: u64) -> Option<Check> {
        let Purpose::LeaveAtMost { .. } = check.purpose() else { return None };
        let counts = self.counts(check);
        let PairReading { pair, reading, .. } = read(&counts, check, clock).pop()?;
        let free = u64::from(pair.policy.quota_units()).saturating_sub(reading.used()) as u32;
        Some(check.clone().costing(free.saturating_sub(pair.cost)).with_purpose(Purpose::Overage))
    }

    /// Returns whether the partition key of a shadow pair is not stored, and no enforcing pair of the check stores it.
    pub(super) fn is_new_shadow(&self, pair: usize, check: &Check) -> bool {
        let is_stored_by = |(i, other): (usize, &Pair)| {
            let is_charged = !other.is_shadow && other.borrowed().is_chargeable(check.purpose());
            is_charged && self.keys[i] == self.keys[pair]
        };
        !self.shard(pair).contains(&self.keys[pair]) && !check.pairs().iter().enumerate().any(is_stored_by)
    }

    /// Returns how many of the charged partition keys are not stored yet, and the index of the shard of the first one.
    pub(super) fn new_keys(&self, charged: &[bool]) -> (usize, usize) {
        let is_charged = |i: &usize| charged[*i];
        let is_new = |i: &usize| {
            !self.shard(*i).contains(&self.keys[*i])
                && (0..*i).filter(is_charged).all(|other| self.keys[other] != self.keys[*i])
        };
        let mut new = (0..charged.len()).filter(is_charged).filter(is_new);
        let first = new.next();
        let shard = first.map_or(0, |first| shard_of(&self.keys[first]));
        (usize::from(first.is_some()) + new.count(), shard)
    }
}

/// Reads the usage of the pairs of a check.
pub(super) fn read<'c>(counts: &'c [StoredCount<'_>], check: &'c Check, clock: u64) -> Vec<PairReading<'c>> {
    let pairs = check.pairs().iter().map(Pair::borrowed);
    pairs.zip(counts).map(|(pair, count)| count.read(pair, check.purpose(), clock)).collect()
}

/// Returns the index of the shard of a key. The map of the shard uses other bits of the hash.
#[inline]
pub(super) fn shard_of(key: &PartitionKey) -> usize {
    (key.hash_code() >> 40) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Otherwise, every new key at the bound would search all shards for a key that is no longer stored.
    #[test]
    fn eviction_updates_first_due() {
        let (mut shard, generations) = (KeyShard::default(), Generations::new());
        let check = |value, seconds| {
            let policy = Policy::new("p", 10, Duration::from_secs(seconds)).unwrap();
            Check::new([Pair::new(PartitionKey::new("user", value), policy, 1)]).unwrap()
        };
        for check in [check("a", 1), check("b", 60)] {
            let [pair] = check.pairs() else { panic!("one pair") };
            shard.charge(&pair.key, check.scope(), Purpose::Charge, pair.borrowed(), 1_000_000, &generations);
        }
        for (value, first_due, next_due) in [("a", 2_000_000, 61_000_000), ("b", 61_000_000, u64::MAX)] {
            assert_eq!(shard.first_due(), first_due);
            assert_eq!(shard.evict(&PartitionKey::new("user", value), 1_000_000, 0.5), Some(1));
            assert_eq!(shard.first_due(), next_due);
        }
    }
}
