//! Releases of units in flight: they wake the requests of this process that wait for them.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use tokio::sync::{Notify, futures::Notified};

use super::namespace::{Namespace, PairKey};
use crate::{key::PartitionKey, policy::Policy};

/// A request that waits for a release of a pair. A release since its creation counts.
pub(crate) struct ReleaseListener {
    namespace: Namespace,
    pair: PairKey,
    notify: Arc<Notify>,
}

impl ReleaseListener {
    pub(crate) fn new(namespace: &Namespace, key: &PartitionKey, policy: &Policy) -> Self {
        let pair = PairKey::new(key, policy);
        let mut awaited = namespace.awaited().lock();
        let (notify, listeners) = awaited.entry(pair.clone()).or_default();
        *listeners += 1;
        Self { namespace: namespace.clone(), pair, notify: notify.clone() }
    }
}

impl Drop for ReleaseListener {
    fn drop(&mut self) {
        let mut awaited = self.namespace.awaited().lock();
        let Some((_, listeners)) = awaited.get_mut(&self.pair) else { return };
        *listeners -= 1;
        if *listeners == 0 {
            awaited.remove(&self.pair);
        }
    }
}

impl Namespace {
    /// Notes that units of a pair were released: wakes the first request that waits for them.
    pub(crate) fn released(&self, key: &PartitionKey, policy: &Policy) {
        // Usually no request waits.
        if !self.awaited().lock().is_empty() {
            ReleaseListener::new(self, key, policy).notify.notify_one();
        }
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
