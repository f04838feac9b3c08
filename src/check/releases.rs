//! Releases of units in flight: they wake the requests of this process that wait for them.
//!
//! A release wakes the first request that the pair has denied. This request asks the store. If its decision shows that another one may
//! have room, it wakes the request behind it. So no release is lost at a request that another pair denies, or that needs more units,
//! and each request asks at most once for it.

use std::{
    future::poll_fn,
    mem,
    ops::Bound,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::{Notify, futures::Notified};

use super::{
    Pair,
    namespace::{AwaitedRelease, Listeners, Namespace, PairKey},
};
use crate::{key::PartitionKey, policy::Policy};

/// A request that waits for a release of a pair. A release since its creation counts.
pub(crate) struct ReleaseListener {
    namespace: Namespace,
    pair: PairKey,
    /// Its place in the order of the listeners.
    number: u64,
    notify: Arc<Notify>,
    /// Whether the request asks because of a release.
    has_release: bool,
}

impl ReleaseListener {
    pub(crate) fn new(namespace: &Namespace, key: &PartitionKey, policy: &Policy) -> Self {
        let (namespace, pair) = (namespace.clone(), PairKey::new(key, policy));
        let notify = Arc::new(Notify::new());
        let mut awaited = namespace.awaited().lock();
        let listeners = awaited.entry(pair.clone()).or_default();
        let number = listeners.all.last_key_value().map_or(0, |(last, _)| last + 1);
        listeners.all.insert(number, AwaitedRelease { notify: notify.clone(), is_woken: false });
        listeners.set_waiting(number, policy.quota_units(), true);
        drop(awaited);
        Self { namespace, pair, number, notify, has_release: false }
    }

    /// States that the request asks the store now: its decision counts all releases until now.
    pub(crate) fn asks(&mut self) {
        self.has_release |= self.take_release(true);
    }

    /// Learns from the decision of the request whether the pair denies it, and how many units remain. If a release has caused it, wakes
    /// the next request that may have room.
    pub(crate) fn decided(&mut self, is_denied: bool, remaining: u32) {
        let has_release = mem::take(&mut self.has_release);
        if !is_denied && self.take_release(false) {
            // The decision may not have counted it.
            self.wake_next(0);
        } else if has_release {
            // If nothing remains of a quota, only a higher one may have room.
            self.wake_next(if remaining > 0 { 0 } else { self.pair.policy().quota_units() });
        }
    }

    /// Notes whether a release may admit the request. Returns whether one has woken it.
    fn take_release(&self, waits: bool) -> bool {
        let (mut awaited, quota) = (self.namespace.awaited().lock(), self.pair.policy().quota_units());
        let Some(listeners) = awaited.get_mut(&self.pair) else { return false };
        listeners.set_waiting(self.number, quota, waits);
        listeners.all.get_mut(&self.number).is_some_and(|listener| mem::take(&mut listener.is_woken))
    }

    /// Polls for a release that has woken the request since it has last asked. A notification alone may be that of an earlier one.
    fn poll_release<'a>(&'a self, notified: &mut Pin<Box<Notified<'a>>>, cx: &mut Context<'_>) -> Poll<()> {
        while notified.as_mut().poll(cx).is_ready() {
            let awaited = self.namespace.awaited().lock();
            let listener = awaited.get(&self.pair).and_then(|listeners| listeners.all.get(&self.number));
            if listener.is_none_or(|listener| listener.is_woken) {
                return Poll::Ready(());
            }
            drop(awaited);
            notified.set(self.notify.notified());
        }
        Poll::Pending
    }

    /// Wakes the first request behind this one whose quota is higher.
    fn wake_next(&self, quota: u32) {
        let mut awaited = self.namespace.awaited().lock();
        let next = awaited.get_mut(&self.pair).and_then(|listeners| listeners.wake(self.number + 1, quota));
        drop(awaited);
        // A waker may run code of its own, so the lock is free.
        next.iter().for_each(|next| next.notify_one());
    }
}

impl Drop for ReleaseListener {
    fn drop(&mut self) {
        let mut awaited = self.namespace.awaited().lock();
        let Some(listeners) = awaited.get_mut(&self.pair) else { return };
        let removed = listeners.all.remove(&self.number);
        listeners.set_waiting(self.number, self.pair.policy().quota_units(), false);
        let is_empty = listeners.all.is_empty();
        if is_empty {
            awaited.remove(&self.pair);
        }
        drop(awaited);
        // No decision has counted the release.
        if !is_empty && (self.has_release || removed.is_some_and(|listener| listener.is_woken)) {
            self.wake_next(0);
        }
    }
}

impl Listeners {
    /// Notes whether a release may wake a listener with this quota: it asks, or the pair has denied it.
    fn set_waiting(&mut self, number: u64, quota: u32, waits: bool) {
        if waits {
            self.waiting.entry(quota).or_default().insert(number);
        } else if let Some(numbers) = self.waiting.get_mut(&quota) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.waiting.remove(&quota);
            }
        }
    }

    /// Marks the first listener from a number on that waits, has a higher quota and is not woken yet. Returns what wakes it.
    fn wake(&mut self, from: u64, quota: u32) -> Option<Arc<Notify>> {
        let higher = self.waiting.range((Bound::Excluded(quota), Bound::Unbounded));
        let first = higher.filter_map(|(quota, numbers)| Some((*numbers.range(from..).next()?, *quota)));
        let (number, quota) = first.min()?;
        self.set_waiting(number, quota, false);
        let listener = self.all.get_mut(&number)?;
        listener.is_woken = true;
        Some(listener.notify.clone())
    }
}

impl Namespace {
    /// Notes that units of a pair were released: wakes the first request that waits for them.
    pub(crate) fn released(&self, key: &PartitionKey, policy: &Policy) {
        // Usually no request waits.
        if self.awaited().lock().is_empty() {
            return;
        }
        let pair = PairKey::new(key, policy);
        let mut awaited = self.awaited().lock();
        let first = awaited.get_mut(&pair).and_then(|listeners| listeners.wake(0, 0));
        drop(awaited);
        first.iter().for_each(|first| first.notify_one());
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

/// Waits for a release of one of these pairs. Without pairs, it never comes.
pub(crate) async fn released(listeners: &[ReleaseListener]) {
    let mut releases: Vec<Pin<Box<Notified<'_>>>> =
        listeners.iter().map(|listener| Box::pin(listener.notify.notified())).collect();
    poll_fn(|cx| {
        let mut all = listeners.iter().zip(&mut releases);
        let is_released = all.any(|(listener, notified)| listener.poll_release(notified, cx).is_ready());
        if is_released { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
