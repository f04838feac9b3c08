//! All partition keys of a memory backend. A check of several keys is decided at one instant.

use std::{
    array, iter,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    any_count::{AnyCount, Single},
    clock::Clock,
    expiring::Expiring,
    shard::{KeyShard, LockedShards, NotDecided, PairReading, SHARDS, read, shard_of},
};
#[cfg(feature = "calendar")]
use crate::policy::Policy;
use crate::{
    backend::{BackendError, Reason, generation::Generations},
    check::{Check, MAX_PAIRS, Namespace, Pair, PairKey, PairRef, Purpose, Receipt, Refund},
    decision::{Decision, PartialSource, Status, Statuses},
    key::PartitionKey,
    lock::Lock,
    observe,
    per_thread::Apart,
};

/// The number of due groups of keys that a check inspects per shard. Most checks add at most one key to a shard.
const INSPECTIONS_PER_CHECK: usize = 1;

/// The time in which checks remove idle keys of one more shard once, in microseconds.
const SWEEP_MICROS: u64 = 1 << 10;

/// The number of pairs of a check up to which no list needs memory of the heap.
const FEW_PAIRS: usize = 4;

/// The state that the clones of a backend share.
pub(super) struct MemoryState {
    /// Unique in this process.
    pub(super) number: u64,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    /// How long an idle key is kept, in microseconds. 0 except in tests that move the clock backward.
    pub(super) keep_idle: u64,
    /// Whether a new key at the bound is rejected, and no key evicted.
    pub(super) rejects_when_full: AtomicBool,
    pub(super) shards: [Apart<Lock<KeyShard>>; SHARDS],
    /// Makes random numbers.
    pub(super) generations: Generations,
    /// The number of partition keys in all shards, and of those that are about to be added.
    pub(super) keys: AtomicUsize,
    /// No partition key is due before this instant.
    pub(super) next_due: AtomicU64,
    /// Held while the idle keys of all shards are removed.
    pub(super) removal: Lock<()>,
    /// When idle keys of one more shard were removed, as a multiple of [`SWEEP_MICROS`].
    swept_at: AtomicU64,
    /// How many times this was done.
    swept: AtomicUsize,
    pub(super) evicted_keys: AtomicU64,
    pub(super) evicted_units: AtomicU64,
    pub(super) tokens: Lock<StoredTokens>,
    pub(super) answers: Lock<Answers>,
}

/// The instant of the newest answer of an API about each pair.
type Answers = Expiring<(Namespace, PairKey), u64>;

/// The charge of each token. `None` once it is settled.
type StoredTokens = Expiring<u64, Option<(Check, Vec<Receipt>)>>;

/// The result of an attempt to decide a check.
pub(super) enum DecisionAttempt {
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

/// What a decision leaves for a recorder and a subscriber. They may use the backend, so they learn of it when all locks are free.
#[derive(Default)]
pub(super) struct Unreported {
    /// The units in use of each evicted key.
    pub(super) evicted: Vec<u64>,
    /// The policies that have noted an earlier period.
    #[cfg(feature = "calendar")]
    earlier_periods: Vec<Policy>,
}

impl Unreported {
    pub(super) fn report(self) {
        self.evicted.into_iter().for_each(observe::evicted);
        #[cfg(feature = "calendar")]
        self.earlier_periods.iter().for_each(observe::earlier_period);
    }
}

impl MemoryState {
    pub(super) fn new(max_keys: usize, clock: Clock, keep_idle: Duration, rejects_when_full: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            clock,
            max_keys,
            keep_idle: keep_idle.as_micros() as u64,
            rejects_when_full: AtomicBool::new(rejects_when_full),
            shards: array::from_fn(|_| Apart::default()),
            generations: Generations::new(),
            keys: AtomicUsize::new(0),
            next_due: AtomicU64::new(u64::MAX),
            removal: Lock::default(),
            swept_at: AtomicU64::new(0),
            swept: AtomicUsize::new(0),
            evicted_keys: AtomicU64::new(0),
            evicted_units: AtomicU64::new(0),
            tokens: Lock::default(),
            answers: Lock::default(),
        }
    }

    /// Decides a check. The caller reports what is left to report, when it holds no lock.
    pub(super) fn decide(
        &self,
        check: &Check,
        unreported: &mut Unreported,
    ) -> Result<Decision, BackendError> {
        let decided = self.decide_pairs(check, unreported);
        #[cfg(feature = "calendar")]
        {
            let policies = check.pairs().iter().map(|pair| &pair.policy);
            let noted = policies.filter(|policy| policy.take_earlier_period());
            unreported.earlier_periods.extend(noted.cloned());
        }
        decided
    }

    fn decide_pairs(&self, check: &Check, unreported: &mut Unreported) -> Result<Decision, BackendError> {
        if !matches!(
            check.purpose(),
            Purpose::TakeUpTo(_) | Purpose::LeaseAhead | Purpose::LeaveAtMost { .. }
        ) && !check.has_several_keys()
        {
            let pairs: SmallVec<[PairRef<'_>; FEW_PAIRS]> =
                check.pairs().iter().map(Pair::borrowed).collect();
            if let Some(decision) = self.decide_key(check.scope(), &pairs, &check.purpose()) {
                return Ok(decision);
            }
        }
        match self.try_decide(check, &mut 0, NewShadows::Charged)? {
            DecisionAttempt::Decided(decision) => Ok(decision),
            DecisionAttempt::NoRoom { .. } => self.decide_at_bound(check, unreported),
        }
    }

    /// Decides a check of pairs of one partition key: one lock, one search for the key. Returns `None` if the key is long, or there is no
    /// room for a record or the key. Then nothing was charged.
    ///
    /// As a part of its callers, it would exceed what the compiler inlines.
    #[inline(never)]
    pub(super) fn decide_key(
        &self,
        namespace: &Namespace,
        pairs: &[PairRef<'_>],
        purpose: &Purpose,
    ) -> Option<Decision> {
        match pairs {
            [pair] if !pair.key.is_long() => self.decide_single(namespace, pair, purpose),
            [pair, _, ..] if !pair.key.is_long() => self.decide_several(namespace, pair.key, pairs, *purpose),
            _ => None,
        }
    }

    /// Decides a check of several pairs of this key. Returns `None` if there is no room for a record or the key. Then nothing was charged.
    #[inline(never)]
    fn decide_several(
        &self,
        namespace: &Namespace,
        key: &PartitionKey,
        pairs: &[PairRef<'_>],
        purpose: Purpose,
    ) -> Option<Decision> {
        let mut shard = self.shards[shard_of(key)].lock();
        // Read under the lock, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_some_idle(iter::once(&mut *shard), clock);
        let index = shard.slots.seek(key);
        let (mut is_admitted, mut is_charged) = (true, false);
        for (i, pair) in pairs.iter().enumerate() {
            let count = shard.count_or_empty(index, namespace, pair.policy, i);
            let PairReading { reading, fits, .. } = count.read(*pair, purpose, clock);
            if !fits && !pair.is_shadow {
                is_admitted = false;
                break;
            }
            if fits && pair.is_chargeable(purpose) {
                is_charged = true;
                if !reading.has_room() {
                    return None;
                }
            }
        }
        let (mut statuses, mut receipts) = (Statuses::with_capacity(pairs.len()), Vec::new());
        if !is_admitted {
            for (i, pair) in pairs.iter().enumerate() {
                let count = shard.count_or_empty(index, namespace, pair.policy, i);
                let PairReading { reading, fits, .. } = count.read(*pair, purpose, clock);
                statuses.push(reading.status(*pair, clock, fits, false));
            }
            return Some(Decision::from_statuses(clock, statuses, receipts));
        }
        let adds_key = index.is_none() && is_charged;
        self.reserve(usize::from(adds_key), purpose, &mut 0).ok()?;
        let mut is_due_earlier = false;
        for (i, pair) in pairs.iter().enumerate() {
            let mut check = Single::new(pair, &purpose, clock, &self.generations);
            is_due_earlier |= shard.decide_or_insert(index, key, namespace, i, &mut check)?;
            statuses.push(check.status());
            receipts.extend(check.receipt());
        }
        if is_due_earlier {
            self.note_due(&shard);
        }
        Some(Decision::from_statuses(clock, statuses, receipts))
    }

    /// Decides a check of one pair: no list. Returns `None` if there is no room for its record or its key. Then nothing was charged.
    #[inline]
    fn decide_single(
        &self,
        namespace: &Namespace,
        pair: &PairRef<'_>,
        purpose: &Purpose,
    ) -> Option<Decision> {
        let key = pair.key;
        let mut shard = self.shards[shard_of(key)].lock();
        // Read under the lock, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_some_idle(iter::once(&mut *shard), clock);
        let mut check = Single::new(pair, purpose, clock, &self.generations);
        let index = shard.slots.seek(key);
        let is_due_earlier = match shard.decide(index, namespace, 0, &mut check) {
            Ok(is_due_earlier) => is_due_earlier,
            Err(NotDecided::RecordFull) => return None,
            Err(NotDecided::NotStored) => {
                let count = AnyCount::decide_new(&mut check)?;
                if check.is_charged() {
                    self.reserve(usize::from(index.is_none()), *purpose, &mut 0).ok()?;
                }
                if check.changes() {
                    shard.insert(index, key, namespace, pair.policy, count);
                }
                check.changes()
            }
        };
        if is_due_earlier {
            self.note_due(&shard);
        }
        drop(shard);
        if let Some(receipt) = check.receipt() {
            return Some(check.decision_with(receipt));
        }
        Some(check.decision())
    }

    /// Decides a check. `room` is the room for new partition keys that evictions have made for it, and then what is left of it.
    pub(super) fn try_decide(
        &self,
        check: &Check,
        room: &mut usize,
        new_shadows: NewShadows,
    ) -> Result<DecisionAttempt, BackendError> {
        let mut locked = LockedShards::new(&self.shards, check.pairs().iter().map(|pair| &pair.key));
        // Read under the locks, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        self.remove_some_idle(locked.iter_mut(), clock);

        let taken = locked.take(check, clock).or_else(|| locked.leave_at_most(check, clock));
        let check = taken.as_ref().unwrap_or(check);
        let (pairs, purpose, counts) = (check.pairs(), check.purpose(), locked.counts(check));
        let readings = read(&counts, check, clock);
        let is_admitted = readings.iter().all(|reading| reading.pair.is_shadow || reading.fits);
        let status_of = |PairReading { pair, reading, fits }: &PairReading<'_>| {
            reading.status(*pair, clock, *fits, is_admitted && *fits && pair.is_chargeable(purpose))
        };
        let statuses: Vec<Status> = readings.iter().map(status_of).collect();
        if !is_admitted {
            return Ok(DecisionAttempt::Decided(Decision::new(clock, statuses)));
        }

        let (mut is_charged, mut is_known, mut receipts) =
            ([false; MAX_PAIRS], [true; MAX_PAIRS], Vec::new());
        for (i, PairReading { pair, reading, fits }) in readings.iter().enumerate() {
            is_charged[i] = *fits && pair.is_chargeable(purpose);
            let is_full = is_charged[i] && !reading.has_room();
            if is_full && !pair.is_shadow {
                return Err(BackendError::new(Reason::Full));
            }
            // Without room for its charge, a shadow pair has no status.
            let is_left_out = || new_shadows == NewShadows::LeftOut && locked.is_new_shadow(i, check);
            if is_charged[i] && pair.is_shadow && (is_full || is_left_out()) {
                (is_charged[i], is_known[i]) = (false, false);
            }
        }
        let (new_keys, shard) = locked.new_keys(&is_charged[..pairs.len()]);
        if let Err(missing) = self.reserve(new_keys, purpose, room) {
            return Ok(DecisionAttempt::NoRoom { missing, shard });
        }

        for (i, pair) in pairs.iter().map(Pair::borrowed).enumerate() {
            let mut charge = Single::new(&pair, &purpose, clock, &self.generations);
            if is_charged[i] && purpose != Purpose::Peek {
                let (shard, key) = locked.shard_mut(i);
                // It has room, as its reading states.
                let is_due_earlier = shard.decide_or_insert(None, key, check.scope(), i, &mut charge);
                if is_due_earlier == Some(true) {
                    self.note_due(shard);
                }
            }
            let receipt = || charge.receipt().unwrap_or(Receipt::NO_CHARGE);
            receipts.extend(purpose.has_receipts().then(receipt));
        }
        let decision = if is_known.contains(&false) {
            let known = statuses.into_iter().zip(is_known);
            let known = known.map(|(status, is_known)| is_known.then_some(status));
            Decision::partial(PartialSource::Backend, clock, known, receipts, check)
        } else {
            Decision::with_receipts(clock, statuses, receipts)
        };
        Ok(DecisionAttempt::Decided(decision))
    }

    /// Refunds units, each to its own charge. Returns the instant.
    pub(super) fn refund(&self, refund: &Refund) -> u64 {
        self.change(
            refund.pairs(),
            |pair| &pair.key,
            |shard, key, pair, clock| {
                // A packed count has no receipts, and holds no units.
                if let Some(stored) = shard.large_count_mut(key, refund.scope(), &pair.policy) {
                    stored.count.refund(clock, &pair.policy, pair.receipt, pair.units);
                }
            },
        )
    }

    /// Removes the usage of some pairs.
    pub(super) fn reset(&self, pairs: &Check) {
        self.change(
            pairs.pairs(),
            |pair| &pair.key,
            |shard, key, pair, _| shard.reset(key, pairs.scope(), &pair.policy),
        );
    }

    /// Changes the counts of the stored keys of these pairs, at one instant. Returns the instant.
    pub(super) fn change<P>(
        &self,
        pairs: &[P],
        key: fn(&P) -> &PartitionKey,
        change: impl Fn(&mut KeyShard, usize, &P, u64),
    ) -> u64 {
        let mut locked = LockedShards::new(&self.shards, pairs.iter().map(key));
        let clock = self.clock.now_micros();
        for (i, pair) in pairs.iter().enumerate() {
            let (shard, key) = locked.shard_mut(i);
            if let Some(index) = shard.slots.index_of(key) {
                change(shard, index, pair, clock);
            }
            self.remove_if_idle(shard, key, clock);
        }
        clock
    }

    #[inline]
    pub(super) fn remove_idle(&self, shard: &mut KeyShard, idle_since: u64, max: usize) {
        let removed = shard.remove_idle(idle_since, max);
        if removed > 0 {
            self.keys.fetch_sub(removed, Ordering::Relaxed);
        }
    }

    /// Removes some idle keys of these shards, and from time to time of one more shard. Otherwise, those of a shard without a key in use
    /// would stay.
    #[inline]
    fn remove_some_idle<'s>(&self, shards: impl Iterator<Item = &'s mut KeyShard>, clock: u64) {
        let since = self.idle_since(clock);
        shards.for_each(|shard| self.remove_idle(shard, since, INSPECTIONS_PER_CHECK));
        if clock / SWEEP_MICROS != self.swept_at.load(Ordering::Relaxed) {
            self.sweep_next(clock);
        }
    }

    /// Removes some idle keys of the next shard.
    #[cold]
    fn sweep_next(&self, clock: u64) {
        self.swept_at.store(clock / SWEEP_MICROS, Ordering::Relaxed);
        let next = self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
        // The caller holds the lock of a shard, so it must not wait for another one.
        if let Some(mut shard) = self.shards[next].try_lock() {
            self.remove_idle(&mut shard, self.idle_since(clock), INSPECTIONS_PER_CHECK);
        }
    }

    /// Removes one partition key if it is idle, whether it is due or not.
    fn remove_if_idle(&self, shard: &mut KeyShard, key: &PartitionKey, clock: u64) {
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
}

#[cfg(test)]
mod tests {
    use super::{super::partition::KeySlot, *};
    use crate::policy::Policy;

    /// Otherwise, a counter beside a gate would take three times the memory of a counter.
    #[test]
    fn policy_without_usage_leaves_key_small() {
        let state = MemoryState::new(8, Clock::system(), Duration::ZERO, false);
        let counter = Policy::new("counter", 1, Duration::from_secs(60)).unwrap();
        let (gate, other) = (Policy::gate("gate").unwrap(), Policy::gate("other").unwrap());
        let check = |policies: &[&Policy], cost| {
            let key = PartitionKey::new("user", "alice");
            let pairs = policies.iter().map(|policy| Pair::new(key.clone(), (*policy).clone(), cost));
            Check::new(pairs.collect::<Vec<_>>()).unwrap()
        };
        let is_small = || {
            let shards = state.shards.iter().map(|shard| shard.lock());
            let sizes: Vec<bool> = shards
                .filter_map(|shard| Some(matches!(shard.slots.get(0)?, KeySlot::Small { .. })))
                .collect();
            assert_eq!(sizes.len(), 1);
            sizes[0]
        };
        let both = [&counter, &gate];
        assert!(state.learn(&check(&both, 1)).unwrap().is_admitted());
        assert!(is_small());
        assert!(!state.learn(&check(&both, 1)).unwrap().is_admitted());
        let _ = state.learn(&check(&[&gate, &counter], 0)).unwrap();
        let _ = state.learn(&check(&[&other, &gate], 1).with_purpose(Purpose::Peek)).unwrap();
        state.reset(&check(&[&gate, &other], 1));
        assert!(is_small());
        state.reset(&check(&[&counter], 1));
        assert_eq!(state.keys.load(Ordering::Relaxed), 0);
        assert!(state.learn(&check(&both, 1)).unwrap().is_admitted());
    }
}
