//! The entries of a deny cache.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter, sync::Cache, sync::DefaultLifecycle};
use tokio::time::Instant;

use super::{
    DenyCache,
    entry::{Entry, Known, room},
};
use crate::{
    check::{Check, Pair},
    decision::{Decision, Status},
    key::PartitionKey,
    policy::Policy,
};

/// The number of locks for changes. A lookup takes none of them.
const STRIPES: usize = 256;
/// The number of shards of the entries, each with a lock of its own. A small cache has one shard.
const SHARDS: usize = 16;

/// The cached denials of a limiter.
pub(crate) struct Denials {
    max_age: Duration,
    entries: Cache<PairKey, Arc<Entry>>,
    /// The number of invalidations so far.
    invalidations: AtomicU64,
    /// The number of the last invalidation, by the hash of a pair. A denial that was asked for earlier must not be entered.
    stripes: Box<[Mutex<u64>]>,
    /// Unknown to clients, so that they cannot choose keys of one stripe. It is the age of the cache at its first denial in
    /// nanoseconds, which never repeats. But a simulated network must repeat a run exactly, and there the age is always the same.
    salt: OnceLock<u128>,
    start: Instant,
    /// The end of the last entry, in microseconds from the start. 0 before the first denial.
    horizon: AtomicU64,
}

/// The key of an entry. The quota is not a part of it, because usage does not depend on the quota.
struct PairKey {
    key: PartitionKey,
    policy: Policy,
}

/// Invalidates the entries of some pairs when it is created and again when it is dropped, because a denial in between may have
/// been decided before the change that it guards.
pub(crate) struct Invalidation {
    denials: Arc<Denials>,
    pair_keys: Vec<PairKey>,
}

/// A pair with a cached denial.
pub(super) struct Denied<'a> {
    pair: &'a Pair,
    known: Known,
    pub(super) entry: Arc<Entry>,
    pub(super) needs_refresh: bool,
}

impl Denials {
    pub(crate) fn new(settings: DenyCache) -> Arc<Self> {
        let DenyCache { max_age, max_entries } = settings;
        // All shards have one size, so there may be a few entries less than the bound.
        let shards = if max_entries < 32 * SHARDS { 1 } else { SHARDS };
        let entries = max_entries - max_entries % shards;
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(entries)
            .weight_capacity(entries as u64)
            .build();
        let entries = match options {
            Ok(options) => Cache::with_options(
                options,
                UnitWeighter,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            // All options are set, so this cannot fail.
            Err(_) => Cache::new(entries),
        };
        Arc::new(Self {
            max_age,
            entries,
            invalidations: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            salt: OnceLock::new(),
            start: Instant::now(),
            horizon: AtomicU64::new(0),
        })
    }

    /// Returns the denial of a check from its entries.
    pub(super) fn repeat(&self, check: &Check) -> Option<Decision> {
        let now = self.now()?;
        let denied = self.denied(check, now);
        (!denied.is_empty()).then(|| decision(check, &denied, now))
    }

    /// Returns the number of invalidations so far. Read before a check is sent, it shows which denials are too old to enter.
    pub(super) fn invalidations(&self) -> u64 {
        self.invalidations.load(Ordering::SeqCst)
    }

    /// Enters the denial of a pair that was asked for after this number of invalidations.
    pub(super) fn enter(&self, pair: &Pair, known: Known, invalidations: u64) {
        let pair_key = PairKey::of(&pair.key, &pair.policy);
        let last_invalidation = self.stripe(&pair_key);
        if *last_invalidation > invalidations {
            return;
        }
        let old = self.entries.get(&pair_key);
        let Some(entry) = Entry::with(old.as_deref(), known, self.max_age) else { return };
        self.entries.insert(pair_key, Arc::new(entry));
        let until = known.until(self.max_age).saturating_duration_since(self.start);
        self.horizon.fetch_max(until.as_micros() as u64 + 1, Ordering::Release);
    }

    /// Invalidates the entry of a pair that it denies, because the store has just admitted the pair.
    pub(super) fn invalidate_if_denied(&self, pair: &Pair) {
        let pair_key = PairKey::of(&pair.key, &pair.policy);
        let entry = self.entries.get(&pair_key);
        if entry.is_some_and(|entry| entry.find(room(pair), Instant::now(), self.max_age).is_some()) {
            self.remove(&pair_key);
        }
    }

    /// Invalidates the entries of these pairs now and when the returned guard is dropped.
    pub(crate) fn invalidate<'a>(
        self: &Arc<Self>,
        pairs: impl Iterator<Item = (&'a PartitionKey, &'a Policy)>,
    ) -> Invalidation {
        let pair_keys = pairs.map(|(key, policy)| PairKey::of(key, policy)).collect();
        let invalidate = Invalidation { denials: self.clone(), pair_keys };
        invalidate.invalidate_now();
        invalidate
    }

    /// Returns whether a pair of this check was denied within the largest age, even if its wait has passed.
    pub(crate) fn was_denied_recently(&self, check: &Check) -> bool {
        let Some(now) = self.now() else { return false };
        !self.denied(check, now).is_empty()
    }

    /// Invalidates one entry, and every denial that was asked for before.
    fn remove(&self, pair_key: &PairKey) {
        let invalidation = self.invalidations.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last_invalidation = self.stripe(pair_key);
        *last_invalidation = invalidation.max(*last_invalidation);
        self.entries.remove(pair_key);
    }

    /// Returns the pairs of a check with a cached denial.
    pub(super) fn denied<'a>(&self, check: &'a Check, now: Instant) -> Vec<Denied<'a>> {
        let pairs = check.pairs().iter().filter(|pair| pair.cost > 0);
        let denied = pairs.filter_map(|pair| {
            let entry = self.entries.get(&PairKey::of(&pair.key, &pair.policy))?;
            let found = entry.find(room(pair), now, self.max_age)?;
            Some(Denied { pair, known: found.known, entry, needs_refresh: found.needs_refresh })
        });
        denied.collect()
    }

    /// Returns the time, or `None` if all entries have expired.
    pub(super) fn now(&self) -> Option<Instant> {
        let horizon = self.horizon.load(Ordering::Acquire);
        if horizon == 0 {
            return None;
        }
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.start);
        (elapsed < Duration::from_micros(horizon)).then_some(now)
    }

    /// Returns the lock for changes of an entry.
    fn stripe(&self, pair_key: &PairKey) -> MutexGuard<'_, u64> {
        let mut hasher = DefaultHasher::new();
        self.salt.get_or_init(|| self.start.elapsed().as_nanos()).hash(&mut hasher);
        pair_key.hash(&mut hasher);
        let index = hasher.finish() as usize % STRIPES;
        // No code that holds the lock can panic or wait.
        self.stripes[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Builds the denial of a check from the pairs that deny it.
pub(super) fn decision(check: &Check, denied: &[Denied<'_>], now: Instant) -> Decision {
    let at_micros = denied.iter().map(|denied| denied.known.at_micros()).max().unwrap_or_default();
    let statuses: Box<[Status]> = denied.iter().map(|denied| denied.known.status(denied.pair, now)).collect();
    Decision::cached(at_micros, statuses, check.pairs().iter().map(|pair| pair.policy.clone()).collect())
}

impl Invalidation {
    fn invalidate_now(&self) {
        for pair_key in &self.pair_keys {
            self.denials.remove(pair_key);
        }
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.invalidate_now();
    }
}

impl PairKey {
    fn of(key: &PartitionKey, policy: &Policy) -> Self {
        Self { key: key.bounded(), policy: policy.clone() }
    }
}

impl PartialEq for PairKey {
    fn eq(&self, other: &Self) -> bool {
        self.policy.counts_with(&other.policy) && self.key == other.key
    }
}

impl Eq for PairKey {}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.policy.name().hash(state);
        self.policy.window_micros().hash(state);
        self.policy.algorithm().hash(state);
    }
}
