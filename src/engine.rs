//! The object-safe engine: a backend without its type, behind the circuit breaker and the deny cache.

use std::{
    any::Any,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backend::{Backend, BackendError, Reason, memory::MemoryBackend},
    check::{Check, Pair, Purpose, Refund},
    decision::Decision,
    deny_cache::{Denials, Miss},
    now_or_later::BoxFuture,
    observe::LimiterEvents,
    outage::{Guard, Protection, ServerBreaker, before},
};

pub(crate) type Outcome<T> = Result<T, BackendError>;

/// The changes of a settlement. Each is `None` once it is done.
pub(crate) struct Change {
    pub(crate) refund: Option<Refund>,
    pub(crate) overage: Option<Check>,
}

/// The result of a change.
pub(crate) struct Changed {
    /// Whether the refund is made, even if the overage is not.
    pub(crate) is_refunded: bool,
    /// The latest instant of the changes.
    pub(crate) outcome: Outcome<u64>,
}

impl Changed {
    pub(crate) fn failed(error: BackendError) -> Self {
        Self { is_refunded: false, outcome: Err(error) }
    }
}

pub(crate) trait Engine: Send + Sync {
    /// Returns the decision of a backend that never waits, or `None` if this backend must wait. In that case it did nothing.
    fn ask_now(&self, check: &Check) -> Option<Outcome<Decision>>;
    /// Returns the backend if it is a memory backend, which decides a check of one pair without a list of pairs.
    fn memory(&self) -> Option<&MemoryBackend>;
    /// Asks a backend that must wait, through the guard unless the backend protects its servers itself. The deny cache and the
    /// events learn of the outcome.
    fn ask(
        self: Arc<Self>,
        check: Check,
        deadline: Duration,
        guard: Option<Arc<Guard>>,
        miss: Option<Miss>,
        events: Arc<LimiterEvents>,
    ) -> BoxFuture<Outcome<Decision>>;
    fn forget(
        self: Arc<Self>,
        pairs: Check,
        deadline: Duration,
        denials: Option<Arc<Denials>>,
    ) -> BoxFuture<Outcome<()>>;
    /// Makes the changes that need no waiting, and removes them from `change`. Returns the latest instant of these changes, or 0
    /// if there were none.
    fn change_now(&self, change: &mut Change) -> Outcome<u64>;
    /// Makes the changes by the deadline, or not at all. Returns their latest instant.
    fn change(self: Arc<Self>, change: Change, deadline: Instant) -> BoxFuture<Changed>;
    fn can_change(&self) -> bool;
    fn can_remember(&self) -> bool;
    fn can_lease(&self) -> bool;
    fn name_of_store(&self) -> Option<String>;
    /// Returns whether the backend protects its servers itself.
    fn protects_servers(&self, protection: Protection) -> bool;
    /// Returns the circuit breakers of the servers that the backend protects itself.
    fn breakers(&self) -> Vec<ServerBreaker>;
    /// Waits for the backend's work in the background.
    fn finish(self: Arc<Self>) -> BoxFuture<()>;
}

impl<B: Backend> Engine for B {
    fn ask_now(&self, check: &Check) -> Option<Outcome<Decision>> {
        Some(complete(check, self.check_now(check)?))
    }

    fn memory(&self) -> Option<&MemoryBackend> {
        (self as &dyn Any).downcast_ref()
    }

    fn ask(
        self: Arc<Self>,
        check: Check,
        deadline: Duration,
        guard: Option<Arc<Guard>>,
        miss: Option<Miss>,
        events: Arc<LimiterEvents>,
    ) -> BoxFuture<Outcome<Decision>> {
        Box::pin(async move {
            let started = Instant::now();
            let sent = miss.map(|miss| miss.send(started));
            let deadline = started + deadline;
            let check = check.with_deadline(deadline);
            let outcome = {
                let asked = pin!(async { complete(&check, self.check(&check).await) });
                match guard {
                    Some(guard) => guard.ask(&check, deadline, asked).await,
                    None => before(deadline, asked).await,
                }
            };
            let was_asked = outcome.as_ref().err().is_none_or(BackendError::was_asked);
            let outcome = match sent {
                Some(sent) => sent.learn(&check, outcome),
                None => outcome,
            };
            events.decided(&check, &outcome, was_asked.then_some(started));
            outcome.map(|decision| decision.with_namespace(check.into_place()))
        })
    }

    fn forget(
        self: Arc<Self>,
        pairs: Check,
        deadline: Duration,
        denials: Option<Arc<Denials>>,
    ) -> BoxFuture<Outcome<()>> {
        Box::pin(async move {
            let forgotten = pairs.pairs().iter().map(|pair| (&pair.key, &pair.policy));
            let _invalidation = denials.map(|denials| denials.invalidate(forgotten));
            let deadline = Instant::now() + deadline;
            before(deadline, self.reset(&pairs.with_deadline(deadline))).await
        })
    }

    fn change_now(&self, change: &mut Change) -> Outcome<u64> {
        let mut outcome = Ok(0);
        if let Some(refund) = change.refund.take() {
            match self.refund_now(&refund) {
                Some(done) => outcome = done,
                None => change.refund = Some(refund),
            }
        }
        if let Some(overage) = change.overage.take() {
            match self.check_now(&overage) {
                Some(done) => outcome = latest(outcome, charged_at(&overage, done)),
                None => change.overage = Some(overage),
            }
        }
        outcome
    }

    fn change(self: Arc<Self>, change: Change, deadline: Instant) -> BoxFuture<Changed> {
        Box::pin(async move {
            if deadline <= Instant::now() {
                return Changed::failed(BackendError::new(Reason::Timeout));
            }
            let refunded = async {
                let Some(refund) = change.refund else { return Ok(0) };
                before(deadline, self.refund(&refund.with_deadline(deadline))).await
            };
            let charged = async {
                let Some(overage) = change.overage else { return Ok(0) };
                let overage = overage.with_deadline(deadline);
                charged_at(&overage, before(deadline, self.check(&overage)).await)
            };
            // The overage is charged even if the refund fails or hangs.
            let (refunded, charged) = both(refunded, charged).await;
            Changed { is_refunded: refunded.is_ok(), outcome: latest(refunded, charged) }
        })
    }

    fn can_change(&self) -> bool {
        self.changes_charges()
    }

    fn can_remember(&self) -> bool {
        self.denials_hold()
    }

    fn can_lease(&self) -> bool {
        self.changes_charges() && self.grants_leases()
    }

    fn name_of_store(&self) -> Option<String> {
        self.store()
    }

    fn protects_servers(&self, protection: Protection) -> bool {
        self.protect(protection)
    }

    fn breakers(&self) -> Vec<ServerBreaker> {
        Backend::breakers(self)
    }

    fn finish(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move { self.drain().await })
    }
}

/// Runs two futures at the same time.
async fn both<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> (T, T) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(cx)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(cx)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            outputs => {
                (first, second) = outputs;
                Poll::Pending
            }
        }
    })
    .await
}

/// Returns the later of two instants in microseconds, or the first error.
pub(crate) fn latest(one: Outcome<u64>, other: Outcome<u64>) -> Outcome<u64> {
    Ok(one?.max(other?))
}

/// Returns the instant of a decision that is complete.
fn charged_at(check: &Check, outcome: Outcome<Decision>) -> Outcome<u64> {
    complete(check, outcome).map(|decision| decision.at_micros())
}

/// Rejects a decision without a status for every pair, which would admit pairs that were not checked, and an admitted
/// reservation without a receipt for every pair, which could not be settled. A lease needs receipts, too, and at most the units
/// that were asked for.
#[inline]
fn complete(check: &Check, outcome: Outcome<Decision>) -> Outcome<Decision> {
    outcome.and_then(|decision| {
        let (pairs, is_admitted) = (check.pairs(), decision.is_admitted());
        let has_receipts = !is_admitted || decision.receipts().len() == pairs.len();
        let is_valid = match check.purpose() {
            Purpose::Reserve => has_receipts,
            Purpose::Lease => has_receipts && (!is_admitted || has_leases(pairs, decision.leases())),
            _ => true,
        };
        if decision.is_complete(check) && is_valid {
            Ok(decision)
        } else {
            Err(BackendError::new(Reason::BrokenReply))
        }
    })
}

/// Returns whether the units that were leased are at most those of the request.
fn has_leases(pairs: &[Pair], leases: &[u32]) -> bool {
    leases.len() == pairs.len() && pairs.iter().zip(leases).all(|(pair, units)| *units <= pair.lease)
}
