//! Releases: units in flight that end, refunds and resets. They wake the requests of this process that wait for them.
//!
//! A release wakes the first request that the pair has denied. This request asks the store. If its decision leaves room for another one,
//! it wakes the request behind it that this room suffices for. If it is denied, it does so again when it is admitted or leaves. So no
//! release is lost at a request that another pair denies, or that needs more units.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Pair,
    namespace::{Listeners, Namespace, NeededUnits, PairKey, ReleaseSignal},
};
use crate::{foreign::contain, key::PartitionKey, policy::Policy};

/// A request that waits for a release of a pair. A release since its creation counts.
pub(crate) struct ReleaseListener {
    namespace: Namespace,
    pair: PairKey,
    needs: NeededUnits,
    /// Its place in the order of the listeners.
    number: u64,
    /// Whether the request asks because of a release.
    has_release: bool,
}

impl ReleaseListener {
    pub(crate) fn new(namespace: &Namespace, pair: &Pair, signal: &Arc<ReleaseSignal>) -> Self {
        let needs = NeededUnits { quota: pair.policy.quota_units(), cost: pair.cost };
        let (namespace, pair) = (namespace.clone(), PairKey::new(&pair.key, &pair.policy));
        let mut awaited = namespace.awaited().lock();
        let listeners = awaited.entry(pair.clone()).or_default();
        let number = listeners.all.last_key_value().map_or(0, |(last, _)| last + 1);
        listeners.all.insert(number, signal.clone());
        listeners.set_waiting(number, needs, true);
        drop(awaited);
        Self { namespace, pair, needs, number, has_release: false }
    }

    /// States that the request asks the store now: its decision counts all releases until now.
    pub(crate) fn asks(&mut self) {
        self.has_release |= self.take_release(true);
    }

    /// Learns from the decision of the request whether a release may admit it, because this pair denies it, and how many units remain. If
    /// a release has caused it, wakes the next request that has room. A request that is denied keeps the release: it wakes others when it is
    /// admitted or leaves.
    pub(crate) fn decided(&mut self, is_denied: bool, remaining: u32) {
        let has_release = self.has_release;
        self.has_release = has_release && is_denied;
        if !is_denied && self.take_release(false) {
            // The decision may not have counted it.
            self.wake_next(|_| true);
        } else if has_release {
            let total = u64::from(remaining) + u64::from(u32::MAX - self.needs.quota);
            // Of a higher quota, more units remain.
            self.wake_next(|needs| u64::from(needs.cost) + u64::from(u32::MAX - needs.quota) <= total);
        }
    }

    /// Notes whether a release may admit the request. Returns whether one has woken it.
    fn take_release(&self, waits: bool) -> bool {
        let mut awaited = self.namespace.awaited().lock();
        let Some(listeners) = awaited.get_mut(&self.pair) else { return false };
        listeners.set_waiting(self.number, self.needs, waits);
        let is_woken = listeners.woken.remove(&self.number);
        if is_woken && let Some(signal) = listeners.all.get(&self.number) {
            signal.woken.fetch_sub(1, Ordering::SeqCst);
        }
        is_woken
    }

    /// Wakes the first request behind this one that may have room.
    fn wake_next(&self, may_fit: impl Fn(&NeededUnits) -> bool) {
        self.namespace.wake(&self.pair, |listeners| listeners.wake(self.number + 1, may_fit));
    }
}

impl Drop for ReleaseListener {
    fn drop(&mut self) {
        let mut awaited = self.namespace.awaited().lock();
        let Some(listeners) = awaited.get_mut(&self.pair) else { return };
        listeners.all.remove(&self.number);
        let is_woken = listeners.woken.remove(&self.number);
        listeners.set_waiting(self.number, self.needs, false);
        let is_empty = listeners.all.is_empty();
        if is_empty {
            awaited.remove(&self.pair);
        }
        drop(awaited);
        // No decision has counted the release.
        if !is_empty && (self.has_release || is_woken) {
            self.wake_next(|_| true);
        }
    }
}

impl Listeners {
    /// Notes whether a release may wake a listener with these needs: it asks, or the pair has denied it.
    fn set_waiting(&mut self, number: u64, needs: NeededUnits, waits: bool) {
        if waits {
            self.waiting.entry(needs).or_default().insert(number);
        } else if let Some(numbers) = self.waiting.get_mut(&needs) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.waiting.remove(&needs);
            }
        }
    }

    /// Marks the first listener from a number on that waits, may fit and is not woken yet. Returns what wakes it.
    fn wake(&mut self, from: u64, may_fit: impl Fn(&NeededUnits) -> bool) -> Option<Arc<ReleaseSignal>> {
        let fitting = self.waiting.iter().filter(|(needs, _)| may_fit(needs));
        let first = fitting.filter_map(|(needs, numbers)| Some((*numbers.range(from..).next()?, *needs)));
        let (number, needs) = first.min()?;
        self.set_waiting(number, needs, false);
        let signal = self.all.get(&number)?;
        self.woken.insert(number);
        signal.woken.fetch_add(1, Ordering::SeqCst);
        Some(signal.clone())
    }

    /// Returns whether the first listener is woken already, before any that waits.
    fn is_first_woken(&self) -> bool {
        let first = self.waiting.values().filter_map(BTreeSet::first).min();
        self.woken.first().is_some_and(|woken| first.is_none_or(|first| woken < first))
    }
}

impl ReleaseSignal {
    /// Returns whether a release has woken the request since it has last asked.
    pub(crate) fn is_released(&self) -> bool {
        self.woken.load(Ordering::SeqCst) > 0
    }

    /// Waits for a release that wakes the request. A notification alone may be that of an earlier one.
    pub(crate) async fn released(&self) {
        while !self.is_released() {
            self.notify.notified().await;
        }
    }
}

impl Namespace {
    /// Notes that units of a pair were released: wakes the first request that waits for them.
    pub(crate) fn released(&self, key: &PartitionKey, policy: &Policy) {
        // Usually no request waits.
        if !self.awaited().lock().is_empty() {
            self.released_pair(&PairKey::new(key, policy));
        }
    }

    /// Notes that units of a pair were released, refunded or reset: wakes the first request that waits for them. If it is woken already, its
    /// next check counts these units, too, and it wakes the requests behind it. Units in flight may admit several requests at once.
    pub(super) fn released_pair(&self, pair: &PairKey) {
        let is_held = pair.policy().properties().is_held;
        self.wake(pair, |listeners| {
            let is_first_woken = !is_held && listeners.is_first_woken();
            if is_first_woken { None } else { listeners.wake(0, |_| true) }
        });
    }

    /// Wakes the request that this function marks among the listeners of a pair.
    fn wake(&self, pair: &PairKey, mark: impl FnOnce(&mut Listeners) -> Option<Arc<ReleaseSignal>>) {
        let mut awaited = self.awaited().lock();
        let first = awaited.get_mut(pair).and_then(mark);
        drop(awaited);
        // A waker may run code of its own, so the lock is free. Its panic is not one of the caller, which may release other units.
        if let Some(first) = first {
            contain(|| first.notify.notify_one());
        }
    }
}

/// The pairs of which an admission holds units.
pub(crate) struct ReleasedPairs {
    namespace: Namespace,
    pairs: Vec<(PartitionKey, Policy)>,
}

impl ReleasedPairs {
    pub(crate) fn new<'a>(namespace: &Namespace, pairs: impl Iterator<Item = &'a Pair>) -> Self {
        let pairs = pairs.map(|pair| (pair.key.clone(), pair.policy.clone())).collect();
        Self { namespace: namespace.clone(), pairs }
    }

    /// Notes that their units were released.
    pub(crate) fn wake(&self) {
        for (key, policy) in &self.pairs {
            self.namespace.released(key, policy);
        }
    }
}
