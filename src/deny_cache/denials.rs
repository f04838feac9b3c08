//! The denials that a limiter knows.

use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter, sync::Cache, sync::DefaultLifecycle};
use tokio::time::Instant;

use super::{
    DenyCache, Inquiry, Look,
    known::{Claim, Entry, Known, room},
};
use crate::{
    check::{Check, Pair, Purpose},
    decision::{Decision, Status},
    key::PartitionKey,
    policy::Policy,
};

/// How many locks there are for those who change what is known. Whoever only looks takes none of them.
const STRIPES: usize = 256;
/// How many parts the entries are in, each with a lock of its own; one if there are few.
const SHARDS: usize = 16;

/// The denials that a limiter knows.
pub(crate) struct Denials {
    max_age: Duration,
    entries: Cache<Place, Arc<Entry>>,
    /// How often something was evicted, here or elsewhere.
    evictions: AtomicU64,
    /// By the hash of a place, which eviction was the last one there. What was asked before it may not be entered after it.
    stripes: Box<[Mutex<u64>]>,
    hasher: RandomState,
    start: Instant,
    /// Until when, in microseconds from the start, something may be known; 0 before the first denial.
    horizon: AtomicU64,
}

/// Under what a pair is found. The quota is left out: what is used does not depend on it.
struct Place {
    key: PartitionKey,
    policy: Policy,
}

/// Forgets what is known of some pairs when it is made, and again when it is dropped: what was denied in between may have been
/// denied before the change that this stands for.
pub(crate) struct Evicting {
    denials: Arc<Denials>,
    places: Vec<Place>,
}

/// A pair that is known to deny.
struct Denied<'a> {
    pair: &'a Pair,
    known: Known,
    entry: Arc<Entry>,
    is_worth_asking: bool,
}

impl Denials {
    pub(crate) fn new(settings: DenyCache) -> Arc<Self> {
        let DenyCache { max_age, max_entries } = settings;
        // Parts are of one size, so it may be a few entries less, and never more.
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
            // It lacks nothing, so this is never taken.
            Err(_) => Cache::new(entries),
        };
        Arc::new(Self {
            max_age,
            entries,
            evictions: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            hasher: RandomState::new(),
            start: Instant::now(),
            horizon: AtomicU64::new(0),
        })
    }

    /// Whether a check is known to be denied.
    pub(crate) fn look(self: &Arc<Self>, check: &Check) -> Look {
        if !matches!(check.purpose(), Purpose::Charge | Purpose::Reserve) {
            return Look::Pass;
        }
        let Some(now) = self.now() else { return Look::Ask(Inquiry::new(self.clone(), None)) };
        let denied = self.denied(check, now);
        if denied.is_empty() {
            return Look::Ask(Inquiry::new(self.clone(), None));
        }
        // One that is sure to be denied for a while is enough.
        if denied.iter().all(|denied| denied.is_worth_asking) {
            let entries = denied.iter().map(|denied| denied.entry.clone()).collect();
            if let Some(claim) = Claim::of(entries) {
                return Look::Ask(Inquiry::new(self.clone(), Some(claim)));
            }
        }
        Look::Denied(decision(check, &denied, now))
    }

    /// The denial of a check, if it is known.
    pub(super) fn repeat(&self, check: &Check) -> Option<Decision> {
        let now = self.now()?;
        let denied = self.denied(check, now);
        (!denied.is_empty()).then(|| decision(check, &denied, now))
    }

    /// How often something was evicted so far: told before a check is sent, it tells what is too old to be entered.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::SeqCst)
    }

    /// Enters what a pair was denied, which was asked for when so much had been evicted.
    pub(super) fn enter(&self, pair: &Pair, known: Known, evictions: u64) {
        let place = Place::of(&pair.key, &pair.policy);
        let last_eviction = self.stripe(&place);
        if *last_eviction > evictions {
            return;
        }
        let old = self.entries.get(&place);
        let Some(entry) = Entry::with(old.as_deref(), known, self.max_age) else { return };
        self.entries.insert(place, Arc::new(entry));
        let until = known.until(self.max_age).saturating_duration_since(self.start);
        self.horizon.fetch_max(until.as_micros() as u64 + 1, Ordering::Release);
    }

    /// Forgets what is known of a pair if it is denied by that. The store has just admitted it.
    pub(super) fn refute(&self, pair: &Pair) {
        let place = Place::of(&pair.key, &pair.policy);
        let entry = self.entries.get(&place);
        if entry.is_some_and(|entry| entry.find(room(pair), Instant::now(), self.max_age).is_some()) {
            self.evict(&place);
        }
    }

    /// Forgets what is known of these pairs, now and when what is returned is dropped.
    pub(crate) fn evicting<'a>(
        self: &Arc<Self>,
        pairs: impl Iterator<Item = (&'a PartitionKey, &'a Policy)>,
    ) -> Evicting {
        let places = pairs.map(|(key, policy)| Place::of(key, policy)).collect();
        let evicting = Evicting { denials: self.clone(), places };
        evicting.evict();
        evicting
    }

    /// Forgets what is known of a place, and whatever was asked before now.
    fn evict(&self, place: &Place) {
        let eviction = self.evictions.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last_eviction = self.stripe(place);
        *last_eviction = eviction.max(*last_eviction);
        self.entries.remove(place);
    }

    /// The pairs of a check that are known to deny.
    fn denied<'a>(&self, check: &'a Check, now: Instant) -> Vec<Denied<'a>> {
        let pairs = check.pairs().iter().filter(|pair| pair.cost > 0);
        let denied = pairs.filter_map(|pair| {
            let entry = self.entries.get(&Place::of(&pair.key, &pair.policy))?;
            let found = entry.find(room(pair), now, self.max_age)?;
            Some(Denied { pair, known: found.known, entry, is_worth_asking: found.is_worth_asking })
        });
        denied.collect()
    }

    /// The time, if anything may be known then.
    fn now(&self) -> Option<Instant> {
        let horizon = self.horizon.load(Ordering::Acquire);
        if horizon == 0 {
            return None;
        }
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.start);
        (elapsed < Duration::from_micros(horizon)).then_some(now)
    }

    /// The lock that those take who change what is known of a place.
    fn stripe(&self, place: &Place) -> MutexGuard<'_, u64> {
        let index = self.hasher.hash_one(place) as usize % STRIPES;
        // Nothing that holds the lock can panic half-way, or wait.
        self.stripes[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is told of a check that these pairs deny.
fn decision(check: &Check, denied: &[Denied<'_>], now: Instant) -> Decision {
    let at_micros = denied.iter().map(|denied| denied.known.at_micros()).max().unwrap_or_default();
    let statuses: Box<[Status]> = denied.iter().map(|denied| denied.known.status(denied.pair, now)).collect();
    Decision::cached(at_micros, statuses, check.pairs().iter().map(|pair| pair.policy.clone()).collect())
}

impl Evicting {
    fn evict(&self) {
        for place in &self.places {
            self.denials.evict(place);
        }
    }
}

impl Drop for Evicting {
    fn drop(&mut self) {
        self.evict();
    }
}

impl Place {
    fn of(key: &PartitionKey, policy: &Policy) -> Self {
        Self { key: key.bounded(), policy: policy.clone() }
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.policy.counts_with(&other.policy) && self.key == other.key
    }
}

impl Eq for Place {}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.policy.name().hash(state);
        self.policy.window_micros().hash(state);
        self.policy.algorithm().hash(state);
    }
}
