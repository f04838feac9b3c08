//! Releases of units in flight: they wake the requests of this process that wait for them.
//!
//! A release wakes the first request that the pair has denied. This request asks the store. If its decision shows that another one may
//! have room, it wakes the request behind it. So no release is lost at a request that another pair denies, or that needs more units,
//! and each request asks at most once for it.

use std::{future::poll_fn, mem, pin::Pin, sync::Arc, task::Poll};

use tokio::sync::{Notify, futures::Notified};

use super::namespace::{AwaitedRelease, Listeners, Namespace, PairKey};
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
        let number = listeners.last_key_value().map_or(0, |(last, _)| last + 1);
        let (waking, quota) = (notify.clone(), policy.quota_units());
        listeners.insert(number, AwaitedRelease { notify: waking, quota, waits: true, is_woken: false });
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
        let mut awaited = self.namespace.awaited().lock();
        let listener = awaited.get_mut(&self.pair).and_then(|listeners| listeners.get_mut(&self.number));
        listener.is_some_and(|listener| {
            listener.waits = waits;
            mem::take(&mut listener.is_woken)
        })
    }

    /// Wakes the first request behind this one whose quota is higher.
    fn wake_next(&self, quota: u32) {
        let mut awaited = self.namespace.awaited().lock();
        let next = awaited.get_mut(&self.pair).and_then(|listeners| wake(listeners, self.number + 1, quota));
        drop(awaited);
        // A waker may run code of its own, so the lock is free.
        next.iter().for_each(|next| next.notify_one());
    }
}

impl Drop for ReleaseListener {
    fn drop(&mut self) {
        let mut awaited = self.namespace.awaited().lock();
        let Some(listeners) = awaited.get_mut(&self.pair) else { return };
        let removed = listeners.remove(&self.number);
        let is_empty = listeners.is_empty();
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

/// Marks the first listener from a number on that waits, has a higher quota and is not woken yet. Returns what wakes it.
fn wake(listeners: &mut Listeners, from: u64, quota: u32) -> Option<Arc<Notify>> {
    let mut listeners = listeners.range_mut(from..).map(|(_, listener)| listener);
    let may_have_room = |listener: &&mut AwaitedRelease| listener.waits && listener.quota > quota;
    let next = listeners.find(|listener| !listener.is_woken && may_have_room(listener))?;
    next.is_woken = true;
    Some(next.notify.clone())
}

impl Namespace {
    /// Notes that units of a pair were released: wakes the first request that waits for them.
    pub(crate) fn released(&self, key: &PartitionKey, policy: &Policy) {
        let mut awaited = self.awaited().lock();
        // Usually no request waits.
        if awaited.is_empty() {
            return;
        }
        let first = awaited.get_mut(&PairKey::new(key, policy)).and_then(|listeners| wake(listeners, 0, 0));
        drop(awaited);
        first.iter().for_each(|first| first.notify_one());
    }
}

/// Waits for a release of one of these pairs. Without pairs, it never comes.
pub(crate) async fn released(listeners: &[ReleaseListener]) {
    let mut releases: Vec<Pin<Box<Notified<'_>>>> =
        listeners.iter().map(|listener| Box::pin(listener.notify.notified())).collect();
    poll_fn(|cx| {
        let is_released = releases.iter_mut().any(|release| release.as_mut().poll(cx).is_ready());
        if is_released { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
