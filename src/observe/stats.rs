//! Counters of a limiter as plain data, and the partition keys that are denied most.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{Counted, ServerBreaker};
use crate::{
    decision::{Decision, Status},
    error::Reason,
    key::{HashSecret, KeyHasher, PartitionKey},
    lock::Lock,
    per_thread::PerThread,
};

/// The counters of a limiter since it was built, for a health page. Clones of the limiter share them.
///
/// Peeks and debits do not count. Exempt requests and requests without a partition key are not checked and do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of checks that the backend has admitted.
    pub admitted: u64,
    /// The number of admitted checks that a [shadow policy](crate::Policy::shadow) would have denied. They count as admitted, too.
    pub shadow_denied: u64,
    /// The number of denied checks, including those from the deny cache. The denials of a request that [waits](crate::Limiter::wait) do
    /// not count, unless it is rejected in the end.
    pub denied: u64,
    /// The number of requests that [wait](crate::Limiter::wait) because they were denied, or have waited.
    pub delayed: u64,
    /// The number of denied checks that the deny cache has answered.
    pub denied_from_cache: u64,
    /// The number of checks without a decision, whatever the outage rule did with them. A check that cannot be made counts, too, and so does a
    /// request that is rejected because too many wait.
    pub unavailable: u64,
    /// The number of requests that were admitted without a check, because the outage rule is to fail open.
    pub unchecked: u64,
    /// The number of requests that the local fallback has admitted.
    pub local_fallback: u64,
    /// The number of checks without a decision for each reason that has occurred.
    pub reasons: Vec<(Reason, u64)>,
    /// The number of admitted checks that are [near the limit](crate::LimiterBuilder::near_limit) of at least one policy.
    pub near_limit: u64,
    /// The number of settlements that took effect, also of charges in the local fallback.
    pub settlements: u64,
    /// The number of lost settlements.
    pub lost_settlements: u64,
    /// The quota units that the store has [leased](crate::Policy::leased) to this process.
    pub leased_units: u64,
    /// The leased units that this process has granted, each without asking the store.
    pub leased_units_granted: u64,
    /// The leased units that were returned to the store.
    pub leased_units_returned: u64,
    /// The leased units that may be idle until they leave the window: an upper bound. Their return was not confirmed, or the lease
    /// request had no answer, so that `leased_units` does not count them.
    pub leased_units_lost: u64,
    /// The circuit breaker of each server. Limiters that share a backend share its breakers. Empty if the breaker is disabled. The
    /// breaker of a backend that answers at once, such as the memory, stays closed.
    pub breakers: Vec<ServerBreaker>,
}

/// A partition key that is denied often; see [`Limiter::most_denied`](crate::Limiter::most_denied) and
/// [`Limiter::most_shadow_denied`](crate::Limiter::most_shadow_denied).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedKey {
    /// The partition key, with the [region](crate::LimiterBuilder::region) as its first part. [`PartitionKey::parts`] returns its
    /// kinds and values. A key of more than 256 bytes is kept as a digest, which has no parts.
    pub key: PartitionKey,
    /// The pseudonym of the key, as in the `debug` events. `None` unless the limiter has [a secret for
    /// pseudonyms](crate::LimiterBuilder::pseudonyms).
    pub pseudonym: Option<String>,
    /// An upper bound of the number of denials of this key.
    pub denials: u64,
    /// The largest possible excess of `denials`. The key was denied at least `denials - excess` times.
    pub excess: u64,
}

/// The number of keys that the sketch keeps.
const KEPT: usize = 128;

/// The counters.
#[derive(Default)]
pub(crate) struct LimiterCounters {
    /// The only counter that most requests change.
    admitted: PerThread<AtomicU64>,
    shadow_denied: AtomicU64,
    denied: AtomicU64,
    denied_from_cache: AtomicU64,
    delayed: AtomicU64,
    near_limit: AtomicU64,
    /// By the discriminant of the subject.
    counted: [AtomicU64; Counted::NUMBER],
    reasons: [AtomicU64; Reason::ALL.len()],
    denied_keys: Lock<Sketch>,
    /// A list of its own: keys that are denied in shadow mode displace no others. It is empty until the first of them.
    shadow_denied_keys: Lock<Sketch>,
}

/// The space-saving sketch of Metwally, Agrawal and El Abbadi ("Efficient Computation of Frequent and Top-k Elements in Data
/// Streams", 2005): a new key replaces the key with the smallest count, and inherits this count as its possible excess. Every key
/// with more than one `KEPT`th of all denials is kept.
#[derive(Default)]
struct Sketch {
    indices: HashMap<PartitionKey, usize, BuildHasherDefault<KeyHasher>>,
    keys: Vec<DeniedKey>,
    /// The keyed hash and the index of the kept key that was counted last. A key is often denied again.
    last: Option<(u64, usize)>,
    /// No key has a smaller count: counts never fall.
    least: u64,
    /// The index of the key that was replaced last. Under a flood of new keys, the next one has the least count.
    replaced: usize,
}

impl LimiterCounters {
    /// Counts an admitted check. If a status `is_near`, it is near a limit.
    #[inline]
    pub(crate) fn admitted(&self, decision: &Decision, is_near: impl Fn(&Status) -> bool) {
        increment(self.admitted.local());
        if decision.statuses().iter().any(is_near) {
            increment(&self.near_limit);
        }
    }

    /// Counts a denied check, and a denial of this key. With a secret, returns the pseudonym of the key, from its second denial on: so a
    /// flood of new keys computes no hashes.
    #[inline]
    pub(crate) fn denied(
        &self,
        decision: &Decision,
        key: Option<&PartitionKey>,
        secret: Option<&HashSecret>,
    ) -> Option<String> {
        increment(&self.denied);
        if decision.is_cached() {
            increment(&self.denied_from_cache);
        }
        let mut sketch = self.denied_keys.lock();
        let kept = sketch.count(key?)?;
        if kept.pseudonym.is_none() && kept.denials - kept.excess > 1 {
            kept.pseudonym = secret.map(|secret| secret.pseudonym(&kept.key));
        }
        kept.pseudonym.clone()
    }

    /// Counts an admitted check that a shadow pair of this key would have denied.
    pub(super) fn shadow_denied(&self, key: Option<&PartitionKey>) {
        increment(&self.shadow_denied);
        if let Some(key) = key {
            self.shadow_denied_keys.lock().count(key);
        }
    }

    /// Counts a check without a decision.
    pub(crate) fn unavailable(&self, reason: Reason) {
        if let Some(reason) = self.reasons.get(reason as usize) {
            increment(reason);
        }
    }

    /// Counts a request that is rejected because its wait would be too long.
    pub(crate) fn wait_too_long(&self) {
        increment(&self.denied);
    }

    /// Counts the first denial of a request that waits.
    pub(crate) fn delayed(&self) {
        increment(&self.delayed);
    }

    /// Counts units, requests or settlements.
    pub(super) fn count(&self, what: Counted, number: u64) {
        self.counted[what as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// Returns the number that was counted.
    pub(crate) fn counted(&self, what: Counted) -> u64 {
        self.counted[what as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self, breakers: Vec<ServerBreaker>) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let reasons = Reason::ALL.iter().copied().zip(self.reasons.iter().map(count));
        let reasons: Vec<_> = reasons.filter(|(_, checks)| *checks > 0).collect();
        Stats {
            leased_units: self.counted(Counted::UnitsCharged),
            leased_units_granted: self.counted(Counted::UnitsGranted),
            leased_units_returned: self.counted(Counted::UnitsReturned),
            leased_units_lost: self.counted(Counted::UnitsLost),
            admitted: self.admitted.iter().map(count).sum(),
            shadow_denied: count(&self.shadow_denied),
            denied: count(&self.denied),
            denied_from_cache: count(&self.denied_from_cache),
            delayed: count(&self.delayed),
            unchecked: self.counted(Counted::Unchecked),
            local_fallback: self.counted(Counted::LocalFallback),
            unavailable: reasons.iter().map(|(_, checks)| checks).sum(),
            reasons,
            near_limit: count(&self.near_limit),
            settlements: self.counted(Counted::Settled),
            lost_settlements: self.counted(Counted::SettlementLost),
            breakers,
        }
    }

    /// Returns the keys that were denied most, or that shadow pairs would have denied most, at most `max` and at most 128.
    pub(super) fn most_denied(&self, is_shadow: bool, max: usize) -> Vec<DeniedKey> {
        let sketch = if is_shadow { &self.shadow_denied_keys } else { &self.denied_keys };
        let mut keys = sketch.lock().keys.clone();
        keys.sort_by_key(|key| std::cmp::Reverse(key.denials));
        keys.truncate(max);
        keys
    }
}

#[inline]
fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Sketch {
    /// Counts a denial. Returns the kept key, unless it is new.
    fn count(&mut self, key: &PartitionKey) -> Option<&mut DeniedKey> {
        let hash = key.hash_code();
        let index = match self.last {
            // A hash of 64 bits that equals that of the last key means the same key: a client cannot choose a collision.
            Some((last, index)) if last == hash => index,
            _ => {
                let key = key.bounded();
                let Some(&index) = self.indices.get(&*key) else {
                    self.add(key.into_owned());
                    return None;
                };
                self.last = Some((hash, index));
                index
            }
        };
        let kept = self.keys.get_mut(index)?;
        kept.denials += 1;
        Some(kept)
    }

    /// Counts a denial of a key that is not kept.
    fn add(&mut self, key: PartitionKey) {
        // The key may replace the last one.
        self.last = None;
        let new = DeniedKey { key: key.clone(), pseudonym: None, denials: 1, excess: 0 };
        if self.keys.len() < KEPT {
            self.indices.insert(key, self.keys.len());
            self.keys.push(new);
            return;
        }
        let index = self.with_least(self.replaced).or_else(|| {
            self.least = self.keys.iter().map(|kept| kept.denials).min().unwrap_or_default();
            self.with_least(0)
        });
        if let Some(index) = index
            && let Some(kept) = self.keys.get_mut(index)
        {
            let excess = kept.denials;
            let replaced = std::mem::replace(kept, DeniedKey { denials: excess + 1, excess, ..new });
            self.indices.remove(&replaced.key);
            self.indices.insert(key, index);
            self.replaced = index;
        }
    }

    /// Returns the index of a key with the least count, from this index on.
    fn with_least(&self, from: usize) -> Option<usize> {
        let mut indices = from..self.keys.len();
        indices.find(|index| self.keys.get(*index).is_some_and(|kept| kept.denials <= self.least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some keys that are often denied, among many rare ones, compared with a count of all keys.
    #[test]
    fn sketch_replaces_key_with_smallest_count() {
        let (mut sketch, mut counts) = (Sketch::default(), HashMap::<PartitionKey, u64>::new());
        for n in 0_u64..20_000 {
            // Up to 200 keys at first, then new ones between those.
            let number = if n % 3 == 0 { n * n % 1_009 % 200 } else { n % (200 + n / 10) };
            // Some keys are so long that their digests are kept.
            let length = if number % 5 == 0 { 300 } else { 1 };
            let denied = PartitionKey::new("user", number.to_string().repeat(length));
            let key = denied.bounded().into_owned();
            let least = sketch.keys.iter().map(|kept| kept.denials).min().unwrap_or_default();
            let (is_kept, is_full) = (sketch.indices.contains_key(&key), sketch.keys.len() == KEPT);
            sketch.count(&denied);
            *counts.entry(key.clone()).or_default() += 1;
            if !is_kept {
                let excess = if is_full { least } else { 0 };
                let kept = sketch.keys.iter().find(|kept| kept.key == key).unwrap();
                assert_eq!((kept.denials, kept.excess), (excess + 1, excess), "denial {n}");
            }
            assert_eq!(sketch.keys.iter().map(|kept| kept.denials).sum::<u64>(), n + 1);
            for kept in &sketch.keys {
                assert!((kept.denials - kept.excess..=kept.denials).contains(&counts[&kept.key]));
            }
            assert_eq!(
                (sketch.indices.len(), sketch.keys.len()),
                (sketch.keys.len(), counts.len().min(KEPT))
            );
        }
        assert!(counts.len() > 1_000 && sketch.least > 50, "{} keys, {}", counts.len(), sketch.least);
    }

    #[test]
    fn sketch_forgets_last_key_that_is_replaced() {
        let mut sketch = Sketch::default();
        let key = |number: usize| PartitionKey::new("user", number.to_string());
        // The first key is the last one, too, and no key has a smaller count.
        for number in (0..KEPT).chain(1..KEPT).chain([0]) {
            sketch.count(&key(number));
        }
        // The new key replaces the first one, which then replaces another.
        for number in [KEPT, 0] {
            sketch.count(&key(number));
        }
        let kept = |number| sketch.keys.iter().find(|kept| kept.key == key(number)).unwrap();
        assert_eq!([KEPT, 0].map(|number| (kept(number).denials, kept(number).excess)), [(3, 2), (3, 2)]);
    }
}
