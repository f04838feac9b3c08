//! The locked shards of the pairs of a check.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    any_count::{AnyCount, AnyReading},
    shard::KeyShard,
};
use crate::{
    backend::generation::Generations,
    check::{Check, MAX_PAIRS, Pair, PairRef, Purpose, Receipt},
    decision::Status,
    key::PartitionKey,
};

/// The number of shards, each with its own lock.
pub(super) const SHARDS: usize = 64;

/// The locked shards of some pairs. They are locked in ascending order, so that no two callers deadlock.
pub(super) struct LockedShards<'a> {
    pub(super) guards: Vec<MutexGuard<'a, KeyShard>>,
    /// The partition keys of the pairs, as they are stored.
    keys: Vec<PartitionKey>,
    /// The index of the shard of each pair.
    pub(super) shard_of_pair: [usize; MAX_PAIRS],
    /// The index of the guard of each pair.
    guard_of_pair: [usize; MAX_PAIRS],
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
    /// Locks the shards of at most [`MAX_PAIRS`] keys.
    pub(super) fn new<'k>(
        shards: &'a [Mutex<KeyShard>; SHARDS],
        keys: impl Iterator<Item = &'k PartitionKey>,
    ) -> Self {
        let keys: Vec<PartitionKey> = keys.map(|key| key.bounded().into_owned()).collect();
        let mut shard_of_pair = [0; MAX_PAIRS];
        for (shard, key) in shard_of_pair.iter_mut().zip(&keys) {
            *shard = shard_of(key);
        }
        let mut guards = Vec::with_capacity(1);
        let mut guard_of_pair = [0; MAX_PAIRS];
        let pairs = keys.len().min(MAX_PAIRS);
        // Each shard once, in ascending order.
        let mut next = shard_of_pair[..pairs].iter().min().copied();
        while let Some(shard) = next {
            for pair in (0..pairs).filter(|pair| shard_of_pair[*pair] == shard) {
                guard_of_pair[pair] = guards.len();
            }
            guards.push(lock(&shards[shard]));
            next = shard_of_pair[..pairs].iter().filter(|other| **other > shard).min().copied();
        }
        Self { guards, keys, shard_of_pair, guard_of_pair }
    }

    fn shard(&self, pair: usize) -> &KeyShard {
        &self.guards[self.guard_of_pair[pair]]
    }

    pub(super) fn shard_mut(&mut self, pair: usize) -> (&mut KeyShard, &PartitionKey) {
        (&mut self.guards[self.guard_of_pair[pair]], &self.keys[pair])
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

    /// Returns how many of the charged partition keys are not stored yet, and the index of the first such pair.
    pub(super) fn new_keys(&self, charged: &[bool]) -> (usize, usize) {
        let is_charged = |i: &usize| charged[*i];
        let is_new = |i: &usize| {
            !self.shard(*i).contains(&self.keys[*i])
                && (0..*i).filter(is_charged).all(|other| self.keys[other] != self.keys[*i])
        };
        let mut new = (0..charged.len()).filter(is_charged).filter(is_new);
        let first = new.next();
        (usize::from(first.is_some()) + new.count(), first.unwrap_or_default())
    }
}

/// Returns the index of the shard of a key. The map of the shard uses other bits of the hash.
#[inline]
pub(super) fn shard_of(key: &PartitionKey) -> usize {
    (key.hash_code() >> 40) as usize % SHARDS
}

#[inline]
pub(super) fn lock(shard: &Mutex<KeyShard>) -> MutexGuard<'_, KeyShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
