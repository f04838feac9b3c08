//! The shards of the partition keys, each under one lock. Each check removes a few idle keys.

use std::sync::MutexGuard;

use super::{
    any_count::{AnyCount, AnyReading},
    due::DueKeys,
    key_map::KeyMap,
    partition::{PairCount, Partition},
};
use crate::{
    backend::generation::Generations,
    check::{Check, Namespace, Pair, PairRef, Purpose, Receipt},
    key::PartitionKey,
    lock::Lock,
    policy::Policy,
};

/// The number of shards, each with its own lock.
pub(super) const SHARDS: usize = 64;

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct KeyShard {
    /// A map with indices, so that a random key is found without a search.
    pub(super) partitions: KeyMap<Partition>,
    /// The instant of the next inspection of every partition: at the latest when it is idle. The inspection updates this instant,
    /// so that a charge need not.
    due: DueKeys,
}

impl KeyShard {
    /// Returns the count of a pair whose partition key has this index, if the count is stored.
    #[inline]
    pub(super) fn count_mut(
        &mut self,
        key: usize,
        namespace: &Namespace,
        policy: &Policy,
    ) -> Option<&mut PairCount> {
        self.partitions.value_mut(key)?.count_mut(namespace, policy)
    }

    /// Stores the count of a pair that is not stored. The partition key has this index, or none if it is new.
    pub(super) fn insert(&mut self, index: Option<usize>, key: &PartitionKey, count: PairCount) {
        if let Some(partition) = index.and_then(|index| self.partitions.value_mut(index)) {
            // The next inspection is not later than before, so it is in time for the other counts, and updates the instant.
            partition.push(count);
            return;
        }
        let due = count.idle_at();
        self.partitions.push(key.clone(), Partition::One(count));
        self.due.push(due);
    }

    /// Charges a pair, and stores it if it is new.
    pub(super) fn charge(
        &mut self,
        key: &PartitionKey,
        check: &Check,
        pair: &Pair,
        clock: u64,
        generations: &Generations,
    ) -> Receipt {
        let (index, namespace, pair) = (self.partitions.seek(key), check.scope(), pair.borrowed());
        if let Some(count) = index.and_then(|index| self.count_mut(index, namespace, pair.policy)) {
            return count.charge(pair, clock, generations);
        }
        let mut count = PairCount::new(namespace, pair);
        let receipt = count.charge(pair, clock, generations);
        self.insert(index, key, count);
        receipt
    }

    /// Returns whether a partition key is stored.
    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.partitions.index_of(key).is_some()
    }

    /// Inspects up to `max` partition keys that are due, and removes those that are idle at `now`. Returns how many were removed.
    #[inline]
    pub(super) fn remove_idle(&mut self, now: u64, max: usize) -> usize {
        if self.first_due() > now { 0 } else { self.remove_due(now, max) }
    }

    #[cold]
    fn remove_due(&mut self, now: u64, max: usize) -> usize {
        let mut removed = 0;
        for _ in 0..max.min(self.partitions.len()) {
            let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now) else { break };
            removed += usize::from(self.inspect(key, now));
        }
        if self.partitions.capacity() > 1_024 && self.partitions.len() < self.partitions.capacity() / 8 {
            let kept = self.partitions.len() * 2;
            self.partitions.shrink_to(kept);
            self.due.shrink_to(kept);
        }
        removed
    }

    /// Removes the policies of a partition key that are idle at `now`, and the key if all are. Returns whether the key was removed.
    pub(super) fn remove_if_idle(&mut self, key: &PartitionKey, now: u64) -> bool {
        self.partitions.index_of(key).is_some_and(|key| self.inspect(key, now))
    }

    /// Removes the policies of the partition key with this index that are idle at `now`, and the key if all are. Otherwise, notes when
    /// it is idle. Returns whether the key was removed.
    fn inspect(&mut self, key: usize, now: u64) -> bool {
        let Some(partition) = self.partitions.value_mut(key) else { return false };
        // An idle policy must not stay because another policy of the same key is in use.
        partition.retain(|count| count.idle_at() > now);
        let idle_at = partition.idle_at();
        match idle_at {
            Some(idle_at) => self.due.set(key, idle_at),
            None => self.remove(key),
        }
        idle_at.is_none()
    }

    /// Removes the partition key with this index. The last one receives its index.
    fn remove(&mut self, key: usize) {
        self.partitions.swap_remove(key);
        self.due.swap_remove(key);
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
    ) -> impl Iterator<Item = (&PartitionKey, f64)> {
        let stored = self.partitions.len();
        let indices = (0..stored.min(max)).map(move |i| if stored > max { random(stored) } else { i });
        indices.filter_map(move |index| {
            let entry = self.partitions.get(index)?;
            Some((&entry.key, entry.value.share(now)))
        })
    }

    /// Evicts a partition key if its largest share of a quota in use is below `max_share`. Returns the units that it had in use,
    /// over all its policies, or `None` if it stays.
    pub(super) fn evict(&mut self, key: &PartitionKey, now: u64, max_share: f64) -> Option<u64> {
        let index = self.partitions.index_of(key)?;
        let partition = &self.partitions.get(index)?.value;
        if partition.share(now) >= max_share {
            return None;
        }
        let units = partition.used(now);
        self.remove(index);
        Some(units)
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
        shards: &'a [Lock<KeyShard>; SHARDS],
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

    /// Reads the usage of the pairs of a check.
    pub(super) fn read<'c>(&'c self, check: &'c Check, clock: u64) -> Vec<PairReading<'c>> {
        let read = |(i, pair): (usize, &'c Pair)| {
            let partition = self.shard(i).partitions.find(&self.keys[i]);
            let stored = partition.and_then(|partition| partition.count(check.scope(), &pair.policy));
            let count = stored.map_or_else(|| AnyCount::empty(&pair.policy), |stored| &stored.count);
            let (pair, reading) = (pair.borrowed(), count.read(clock, &pair.policy));
            PairReading { pair, fits: check.purpose().exceeds_quota() || reading.admits(pair), reading }
        };
        check.pairs().iter().enumerate().map(read).collect()
    }

    /// Returns the reservation of the largest number of units that fit, and of one unit if none fits. `None` unless the check takes units.
    pub(super) fn take(&self, check: &Check, clock: u64) -> Option<Check> {
        let Purpose::TakeUpTo(wanted) = check.purpose() else { return None };
        let fitting = |PairReading { pair, reading, .. }: &PairReading<'_>| {
            let free = u64::from(pair.policy.quota_units()).saturating_sub(reading.used());
            free.checked_div(u64::from(pair.cost)).filter(|_| !pair.is_shadow)
        };
        let units = self.read(check, clock).iter().filter_map(fitting).min();
        // At most the quota.
        Some(check.times(check.max_units(wanted).min(units.map_or(wanted, |units| units.max(1) as u32))))
    }

    /// Returns the overage that leaves at most the cost of the only pair. `None` unless this is the purpose of the check.
    pub(super) fn leave_at_most(&self, check: &Check, clock: u64) -> Option<Check> {
        let Purpose::LeaveAtMost { .. } = check.purpose() else { return None };
        let PairReading { pair, reading, .. } = self.read(check, clock).pop()?;
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
            shard.charge(&pair.key, &check, pair, 1_000_000, &generations);
        }
        for (value, first_due, next_due) in [("a", 2_000_000, 61_000_000), ("b", 61_000_000, u64::MAX)] {
            assert_eq!(shard.first_due(), first_due);
            assert_eq!(shard.evict(&PartitionKey::new("user", value), 1_000_000, 0.5), Some(1));
            assert_eq!(shard.first_due(), next_due);
        }
    }
}
