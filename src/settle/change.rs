//! The changes of a settlement: a refund, an overage, or both.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::time::Instant;

use crate::{
    backend::DynBackend,
    check::{Check, Refund},
    error::{BackendError, Reason},
    foreign::contain,
    guard::before,
};

/// Why a change is lost.
pub(super) const PANICKED: &str = "the backend panicked";

/// The changes of a settlement. Each is `None` once it is done.
pub(super) struct Change {
    pub(super) refund: Option<Refund>,
    pub(super) overage: Option<Check>,
}

/// The latest instant of the changes, in microseconds.
pub(super) type ChangedAt = Result<u64, BackendError>;

/// The result of a change.
pub(super) struct Changed {
    /// Whether the refund is made, even if the overage is not.
    pub(super) is_refunded: bool,
    pub(super) at: ChangedAt,
}

impl Change {
    /// Makes the changes that need no waiting, and removes them. Returns the latest instant of these changes, or 0 if there were none. If the
    /// backend panics, the change that it was making is lost.
    pub(super) fn make_now(&mut self, backend: &dyn DynBackend) -> ChangedAt {
        let made = contain(|| self.make_guarded(backend));
        made.unwrap_or_else(|| Err(BackendError::with_source(Reason::Other, PANICKED)))
    }

    fn make_guarded(&mut self, backend: &dyn DynBackend) -> ChangedAt {
        let mut at = Ok(0);
        if let Some(refund) = self.refund.take() {
            match backend.refund_now(&refund) {
                Some(refunded) => at = refunded,
                None => self.refund = Some(refund),
            }
        }
        if let Some(overage) = self.overage.take() {
            match backend.check_now(&overage) {
                Some(charged) => at = latest(at, charged.map(|decision| decision.at_micros())),
                None => self.overage = Some(overage),
            }
        }
        at
    }

    /// Makes the changes by the deadline, or not at all.
    pub(super) async fn make(self, backend: Arc<dyn DynBackend>, deadline: Instant) -> Changed {
        if deadline <= Instant::now() {
            return Changed::failed(BackendError::new(Reason::Timeout));
        }
        let refunded = async {
            let Some(refund) = self.refund else { return Ok(0) };
            before(deadline, backend.refund(&refund.with_deadline(deadline))).await
        };
        let charged = async {
            let Some(overage) = self.overage else { return Ok(0) };
            let charged = before(deadline, backend.check(&overage.with_deadline(deadline))).await;
            charged.map(|decision| decision.at_micros())
        };
        // The overage is charged even if the refund fails or hangs.
        let (refunded, charged) = both(refunded, charged).await;
        Changed { is_refunded: refunded.is_ok(), at: latest(refunded, charged) }
    }
}

impl Changed {
    pub(super) fn failed(error: BackendError) -> Self {
        Self { is_refunded: false, at: Err(error) }
    }
}

/// Returns the later of two instants in microseconds, or the first error.
pub(super) fn latest(one: ChangedAt, other: ChangedAt) -> ChangedAt {
    Ok(one?.max(other?))
}

/// Runs two futures at the same time.
async fn both<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> (T, T) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (Poll::Pending, Poll::Pending);
    poll_fn(|cx| {
        if first.is_pending() {
            first = one.as_mut().poll(cx);
        }
        if second.is_pending() {
            second = other.as_mut().poll(cx);
        }
        match (mem::replace(&mut first, Poll::Pending), mem::replace(&mut second, Poll::Pending)) {
            (Poll::Ready(one), Poll::Ready(other)) => Poll::Ready((one, other)),
            outputs => {
                (first, second) = outputs;
                Poll::Pending
            }
        }
    })
    .await
}
