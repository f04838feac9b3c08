//! All partition keys of a memory backend. A check of several keys is decided at one instant.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    clock::Clock,
    shard::Shard,
    usage::{Reading, Usage},
};
use crate::{
    backend::{BackendError, Reason, generation::Generations},
    check::{Check, MAX_PAIRS, Pair, Purpose, Receipt, Refund},
    decision::{Decision, Status},
    key::PartitionKey,
};

/// The number of shards, each with its own lock.
const SHARDS: usize = 64;
/// The number of due partition keys that a check inspects per shard. More than one, so that keys are removed faster than they are
/// added.
const INSPECTIONS_PER_CHECK: usize = 4;

/// The state that the clones of a backend share.
pub(super) struct State {
    /// Unique in this process.
    pub(super) number: u64,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    /// How long an idle key is kept, in microseconds. 0 except in tests that move the clock backward.
    pub(super) keep_idle: u64,
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    generations: Generations,
    /// The number of partition keys in all shards.
    keys: AtomicUsize,
}

/// The locked shards of some pairs. They are locked in ascending order, so that no two callers deadlock.
struct Locked<'a> {
    guards: Vec<MutexGuard<'a, Shard>>,
    /// The partition keys of the pairs, as they are stored.
    keys: Vec<PartitionKey>,
    /// The index of the guard of each pair.
    guard_of_pair: [usize; MAX_PAIRS],
}

impl State {
    pub(super) fn new(max_keys: usize, clock: Clock, keep_idle: Duration) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            clock,
            max_keys,
            keep_idle: keep_idle.as_micros() as u64,
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            generations: Generations::new(),
            keys: AtomicUsize::new(0),
        }
    }

    /// Returns the number of stored partition keys, including idle ones.
    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Decides a check.
    pub(super) fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        if let Some(decision) = self.try_decide(check)? {
            return Ok(decision);
        }
        // There is no room for a new key. Remove the idle keys of all shards, and try once more.
        let idle_since = self.idle_since(self.clock.now_micros());
        for shard in &self.shards {
            self.remove_idle(&mut lock(shard), idle_since, usize::MAX);
        }
        self.try_decide(check)?.ok_or_else(|| BackendError::new(Reason::Full))
    }

    /// Decides a check. Returns `None` if only the lack of room for a new partition key prevents its admission.
    fn try_decide(&self, check: &Check) -> Result<Option<Decision>, BackendError> {
        let (pairs, purpose) = (check.pairs(), check.purpose());
        let mut locked = self.lock(pairs.iter().map(|pair| &pair.key));
        // Read under the locks, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        for shard in &mut locked.guards {
            self.remove_idle(shard, self.idle_since(clock), INSPECTIONS_PER_CHECK);
        }

        let read = |(i, pair): (usize, &Pair)| {
            let usage = locked.usage(i, check, pair).unwrap_or_else(|| Usage::empty(&pair.policy));
            usage.read(clock, &pair.policy)
        };
        let readings: Vec<Reading<'_>> = pairs.iter().enumerate().map(read).collect();
        let waits = purpose != Purpose::Overage;
        let admitted = !waits || pairs.iter().zip(&readings).all(|(pair, reading)| reading.admits(pair));
        let status = |(pair, reading): (&Pair, &Reading<'_>)| reading.status(pair, admitted, waits);
        let statuses: Vec<Status> = pairs.iter().zip(&readings).map(status).collect();
        if !admitted {
            return Ok(Some(Decision::new(clock, statuses)));
        }
        if pairs.iter().zip(&readings).any(|(pair, reading)| pair.cost > 0 && !reading.has_room()) {
            return Err(BackendError::new(Reason::Full));
        }
        if !self.reserve(locked.new_keys(pairs), purpose) {
            return Ok(None);
        }
        if purpose == Purpose::Peek {
            return Ok(Some(Decision::new(clock, statuses)));
        }
        let mut receipts = Vec::new();
        for (i, pair) in pairs.iter().enumerate() {
            let receipt = match pair.cost {
                0 => Receipt::NO_CHARGE,
                _ => locked.charge(i, check, pair, clock, &self.generations),
            };
            if purpose == Purpose::Reserve {
                receipts.push(receipt);
            }
        }
        Ok(Some(Decision::with_receipts(clock, statuses, receipts)))
    }

    /// Refunds units, each to its own charge. Returns the instant.
    pub(super) fn refund(&self, refund: &Refund) -> u64 {
        let mut locked = self.lock(refund.pairs().iter().map(|pair| &pair.key));
        let clock = self.clock.now_micros();
        for (i, pair) in refund.pairs().iter().enumerate() {
            let (shard, key) = locked.shard_mut(i);
            shard.refund(key, refund.namespace(), pair, clock);
            self.remove_if_idle(shard, key, clock);
        }
        clock
    }

    /// Removes the usage of some pairs.
    pub(super) fn reset(&self, pairs: &Check) {
        let mut locked = self.lock(pairs.pairs().iter().map(|pair| &pair.key));
        let clock = self.clock.now_micros();
        for (i, pair) in pairs.pairs().iter().enumerate() {
            let (shard, key) = locked.shard_mut(i);
            shard.reset(key, pairs.namespace(), &pair.policy);
            self.remove_if_idle(shard, key, clock);
        }
    }

    /// Reserves room for new partition keys. A peek only checks that there is room.
    fn reserve(&self, new_keys: usize, purpose: Purpose) -> bool {
        let room = |keys: usize| keys.checked_add(new_keys).filter(|keys| *keys <= self.max_keys);
        match (new_keys, purpose) {
            (0, _) => true,
            (_, Purpose::Peek) => room(self.keys()).is_some(),
            _ => self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok(),
        }
    }

    fn remove_idle(&self, shard: &mut Shard, idle_since: u64, max: usize) {
        let removed = shard.remove_idle(idle_since, max);
        if removed > 0 {
            self.keys.fetch_sub(removed, Ordering::Relaxed);
        }
    }

    /// Removes one partition key if it is idle, whether it is due or not.
    fn remove_if_idle(&self, shard: &mut Shard, key: &PartitionKey, clock: u64) {
        if shard.remove_if_idle(key, self.idle_since(clock)) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the instant since which a key must be idle to be removed.
    fn idle_since(&self, clock: u64) -> u64 {
        clock.saturating_sub(self.keep_idle)
    }

    /// Locks the shards of at most [`MAX_PAIRS`] keys.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k PartitionKey>) -> Locked<'_> {
        let keys: Vec<PartitionKey> = keys.map(PartitionKey::bounded).collect();
        let mut shard_of_pair = [0; MAX_PAIRS];
        for (shard, key) in shard_of_pair.iter_mut().zip(&keys) {
            *shard = self.hasher.hash_one(key) as usize % SHARDS;
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
            guards.push(lock(&self.shards[shard]));
            next = shard_of_pair[..pairs].iter().filter(|other| **other > shard).min().copied();
        }
        Locked { guards, keys, guard_of_pair }
    }
}

impl Locked<'_> {
    fn shard(&self, pair: usize) -> &Shard {
        &self.guards[self.guard_of_pair[pair]]
    }

    fn shard_mut(&mut self, pair: usize) -> (&mut Shard, &PartitionKey) {
        (&mut self.guards[self.guard_of_pair[pair]], &self.keys[pair])
    }

    fn usage(&self, index: usize, check: &Check, pair: &Pair) -> Option<&Usage> {
        self.shard(index).usage(&self.keys[index], check.namespace(), &pair.policy)
    }

    fn charge(
        &mut self,
        index: usize,
        check: &Check,
        pair: &Pair,
        clock: u64,
        generations: &Generations,
    ) -> Receipt {
        let (shard, key) = self.shard_mut(index);
        shard.charge(key, check, pair, clock, generations)
    }

    /// Returns how many of the partition keys with a cost are not stored yet.
    fn new_keys(&self, pairs: &[Pair]) -> usize {
        let is_charged = |i: &usize| pairs[*i].cost > 0;
        let is_new = |i: &usize| {
            !self.shard(*i).contains(&self.keys[*i])
                && (0..*i).filter(is_charged).all(|other| self.keys[other] != self.keys[*i])
        };
        (0..pairs.len()).filter(is_charged).filter(is_new).count()
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
