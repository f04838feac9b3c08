//! All partition keys of a memory backend. A check of several keys is decided at one instant.

use std::{
    hash::RandomState,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    clock::Clock,
    count::Reading,
    shard::Shard,
    usage::{Usage, UsageReading},
};
use crate::{
    backend::{BackendError, Reason, generation::Generations},
    check::{Check, MAX_PAIRS, Pair, Purpose, Receipt, Refund},
    decision::{Decision, Status},
    key::PartitionKey,
};

/// The number of shards, each with its own lock.
pub(super) const SHARDS: usize = 64;
/// The number of due partition keys that a check inspects per shard. More than one, so that keys are removed faster than they are
/// added.
pub(super) const INSPECTIONS_PER_CHECK: usize = 4;

/// The state that the clones of a backend share.
pub(super) struct State {
    /// Unique in this process.
    pub(super) number: u64,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    /// How long an idle key is kept, in microseconds. 0 except in tests that move the clock backward.
    pub(super) keep_idle: u64,
    /// Whether a new key at the bound is rejected, and no key evicted.
    pub(super) rejects_when_full: AtomicBool,
    pub(super) shards: [Mutex<Shard>; SHARDS],
    /// Makes random numbers.
    pub(super) hasher: RandomState,
    pub(super) generations: Generations,
    /// The number of partition keys in all shards, and of those that are about to be added.
    pub(super) keys: AtomicUsize,
    /// No partition key is due before this instant.
    pub(super) next_due: AtomicU64,
    /// How many random numbers were drawn.
    pub(super) drawn: AtomicU64,
    pub(super) evicted_keys: AtomicU64,
    pub(super) evicted_units: AtomicU64,
}

/// The result of an attempt to decide a check.
pub(super) enum Attempt {
    Decided(Decision),
    /// Only the lack of room for new partition keys prevents the admission.
    NoRoom {
        /// How many keys too many there would be.
        missing: usize,
        /// The shard of the first new key.
        shard: usize,
    },
}

/// What to do with the shadow pairs whose partition keys are not stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NewShadows {
    Charged,
    /// There is no room for them: they have no status.
    LeftOut,
}

/// The locked shards of some pairs. They are locked in ascending order, so that no two callers deadlock.
struct Locked<'a> {
    guards: Vec<MutexGuard<'a, Shard>>,
    /// The partition keys of the pairs, as they are stored.
    keys: Vec<PartitionKey>,
    /// The index of the shard of each pair.
    shard_of_pair: [usize; MAX_PAIRS],
    /// The index of the guard of each pair.
    guard_of_pair: [usize; MAX_PAIRS],
}

impl State {
    pub(super) fn new(max_keys: usize, clock: Clock, keep_idle: Duration, rejects_when_full: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            clock,
            max_keys,
            keep_idle: keep_idle.as_micros() as u64,
            rejects_when_full: AtomicBool::new(rejects_when_full),
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            generations: Generations::new(),
            keys: AtomicUsize::new(0),
            next_due: AtomicU64::new(u64::MAX),
            drawn: AtomicU64::new(0),
            evicted_keys: AtomicU64::new(0),
            evicted_units: AtomicU64::new(0),
        }
    }

    /// Returns the number of stored partition keys, including idle ones.
    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns how many partition keys were evicted.
    pub(super) fn evicted_keys(&self) -> u64 {
        self.evicted_keys.load(Ordering::Relaxed)
    }

    /// Returns how many quota units the evicted keys had in use.
    pub(super) fn evicted_units(&self) -> u64 {
        self.evicted_units.load(Ordering::Relaxed)
    }

    /// Decides a check.
    pub(super) fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        if let [pair] = check.pairs()
            && let Some(decision) = self.decide_single(check.scope(), pair.borrowed(), check.purpose())
        {
            return Ok(decision);
        }
        match self.try_decide(check, &mut 0, NewShadows::Charged)? {
            Attempt::Decided(decision) => Ok(decision),
            Attempt::NoRoom { .. } => self.decide_at_bound(check),
        }
    }

    /// Decides a check. `room` is the room for new partition keys that evictions have made for it, and then what is left of it.
    pub(super) fn try_decide(
        &self,
        check: &Check,
        room: &mut usize,
        new_shadows: NewShadows,
    ) -> Result<Attempt, BackendError> {
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
        let readings: Vec<UsageReading<'_>> = pairs.iter().enumerate().map(read).collect();
        let waits = purpose != Purpose::Overage;
        let has_room = |pair: &Pair, reading: &dyn Reading| !waits || reading.admits(pair.borrowed());
        let of_pairs = || pairs.iter().zip(readings.iter().map(UsageReading::inner));
        let admitted = of_pairs().all(|(pair, reading)| pair.is_shadow || has_room(pair, reading));
        let is_charged = |pair: &Pair, reading: &dyn Reading| {
            // An enforcing pair has room if the check is admitted.
            admitted && (!pair.is_shadow || has_room(pair, reading))
        };
        let status = |(pair, reading): (&Pair, &dyn Reading)| {
            reading.status(pair.borrowed(), has_room(pair, reading), is_charged(pair, reading))
        };
        let statuses: Vec<Status> = of_pairs().map(status).collect();
        if !admitted {
            return Ok(Attempt::Decided(Decision::new(clock, statuses)));
        }
        let (mut charged, mut is_known) = ([false; MAX_PAIRS], [true; MAX_PAIRS]);
        for (i, (pair, reading)) in of_pairs().enumerate() {
            charged[i] = pair.cost > 0 && is_charged(pair, reading);
            let is_full = charged[i] && !reading.has_room();
            if is_full && !pair.is_shadow {
                return Err(BackendError::new(Reason::Full));
            }
            // Without room for its charge, a shadow pair has no status.
            let is_left_out = || new_shadows == NewShadows::LeftOut && locked.is_new(i, pairs);
            if charged[i] && pair.is_shadow && (is_full || is_left_out()) {
                (charged[i], is_known[i]) = (false, false);
            }
        }
        let (new_keys, first_new) = locked.new_keys(&charged[..pairs.len()]);
        if let Err(missing) = self.reserve(new_keys, purpose, room) {
            return Ok(Attempt::NoRoom { missing, shard: locked.shard_of_pair[first_new] });
        }
        if purpose == Purpose::Peek {
            return Ok(Attempt::Decided(decision(check, clock, statuses, Vec::new(), &is_known)));
        }
        let mut receipts = Vec::new();
        for (i, pair) in pairs.iter().enumerate() {
            let receipt = if charged[i] {
                locked.charge(i, check, pair, clock, &self.generations)
            } else {
                Receipt::NO_CHARGE
            };
            if purpose == Purpose::Reserve {
                receipts.push(receipt);
            }
        }
        if new_keys > 0 {
            locked.guards.iter().for_each(|shard| self.note_due(shard));
        }
        Ok(Attempt::Decided(decision(check, clock, statuses, receipts, &is_known)))
    }

    /// Refunds units, each to its own charge. Returns the instant.
    pub(super) fn refund(&self, refund: &Refund) -> u64 {
        let mut locked = self.lock(refund.pairs().iter().map(|pair| &pair.key));
        let clock = self.clock.now_micros();
        for (i, pair) in refund.pairs().iter().enumerate() {
            let (shard, key) = locked.shard_mut(i);
            shard.refund(key, refund.scope(), pair, clock);
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
            shard.reset(key, pairs.scope(), &pair.policy);
            self.remove_if_idle(shard, key, clock);
        }
    }

    #[inline]
    pub(super) fn remove_idle(&self, shard: &mut Shard, idle_since: u64, max: usize) {
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
        // A refund may have made it due earlier.
        self.note_due(shard);
    }

    /// Returns the instant since which a key must be idle to be removed.
    #[inline]
    pub(super) fn idle_since(&self, clock: u64) -> u64 {
        clock.saturating_sub(self.keep_idle)
    }

    /// Locks the shard of a key, which is of bounded size.
    #[inline]
    pub(super) fn shard_of(&self, key: &PartitionKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(key)])
    }

    /// Locks the shards of at most [`MAX_PAIRS`] keys.
    fn lock<'k>(&self, keys: impl Iterator<Item = &'k PartitionKey>) -> Locked<'_> {
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
            guards.push(lock(&self.shards[shard]));
            next = shard_of_pair[..pairs].iter().filter(|other| **other > shard).min().copied();
        }
        Locked { guards, keys, shard_of_pair, guard_of_pair }
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
        self.shard(index).usage(&self.keys[index], check, &pair.policy)
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

    /// Returns whether the partition key of a shadow pair is not stored, and no enforcing pair of the check stores it.
    fn is_new(&self, pair: usize, pairs: &[Pair]) -> bool {
        let is_stored_by = |(i, other): (usize, &Pair)| {
            !other.is_shadow && other.cost > 0 && self.keys[i] == self.keys[pair]
        };
        !self.shard(pair).contains(&self.keys[pair]) && !pairs.iter().enumerate().any(is_stored_by)
    }

    /// Returns how many of the charged partition keys are not stored yet, and the index of the first such pair.
    fn new_keys(&self, charged: &[bool]) -> (usize, usize) {
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

/// Returns the decision of an admitted check. The pairs that are not known have no status.
fn decision(
    check: &Check,
    clock: u64,
    statuses: Vec<Status>,
    receipts: Vec<Receipt>,
    is_known: &[bool; MAX_PAIRS],
) -> Decision {
    if is_known.iter().all(|is_known| *is_known) {
        return Decision::with_receipts(clock, statuses, receipts);
    }
    let statuses = statuses.into_iter().zip(is_known).map(|(status, is_known)| is_known.then_some(status));
    Decision::partial(clock, statuses.collect(), receipts, check)
}

/// Returns the index of the shard of a key. The map of the shard uses other bits of the hash.
#[inline]
fn shard_of(key: &PartitionKey) -> usize {
    (key.hash_code() >> 40) as usize % SHARDS
}

#[inline]
pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
