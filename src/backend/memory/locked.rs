//! The locked shards of the pairs of a check.

use std::sync::MutexGuard;

use super::{
    any_count::{AnyCount, AnyReading},
    shard::KeyShard,
};
use crate::{
    backend::generation::Generations,
    check::{Check, Pair, PairRef, Purpose, Receipt},
    decision::Status,
    key::PartitionKey,
    lock::Lock,
};

/// The number of shards, each with its own lock.
pub(super) const SHARDS: usize = 64;

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

impl PairReading<'_> {
    /// Returns the status of the pair after the verdict of the check.
    pub(super) fn status(&self, is_admitted: bool) -> Status {
        self.reading.status(self.pair, self.fits, is_admitted && self.fits)
    }
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyShard> {
        self.guards.iter().map(|(_, shard)| &**shard)
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
            let count = self.shard(i).count(&self.keys[i], check, &pair.policy);
            let count = count.unwrap_or_else(|| AnyCount::empty(&pair.policy));
            let (pair, reading) = (pair.borrowed(), count.read(clock, &pair.policy));
            PairReading { pair, fits: check.purpose() == Purpose::Overage || reading.admits(pair), reading }
        };
        check.pairs().iter().enumerate().map(read).collect()
    }

    /// Charges a pair. Returns the receipt.
    pub(super) fn charge(
        &mut self,
        pair: usize,
        check: &Check,
        clock: u64,
        generations: &Generations,
    ) -> Receipt {
        let (shard, key) = self.shard_mut(pair);
        shard.charge(key, check, &check.pairs()[pair], clock, generations)
    }

    /// Returns whether the partition key of a shadow pair is not stored, and no enforcing pair of the check stores it.
    pub(super) fn is_new_shadow(&self, pair: usize, pairs: &[Pair]) -> bool {
        let is_stored_by = |(i, other): (usize, &Pair)| {
            !other.is_shadow && other.cost > 0 && self.keys[i] == self.keys[pair]
        };
        !self.shard(pair).contains(&self.keys[pair]) && !pairs.iter().enumerate().any(is_stored_by)
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
