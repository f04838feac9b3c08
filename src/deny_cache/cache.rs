//! The entries of a deny cache.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::{
        Arc, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, sync::Cache, sync::DefaultLifecycle};
use tokio::time::Instant;

use super::{
    CacheMicros, DenyCacheConfig,
    cached_pair::{ANY_AGE, CachedPair, Denial, Found, room},
    revalidation::Permission,
};
use crate::{
    check::{Check, KnownDenials, MAX_PAIRS, Namespace, Pair, PairKey},
    decision::{Decision, PartialSource},
    lock::Lock,
    policy::Policy,
};

/// The number of locks for changes. A lookup takes none of them.
const STRIPES: usize = 128;
/// The number of shards of the entries, each with a lock of its own. A small cache has one shard.
const SHARDS: usize = 16;
/// The largest number of other rates, zones and anchors under which the denials of a pair are known.
const MAX_OTHERS: usize = 4;
/// The bytes of an entry that counts as one.
const ENTRY_BYTES: usize = 640;
/// The bytes of an entry beside its key and its known waits, at most. Some 320 are used, and the tables of the cache have more room
/// than for its entries.
const FIXED_BYTES: usize = 435;
/// The time at which a cache is created. Every age can be subtracted from it.
const ORIGIN: CacheMicros = 3_600_000_000;

/// The known denials of a limiter. Until the maximum age, they are repeated instead of asking the store. Until their waits have passed,
/// they are repeated if the store makes no decision.
pub(crate) struct DenyCache {
    /// In microseconds. 0 if the deny cache is off.
    pub(super) max_age: u64,
    namespace: Namespace,
    entries: Cache<PairKey, Entries, EntryWeighter>,
    /// The number of invalidations so far.
    invalidations: AtomicU64,
    /// The last invalidations, by the hash of a pair.
    stripes: Box<[Lock<Stripe>]>,
    /// Unknown to clients, so that they cannot choose keys of one stripe. It is the age of the cache at its first denial in
    /// nanoseconds, which never repeats. But a simulated network must repeat a run exactly, and there the age is always the same.
    salt: OnceLock<u128>,
    start: Instant,
    /// When all entries have reached the maximum age. 0 before the first denial.
    horizon: AtomicU64,
    /// When all known waits have passed.
    waits_end: AtomicU64,
}

/// The entries of a pair, the latest one last. A denial holds only under its own rate, zone and anchor, so each of them has an entry.
type Entries = Arc<[(Policy, CachedPair)]>;

/// One of the entries of a pair.
pub(super) struct CachedEntry {
    all: Entries,
    index: usize,
}

/// The weight of the entries of a pair by their bytes, so that long keys and many costs take no more memory than many short entries.
#[derive(Clone)]
struct EntryWeighter {
    /// Half of a shard. The cache rejects an entry that weighs more.
    max: u64,
}

impl Weighter<PairKey, Entries> for EntryWeighter {
    fn weight(&self, pair: &PairKey, entries: &Entries) -> u64 {
        let of_entries = entries.iter().map(|(_, entry)| FIXED_BYTES + entry.known_bytes());
        let bytes = pair.key_bytes() + of_entries.sum::<usize>();
        (bytes.div_ceil(ENTRY_BYTES) as u64).min(self.max)
    }
}

/// The numbers of the last invalidations of some pairs. A denial that was asked for before the last one of its pair must not be
/// entered.
///
/// A check across slots that is denied in one slot is rolled back in the others, and that invalidates their pairs. If one of these pairs
/// shared its number with the denied pair, the denial would never be entered.
#[derive(Default)]
struct Stripe {
    /// The hash of the pair that was invalidated last.
    pair: u64,
    /// The number of its last invalidation.
    last: u64,
    /// That of the last invalidation of any other pair.
    others: u64,
}

/// A pair with a cached denial.
pub(super) struct Denied<'a> {
    pair: &'a Pair,
    pub(super) entry: CachedEntry,
    pub(super) found: Found,
}

impl DenyCache {
    /// Returns the empty store of the denials of a limiter. Without settings, the deny cache is off.
    pub(crate) fn new(settings: Option<DenyCacheConfig>, namespace: Namespace) -> Arc<Self> {
        let off = DenyCacheConfig { max_age: Duration::ZERO, ..DenyCacheConfig::default() };
        let DenyCacheConfig { max_age, max_entries } = settings.unwrap_or(off);
        // All shards have one size, so there may be a few entries less than the bound.
        let shards = if max_entries < 32 * SHARDS { 1 } else { SHARDS };
        let entries = max_entries - max_entries % shards;
        let weighter = EntryWeighter { max: (entries / shards / 2).max(1) as u64 };
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(entries)
            .weight_capacity(entries as u64)
            // A flood of pairs that are denied once takes turns in the other half.
            .hot_allocation(0.5)
            .build();
        let entries = match options {
            Ok(options) => Cache::with_options(
                options,
                weighter,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            // All options are set, so this cannot fail.
            Err(_) => Cache::with_weighter(entries, entries as u64, weighter),
        };
        let denials = Arc::new(Self {
            max_age: max_age.as_micros() as u64,
            namespace,
            entries,
            invalidations: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Lock::default()).collect(),
            salt: OnceLock::new(),
            start: Instant::now(),
            horizon: AtomicU64::new(0),
            waits_end: AtomicU64::new(0),
        });
        denials.namespace.add_known_denials(Arc::<Self>::downgrade(&denials));
        denials
    }

    /// Returns the denial of a check from its entries, of any age. The wait has not passed.
    pub(crate) fn repeat(&self, check: &Check) -> Option<Decision> {
        if self.horizon.load(Ordering::Acquire) == 0 {
            return None;
        }
        let now = self.micros(Instant::now());
        let denied = self.denied(check, now, ANY_AGE);
        (!denied.is_empty()).then(|| decision(check, &denied, now))
    }

    /// Returns the number of invalidations so far. Read before a check is sent, it shows which denials are too old to enter.
    pub(super) fn invalidations(&self) -> u64 {
        self.invalidations.load(Ordering::SeqCst)
    }

    /// Enters the denial of a pair that was asked for after this number of invalidations.
    pub(super) fn enter(
        &self,
        pair: &Pair,
        denial: Denial,
        invalidations: u64,
        permission: Option<&Permission>,
    ) {
        let pair_key = PairKey::new(&pair.key, &pair.policy);
        let (stripe, hash) = self.stripe(&pair_key);
        if stripe.last_invalidation(hash) > invalidations {
            return;
        }
        let until = denial.usage.sent + self.max_age;
        let old = self.entry(&pair_key);
        if let Some(old) = &old
            && !permission.is_some_and(|permission| permission.covers(&old.revalidation))
        {
            old.revalidation.record(denial.usage.sent);
        }
        let now = self.micros(Instant::now());
        let Some(entry) = CachedPair::with(old.as_deref(), denial, now, self.max_age) else { return };
        self.waits_end.fetch_max(entry.waits_end(), Ordering::Release);
        self.insert(pair_key, entry);
        self.horizon.fetch_max(until, Ordering::Release);
    }

    /// Learns that the store admits a pair. This invalidates an entry that denies it, if the entry was known when the check was sent, or
    /// the store denied the pair before.
    pub(super) fn admitted(&self, pair: &Pair, decision: &Decision, was_known: bool) {
        let Some(now) = self.now_before(&self.waits_end) else { return };
        let pair_key = PairKey::new(&pair.key, &pair.policy);
        let is_later = |entry: &CachedPair| !decision.is_divided() && entry.newest.at < decision.at_micros();
        let contradicts = |entry: CachedEntry| {
            (was_known || is_later(&entry)) && entry.find(room(pair), now, ANY_AGE).is_some()
        };
        if self.entry(&pair_key).is_some_and(contradicts) {
            self.replace(&pair_key, CachedPair::invalidated);
        }
    }

    /// Learns that the store has charged a pair: its waits may be longer now.
    pub(super) fn charged(&self, pair: &Pair) {
        if self.now().is_none() {
            return;
        }
        let pair_key = PairKey::new(&pair.key, &pair.policy);
        let is_exact = |(_, entry): &(Policy, CachedPair)| entry.charged().is_some();
        if self.entries.get(&pair_key).is_some_and(|entries| entries.iter().any(is_exact)) {
            let _stripe = self.stripe(&pair_key);
            self.change(&pair_key, |entry| entry.charged().unwrap_or_else(|| entry.clone()));
        }
    }

    /// Returns, for each pair of a check, whether the store has denied it in a check that was sent within the last maximum age,
    /// even if the wait has passed since, or the denial is invalidated. Not known if the deny cache is off.
    pub(crate) fn recently_denied(&self, check: &Check) -> Option<[bool; MAX_PAIRS]> {
        if self.max_age == 0 {
            return None;
        }
        let mut denied = [false; MAX_PAIRS];
        let Some(now) = self.now() else { return Some(denied) };
        for (denied, pair) in denied.iter_mut().zip(check.pairs()) {
            let may_deny = pair.cost > 0 && !pair.is_shadow;
            let entry = self.entry(&PairKey::new(&pair.key, &pair.policy)).filter(|_| may_deny);
            *denied = entry.is_some_and(|entry| now < entry.newest.sent + self.max_age);
        }
        Some(denied)
    }

    /// Returns the entry of a pair under the rate, the zone and the anchor of its policy.
    fn entry(&self, pair_key: &PairKey) -> Option<CachedEntry> {
        let (all, own) = (self.entries.get(pair_key)?, pair_key.policy().algorithm());
        let index = all.iter().position(|(policy, _)| policy.algorithm() == own)?;
        Some(CachedEntry { all, index })
    }

    /// Inserts the entry of a pair beside those under other rates, zones and anchors. The caller holds the lock of the pair.
    fn insert(&self, pair_key: PairKey, entry: CachedPair) {
        let (own, stored) = (pair_key.policy().clone(), self.entries.get(&pair_key));
        let others = stored.iter().flat_map(|entries| entries.iter());
        let mut entries: Vec<_> =
            others.filter(|(policy, _)| policy.algorithm() != own.algorithm()).cloned().collect();
        if entries.len() > MAX_OTHERS {
            entries.remove(0);
        }
        entries.push((own, entry));
        self.entries.insert(pair_key, entries.into());
    }

    /// Invalidates all entries of a pair, and every denial that was asked for before.
    fn replace(&self, pair_key: &PairKey, with: impl Fn(&CachedPair) -> CachedPair) {
        let (mut stripe, hash) = self.stripe(pair_key);
        // Under the lock, so that the numbers of a stripe grow.
        stripe.invalidate(hash, self.invalidations.fetch_add(1, Ordering::SeqCst) + 1);
        self.change(pair_key, with);
    }

    /// Changes all entries of a pair. The caller holds the lock of the pair.
    fn change(&self, pair_key: &PairKey, with: impl Fn(&CachedPair) -> CachedPair) {
        if let Some(entries) = self.entries.get(pair_key) {
            let changed = entries.iter().map(|(policy, entry)| (policy.clone(), with(entry)));
            self.entries.insert(pair_key.clone(), changed.collect());
        }
    }

    /// Returns the enforcing pairs of a check with a denial that is younger than this age.
    pub(super) fn denied<'a>(&self, check: &'a Check, now: CacheMicros, max_age: u64) -> Vec<Denied<'a>> {
        let pairs = check.pairs().iter().filter(|pair| pair.cost > 0 && !pair.is_shadow);
        let denied = pairs.filter_map(|pair| {
            let entry = self.entry(&PairKey::new(&pair.key, &pair.policy))?;
            let found = entry.find(room(pair), now, max_age)?;
            Some(Denied { pair, entry, found })
        });
        denied.collect()
    }

    /// Returns the time, or `None` if all entries have reached the maximum age.
    pub(super) fn now(&self) -> Option<CacheMicros> {
        self.now_before(&self.horizon)
    }

    /// Returns the time, or `None` if this end has come, or is 0.
    fn now_before(&self, end: &AtomicU64) -> Option<CacheMicros> {
        let end = end.load(Ordering::Acquire);
        if end == 0 {
            return None;
        }
        let now = self.micros(Instant::now());
        (now < end).then_some(now)
    }

    /// Returns an instant as a number, rounded down.
    pub(super) fn micros(&self, instant: Instant) -> CacheMicros {
        ORIGIN + instant.saturating_duration_since(self.start).as_micros() as u64
    }

    /// Returns the lock for changes of an entry, and the hash of its pair.
    fn stripe(&self, pair_key: &PairKey) -> (MutexGuard<'_, Stripe>, u64) {
        let mut hasher = DefaultHasher::new();
        self.salt.get_or_init(|| self.start.elapsed().as_nanos()).hash(&mut hasher);
        pair_key.hash_reproducibly(&mut hasher);
        let hash = hasher.finish();
        let stripe = self.stripes[hash as usize % STRIPES].lock();
        (stripe, hash)
    }
}

impl Deref for CachedEntry {
    type Target = CachedPair;

    fn deref(&self) -> &CachedPair {
        let (_, entry) = &self.all[self.index];
        entry
    }
}

impl Stripe {
    /// Returns the number of the last invalidation of a pair, or a later one.
    fn last_invalidation(&self, pair: u64) -> u64 {
        if self.pair == pair { self.last } else { self.others }
    }

    /// Notes an invalidation. Its number is larger than all before.
    fn invalidate(&mut self, pair: u64, number: u64) {
        if self.pair != pair {
            (self.pair, self.others) = (pair, self.last);
        }
        self.last = number;
    }
}

/// Builds the denial of a check from the pairs that deny it.
pub(super) fn decision(check: &Check, denied: &[Denied<'_>], now: CacheMicros) -> Decision {
    let at_micros = denied.iter().map(|denied| denied.entry.newest.at).max().unwrap_or_default();
    let statuses = check.pairs().iter().map(|pair| {
        let denied = denied.iter().find(|denied| std::ptr::eq(denied.pair, pair))?;
        Some(denied.entry.status(pair, &denied.found, now))
    });
    Decision::partial(PartialSource::Cache, at_micros, statuses, Vec::new(), check)
}

impl KnownDenials for DenyCache {
    fn invalidate(&self, pair: &PairKey, is_certain: bool) {
        self.replace(pair, if is_certain { CachedPair::invalidated } else { CachedPair::expired });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::Invalidation,
        decision::{Status, Wait},
        key::PartitionKey,
        policy::Policy,
    };

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn denial_is_recent_until_max_age() {
        let denials = DenyCache::new(
            Some(DenyCacheConfig { max_age: SECOND, max_entries: 8 }),
            Namespace::default().in_unnamed_store(),
        );
        let policy = Policy::new("p", 5, 10 * SECOND).unwrap();
        let check = |user| {
            let key = PartitionKey::new("user", user);
            Check::new([Pair::new(key, policy.clone(), 1)]).unwrap()
        };
        let asked = check("a");
        let pair = &asked.pairs()[0];
        let was_denied = |key| denials.recently_denied(&check(key)).unwrap().contains(&true);
        assert!(!was_denied("a"));
        let wait = SECOND / 10;
        let status = Status::new(pair, 0, Wait::For(wait), wait, wait);
        denials.enter(pair, Denial::new(pair, &status, denials.micros(Instant::now()), 0, false), 0, None);
        // Neither the end of the wait nor an invalidation changes when the pair was denied.
        tokio::time::advance(SECOND / 2).await;
        assert!(denials.repeat(&check("a")).is_none());
        assert!(was_denied("a") && !was_denied("b"));
        drop(Invalidation::begin(&denials.namespace, [(&pair.key, &pair.policy)].into_iter(), true));
        assert!(was_denied("a"));
        tokio::time::advance(SECOND / 2).await;
        assert!(!was_denied("a"));
    }

    /// The rollback of a check invalidates the pairs that were charged, before the denial of another pair is entered.
    #[tokio::test(start_paused = true)]
    async fn invalidation_of_other_pair_keeps_denial() {
        let denials =
            DenyCache::new(Some(DenyCacheConfig::default()), Namespace::default().in_unnamed_store());
        let policy = Policy::new("p", 5, 10 * SECOND).unwrap();
        let check = |user: usize| {
            let key = PartitionKey::new("user", user.to_string());
            Check::new([Pair::new(key, policy.clone(), 1)]).unwrap()
        };
        let invalidate = |check: &Check| {
            let pair = &check.pairs()[0];
            drop(Invalidation::begin(&denials.namespace, [(&pair.key, &pair.policy)].into_iter(), true));
        };
        let hash = |check: &Check| denials.stripe(&PairKey::new(&check.pairs()[0].key, &policy)).1;
        let mut of_one_stripe = (0..).map(check).filter(|check| hash(check) % STRIPES as u64 == 0);
        let [denied, other, third] = std::array::from_fn(|_| of_one_stripe.next().unwrap());
        let enter = |asked_after| {
            let pair = &denied.pairs()[0];
            let status = Status::new(pair, 0, Wait::For(SECOND), SECOND, SECOND);
            let denial = Denial::new(pair, &status, denials.micros(Instant::now()), 0, false);
            denials.enter(pair, denial, asked_after, None);
            denials.repeat(&denied).is_some()
        };
        let before = denials.invalidations();
        invalidate(&other);
        invalidate(&other);
        assert!(enter(before));
        // One of the pair itself counts, also after others.
        for others in [vec![], vec![&other], vec![&other, &third], vec![&other, &denied, &other]] {
            let before = denials.invalidations();
            invalidate(&denied);
            others.into_iter().for_each(invalidate);
            assert!(!enter(before));
            assert!(enter(denials.invalidations()));
        }
    }
}
