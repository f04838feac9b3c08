//! The shards of the partition keys, each under one lock. Each check removes the idle keys of one group of its shard.

use std::sync::MutexGuard;

use super::{
    any_count::{AnyCount, AnyReading, PackedCount, PackedOutcome, Single},
    due::DueGroups,
    key_map::{KeyMap, Keyed},
    partition::{KeySlot, PairCount, TermCount},
    terms::TermTable,
};
use crate::{
    check::{Check, Namespace, Pair, PairRef, Purpose},
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

/// Why a check of one pair was not decided. It has changed nothing.
pub(super) enum NotDecided {
    /// The pair is not stored.
    NotStored,
    /// There is no room for a record.
    RecordFull,
}

impl KeyShard {
    /// Decides a check of a stored pair. The partition key has this index, or none if it is not stored. Returns whether the key may be due
    /// earlier than before.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        key: Option<usize>,
        namespace: &Namespace,
        likely: usize,
        check: &mut Single<'_>,
    ) -> Result<bool, NotDecided> {
        let policy = check.pair.policy;
        let key = key.ok_or(NotDecided::NotStored)?;
        let slot = self.slots.get_mut(key).ok_or(NotDecided::NotStored)?;
        if let KeySlot::Large { large, .. } = slot {
            let count = large.partition.count_mut(namespace, policy, likely).ok_or(NotDecided::NotStored)?;
            let has_new_rate = count.decide(check).ok_or(NotDecided::RecordFull)?;
            if has_new_rate {
                self.lower_due(key);
            }
            return Ok(has_new_rate);
        }
        let packed = slot.packed_mut(&self.terms, namespace, policy, likely);
        let (_, term, words) = packed.ok_or(NotDecided::NotStored)?;
        match AnyCount::decide_packed(words, term, check) {
            PackedOutcome::Stays => Ok(false),
            PackedOutcome::Replaced(count) => {
                self.replace(key, namespace, policy, count);
                Ok(true)
            }
            PackedOutcome::Full => Err(NotDecided::RecordFull),
        }
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
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            // The next inspection is not later than before, so it is in time for the other counts, and updates the instant.
            return slot.push(&mut self.terms, namespace, policy, count);
        }
        let slot = KeySlot::new(&mut self.terms, key, namespace, policy, count);
        let due = slot.idle_at(&self.terms);
        let index = self.slots.len();
        self.slots.push(slot);
        if index.is_multiple_of(GROUP) { self.due.push(due) } else { self.due.lower(index / GROUP, due) }
    }

    /// Replaces a packed count of the partition key with this index.
    #[cold]
    fn replace(&mut self, index: usize, namespace: &Namespace, policy: &Policy, count: PackedCount) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.replace(&mut self.terms, namespace, policy, count);
        self.lower_due(index);
    }

    /// Lowers the instant of the partition key with this index: its new rate may return the units earlier.
    #[cold]
    fn lower_due(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        self.due.lower(index / GROUP, slot.idle_at(&self.terms));
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
            KeySlot::Large { large, .. } => large.partition.count_mut(namespace, policy, 0),
            KeySlot::Small { .. } | KeySlot::Several { .. } => None,
        }
    }

    /// Returns the count of a pair, if it is stored. Searches at the likely position among those of its key first.
    pub(super) fn count(
        &self,
        key: usize,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> Option<StoredCount<'_>> {
        let slot = self.slots.get(key)?;
        if let KeySlot::Large { large, .. } = slot {
            return Some(StoredCount::Large(&large.partition.count(namespace, policy, likely)?.count));
        }
        let TermCount { term, words } = slot.packed(&self.terms, namespace, policy, likely)?;
        Some(StoredCount::Unpacked(AnyCount::of_term(words, self.terms.get(term))))
    }

    /// Returns the count of a pair, or an empty one. The partition key has this index, or none if it is not stored.
    pub(super) fn count_or_empty(
        &self,
        key: Option<usize>,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> StoredCount<'_> {
        let stored = key.and_then(|key| self.count(key, namespace, policy, likely));
        stored.unwrap_or_else(|| StoredCount::Large(AnyCount::empty(policy)))
    }

    /// Decides a check of a pair, and stores the pair if it is new. The index is that of the partition key, if it is known. Returns whether
    /// the key may be due earlier than before, or `None` if there is no room for a record.
    pub(super) fn decide_or_insert(
        &mut self,
        index: Option<usize>,
        key: &PartitionKey,
        namespace: &Namespace,
        likely: usize,
        check: &mut Single<'_>,
    ) -> Option<bool> {
        let index = index.or_else(|| self.slots.seek(key));
        match self.decide(index, namespace, likely, check) {
            Ok(is_due_earlier) => return Some(is_due_earlier),
            Err(NotDecided::RecordFull) => return None,
            Err(NotDecided::NotStored) => {}
        }
        let count = AnyCount::decide_new(check)?;
        if check.changes() {
            self.insert(index, key, namespace, check.pair.policy, count);
        }
        Some(check.changes())
    }

    /// Removes the usage of a pair, if it is stored. The partition key with this index may be idle then.
    pub(super) fn reset(&mut self, index: usize, namespace: &Namespace, policy: &Policy) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.remove(&mut self.terms, namespace, policy);
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
        self.shrink();
        stored - self.slots.len()
    }

    /// Frees memory if most of it is unused.
    fn shrink(&mut self) {
        if self.slots.capacity() > 1_024 && self.slots.len() < self.slots.capacity() / 8 {
            let kept = self.slots.len() * 2;
            self.slots.shrink_to(kept);
            self.due.shrink_to(kept.div_ceil(GROUP));
        }
    }

    /// Removes the partition keys of a group that are idle at `now`, at most twice as many as a group has, and notes when the next one is
    /// idle.
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
        self.shrink();
        true
    }

    /// Removes the policies of the partition key with this index that are idle at `now`. Returns when the others are idle, and 0 if there
    /// are none. `None` if there is no such key.
    fn drop_idle(&mut self, index: usize, now: u64) -> Option<u64> {
        let slot = self.slots.get_mut(index)?;
        // An idle policy must not stay because another policy of the same key is in use.
        slot.remove_idle(&mut self.terms, now);
        Some(slot.idle_at(&self.terms))
    }

    /// Removes the partition key with this index. The last one receives its index.
    fn remove(&mut self, index: usize) {
        if let Some(removed) = self.slots.swap_remove(index) {
            removed.release(&mut self.terms);
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
        given: impl Iterator<Item = &'k PartitionKey>,
    ) -> Self {
        let (mut last, mut keys) = (None, Vec::<PartitionKey>::new());
        for key in given {
            let stored = match keys.last() {
                // Most pairs of a check have one key, and the digest of a long key takes long.
                Some(stored) if last == Some(key) => stored.clone(),
                _ => key.bounded().into_owned(),
            };
            keys.push(stored);
            last = Some(key);
        }
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
            shard.count_or_empty(shard.slots.index_of(&self.keys[i]), check.scope(), &pair.policy, i)
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

    use super::{super::numbers, *};
    use crate::{
        backend::generation::Generations,
        policy::{Algorithm, Rate},
    };

    const SECOND: u64 = 1_000_000;

    fn check(key: &str, policy: &Policy) -> Check {
        Check::new([Pair::new(PartitionKey::new("user", key), policy.clone(), 1)]).unwrap()
    }

    /// Decides a check of one pair.
    fn decide(shard: &mut KeyShard, check: &Check, clock: u64) {
        let generations = Generations::new();
        let [pair] = check.pairs() else { panic!("one pair") };
        let (pair, purpose) = (pair.borrowed(), check.purpose());
        let mut single = Single::new(&pair, &purpose, clock, &generations);
        shard.decide_or_insert(None, pair.key, check.scope(), 0, &mut single).unwrap();
    }

    fn log(name: &str, seconds: u64) -> Policy {
        Policy::new(name, 10, Duration::from_secs(seconds)).unwrap()
    }

    fn bucket(name: &str, quota: u32) -> Policy {
        Policy::token_bucket(name, quota, Rate::new(quota, Duration::from_secs(20))).unwrap()
    }

    /// Otherwise, every new key at the bound would search all shards for a key that is no longer stored.
    #[test]
    fn eviction_updates_first_due() {
        let mut shard = KeyShard::default();
        for (key, seconds) in [("a", 1), ("b", 60)] {
            decide(&mut shard, &check(key, &log("p", seconds)), SECOND);
        }
        for (key, first_due, next_due) in [("a", 2 * SECOND, 61 * SECOND), ("b", 61 * SECOND, u64::MAX)] {
            assert_eq!(shard.first_due(), first_due);
            assert_eq!(shard.evict(&PartitionKey::new("user", key), SECOND, 0.5), Some(1));
            assert_eq!(shard.first_due(), next_due);
        }
    }

    /// Otherwise, clients of many tiers would take the packed form from the keys of other policies.
    #[test]
    fn few_terms_serve_many_quotas() {
        let (mut shard, hour) = (KeyShard::default(), Duration::from_secs(3_600));
        let all = Policy::new("p", 1_000, hour).unwrap().with_algorithm(Algorithm::FixedWindow).unwrap();
        let classes: Vec<Policy> =
            (0..16).map(|percent| all.clone().headroom_percent(percent).unwrap()).collect();
        for (i, first) in classes.iter().enumerate() {
            for (j, second) in classes.iter().enumerate() {
                for policy in [first, second] {
                    decide(&mut shard, &check(&format!("{i} {j}"), policy), SECOND);
                }
            }
        }
        assert_eq!(shard.terms.counts().count(), classes.len());
        assert!((0..shard.slots.len()).all(|i| !matches!(shard.slots.get(i), Some(KeySlot::Large { .. }))));
    }

    #[test]
    fn released_keys_free_table() {
        let (mut shard, policy) = (KeyShard::default(), Policy::in_flight("p", 10).unwrap());
        let checks: Vec<Check> = (0..4_096).map(|i| check(&i.to_string(), &policy)).collect();
        checks.iter().for_each(|check| decide(&mut shard, check, SECOND));
        assert!(shard.slots.capacity() >= 4_096);
        for check in &checks[4..] {
            let key = &check.pairs()[0].key;
            let index = shard.slots.index_of(key).unwrap();
            shard.reset(index, check.scope(), &policy);
            assert!(shard.remove_if_idle(key, SECOND));
        }
        assert_eq!(shard.slots.len(), 4);
        assert!(shard.slots.capacity() <= 1_024, "{}", shard.slots.capacity());
    }

    /// Otherwise, a key with three policies would take six times the memory of a key with one.
    #[test]
    fn key_with_several_policies_is_packed() {
        let (mut shard, policies) = (KeyShard::default(), [log("a", 1), bucket("b", 10), log("c", 60)]);
        let packed = |shard: &KeyShard| shard.slots.get(0).map(|slot| slot.packed_counts().count());
        for (i, policy) in policies.iter().enumerate() {
            decide(&mut shard, &check("k", policy), SECOND);
            assert_eq!(packed(&shard), Some(i + 1));
        }
        decide(&mut shard, &check("k", &policies[1]), SECOND);
        assert_eq!(packed(&shard), Some(3));
        // The first log is idle, and then the bucket.
        for (now, left) in [(2 * SECOND, 2), (5 * SECOND, 1)] {
            assert!(!shard.remove_if_idle(&PartitionKey::new("user", "k"), now));
            assert_eq!(packed(&shard), Some(left));
        }
        assert!(matches!(shard.slots.get(0), Some(KeySlot::Small { .. })));
        decide(&mut shard, &check("k", &policies[1]), 5 * SECOND);
        assert_eq!(packed(&shard), Some(2));
        // A second record.
        decide(&mut shard, &check("k", &policies[2]), 5 * SECOND);
        assert!(matches!(shard.slots.get(0), Some(KeySlot::Large { .. })));
        assert_eq!(shard.terms.counts().count(), 0);
    }

    /// Random changes of keys with up to seven policies.
    #[test]
    fn terms_count_the_packed_counts() {
        let (mut shard, mut random, mut clock) = (KeyShard::default(), numbers(), SECOND);
        // Two quotas of one bucket, and a policy whose counts are never packed.
        let mut policies = vec![bucket("a", 10), bucket("a", 20), bucket("b", 10), log("c", 1), log("d", 9)];
        policies.push(log("e", 3).with_algorithm(Algorithm::FixedWindow).unwrap());
        policies.push(Policy::in_flight("f", 10).unwrap());
        let keys = ["k", "l", "m", "n", "a key that is longer than what a slot holds itself"];
        for step in 0..40_000 {
            let (key, policy) = (keys[random(keys.len())], &policies[random(policies.len())]);
            let check = check(key, policy);
            let [pair] = check.pairs() else { panic!("one pair") };
            match random(20) {
                0 => {
                    if let Some(index) = shard.slots.index_of(&pair.key) {
                        shard.reset(index, check.scope(), policy);
                        shard.remove_if_idle(&pair.key, clock);
                    }
                }
                1 => drop(shard.evict(&pair.key, clock, 0.5)),
                2 => clock += random(3) as u64 * SECOND,
                3 => drop(shard.remove_idle(clock, 2)),
                4 => decide(&mut shard, &check.clone().with_purpose(Purpose::Reserve), clock),
                5 => decide(&mut shard, &check.clone().with_purpose(Purpose::Peek), clock),
                6 => decide(&mut shard, &Check::new([pair.clone().shadow()]).unwrap(), clock),
                _ => decide(&mut shard, &check, clock),
            }
            let mut counts = [0; 64];
            for slot in (0..shard.slots.len()).filter_map(|index| shard.slots.get(index)) {
                slot.packed_counts().for_each(|count| counts[usize::from(count.term)] += 1);
            }
            let of_terms: Vec<u32> = shard.terms.counts().collect();
            assert_eq!(of_terms[..], counts[..of_terms.len()], "step {step}");
            assert!(counts[of_terms.len()..].iter().all(|count| *count == 0), "step {step}");
            if step % 2_000 == 0 {
                (0..shard.slots.len()).for_each(|_| shard.remove(0));
                assert_eq!((shard.slots.len(), shard.terms.counts().count()), (0, 0), "step {step}");
            }
        }
    }
}
