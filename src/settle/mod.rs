//! Settlements, which replace a charge by the amount actually used.

// The queue holds no limiter and no response.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use crate::{
    backend::MemoryBackend,
    check::{Check, Pair, Receipt, Refund},
    cost::IntoCosts,
    decision::Decision,
    error::{BackendError, Reason},
    lock::Lock,
    now_or_later::NowOrLater,
};

mod actual_cost;
mod change;
mod meter;
mod queue;

pub use actual_cost::{ActualCost, actual_cost, by_hand};
use change::Change;
use meter::Counters;
pub use meter::{Meter, MeteredBody};
pub(crate) use queue::Queue;

/// The handle of a charge. Settling it replaces the charge by the amount actually used.
///
/// [`Limiter::reserve`](crate::Limiter::reserve) returns one. A layer that [settles](crate::Builder::settle_by) leaves one in
/// the extensions of every counted request; in axum it is an extractor (feature `axum`). Clones are the same handle.
///
/// - **The first settlement** takes effect. If the amount is smaller, a refund reduces the original charge, so no unit is counted
///   twice or freed late. If it is larger, the difference is charged now, even beyond the quota, because the client has already
///   used it.
/// - **A second settlement**, by any clone, has no effect.
/// - **A late settlement** refunds nothing to a pair whose charge has left the window or was reset.
/// - **A reservation that was admitted in an outage** has no charge in the store. A charge of the
///   [local fallback](crate::outage::LocalDecision) is settled in the memory of this process. A request that was admitted
///   [unchecked](crate::outage::Unchecked) has nothing to settle.
/// - **A [shadow pair](crate::backend::Pair::shadow)** is settled if it was charged. If its cost did not fit, it has no charge, and a
///   settlement charges nothing to it.
/// - **A reservation that is dropped unsettled**, for example because its handler panics or its request is cancelled, keeps its
///   charge until its window has passed, or refunds it, as [`Unsettled`] states. A process that dies settles nothing.
///
/// In Redis, a refund takes microseconds, at any place of a sliding log. In the middle of a log, it grows with the logarithm of the
/// log's length.
///
/// If a charge between older and newer charges is settled to 0, its record stays until its window has passed. The record then
/// still counts towards the bound of a sliding log.
///
/// Settling never delays a response. If the backend does not answer at once, the settlement goes through a
/// [bounded queue](crate::LimiterBuilder::settlement_queue), which a task on the current tokio runtime processes. It is sent
/// once and never resent. It has 5 s: after that, it changes nothing. If it is lost, the charge stands, and the loss is [counted](crate::Limiter::lost_settlements).
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, settle::Settled};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder(MemoryBackend::new())
///     .policy(Policy::new("tokens", 10_000, Duration::from_secs(60))?)
///     .build()?;
///
/// let reservation = limiter.reserve((PartitionKey::new("user", "alice"), 1_000)).await?;
/// // The model has answered with 317 tokens.
/// assert!(matches!(reservation.settle(317).await, Settled::Done { .. }));
/// assert!(matches!(reservation.settle(0).await, Settled::Already));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a reservation that is dropped is not settled: call `settle(..)`"]
pub struct Reservation(Arc<Held>);

struct Held {
    queue: Arc<Queue>,
    check: Check,
    /// Empty for an unchecked reservation.
    decision: Decision,
    charged: Charged,
    unsettled: Unsettled,
    is_settled: AtomicBool,
    /// The counters of the meters, as long as there are meters.
    meters: Lock<Weak<Counters>>,
}

/// What happens to the charge of a reservation that is dropped unsettled: with its last clone and its last [`Meter`].
///
/// For [`Builder::unsettled`](crate::Builder::unsettled) and
/// [`LimiterBuilder::unsettled`](crate::LimiterBuilder::unsettled). A reservation is dropped unsettled if no code settles it: the
/// handler panics or forgets it, the client disconnects before the response, an inner layer rejects the request, or the closure of
/// [`settle_by`](crate::Builder::settle_by) returns `None`.
///
/// A process that dies settles nothing: its charges stand under both rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unsettled {
    /// The charge stands until its window has passed. A client cannot avoid its charge by a disconnect.
    #[default]
    Keep,
    /// The charge is refunded. A client that disconnects before the handler settles pays nothing: use this only if the work that
    /// is done until then is cheap, or if a [`Meter`] counts it.
    Refund,
}

/// The owner of the charge.
enum Charged {
    Store,
    /// The memory of the local fallback.
    Local(MemoryBackend),
    /// The request was admitted unchecked.
    Nothing,
}

/// The result of a settlement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// The amount used has replaced the charge, as far as the charge still counts.
    Done {
        /// The instant of the change, in microseconds of the clock of the backend, as [`Decision::at_micros`] is for a check:
        /// the latest one if there were several changes. If the amount equals the charge, nothing changes, and this is the
        /// instant of the reservation.
        at_micros: u64,
    },
    /// The reservation was settled before, by this handle or a clone. This settlement had no effect.
    Already,
    /// There is no charge: the request was admitted [unchecked](crate::outage::Unchecked). The settlement had no effect.
    Uncharged,
    /// The settlement may or may not have been applied, and is never resent. The limiter counts it as lost. With
    /// [`Reason::DeadlineExceeded`], the store has not applied it.
    Lost(BackendError),
}

/// The future of [`Reservation::settle`]. It resolves to the result. The settlement proceeds even if this future is dropped.
pub struct Settlement(NowOrLater<Settled, Confirmation>);

/// A settlement in the queue.
struct Confirmation(oneshot::Receiver<Settled>);

impl Reservation {
    pub(crate) fn new(queue: Arc<Queue>, check: Check, decision: Decision, unsettled: Unsettled) -> Self {
        Self::held(queue, check, decision, Charged::Store, unsettled)
    }

    pub(crate) fn local(
        queue: Arc<Queue>,
        memory: MemoryBackend,
        check: Check,
        decision: Decision,
        unsettled: Unsettled,
    ) -> Self {
        Self::held(queue, check, decision, Charged::Local(memory), unsettled)
    }

    pub(crate) fn unchecked(queue: Arc<Queue>, check: Check) -> Self {
        Self::held(queue, check, Decision::new(0, []), Charged::Nothing, Unsettled::Keep)
    }

    fn held(
        queue: Arc<Queue>,
        check: Check,
        decision: Decision,
        charged: Charged,
        unsettled: Unsettled,
    ) -> Self {
        let (is_settled, meters) = (AtomicBool::new(false), Lock::default());
        Self(Arc::new(Held { queue, check, decision, charged, unsettled, is_settled, meters }))
    }

    /// Returns the decision of the store that has admitted the request. Returns `None` if the local fallback has admitted it, or
    /// if it was admitted unchecked.
    pub fn decision(&self) -> Option<&Decision> {
        matches!(self.0.charged, Charged::Store).then_some(&self.0.decision)
    }

    /// Returns whether the reservation was settled, by this handle or a clone.
    pub fn is_settled(&self) -> bool {
        self.0.is_settled.load(Ordering::Acquire)
    }

    /// Replaces the charge by the amount used, in quota units, 0 to 2^32-1. Only the first call on any clone takes effect. If
    /// `used` does not name a policy, the charge of that policy stands.
    ///
    /// The settlement begins at once. The returned future need not be kept or awaited.
    pub fn settle(&self, used: impl IntoCosts) -> Settlement {
        let used = used.into_costs();
        self.settle_pairs(|pairs| {
            self.0.queue.events().unknown_policies(&used, pairs.iter().map(|pair| &pair.policy));
            pairs.iter().map(|pair| used.amount(pair.policy.name()).unwrap_or(pair.cost)).collect()
        })
    }

    /// Returns a meter, which adds up the amount used while a response is streamed, and settles it when the meter is dropped.
    ///
    /// All meters of a reservation count together. The last one to be dropped settles.
    pub fn meter(&self) -> Meter {
        let mut meters = self.0.meters.lock();
        let counters = meters.upgrade().unwrap_or_else(|| {
            let counters = Arc::new(Counters::new(self.clone()));
            *meters = Arc::downgrade(&counters);
            counters
        });
        Meter::new(counters)
    }

    /// Replaces the charge of every pair by the amount that the closure returns for it. Only the first call takes effect.
    fn settle_pairs(&self, used: impl FnOnce(&[Pair]) -> Vec<u32>) -> Settlement {
        if self.0.is_settled.swap(true, Ordering::AcqRel) {
            return Settlement::now(Settled::Already);
        }
        self.0.change_to(&used(self.0.check.pairs()))
    }
}

impl Held {
    /// Replaces the charge of every pair by these amounts.
    fn change_to(&self, used: &[u32]) -> Settlement {
        let Self { queue, check, decision, charged, .. } = self;
        if matches!(charged, Charged::Nothing) {
            return Settlement::now(Settled::Uncharged);
        }
        // A shadow pair that was not charged has nothing to settle.
        let amount = |((pair, receipt), used): ((&Pair, &Receipt), &u32)| {
            if pair.is_uncharged(receipt) { pair.cost } else { *used }
        };
        let used: &[u32] =
            &check.pairs().iter().zip(decision.receipts()).zip(used).map(amount).collect::<Vec<_>>();
        let change =
            Change { refund: Refund::of(check, decision.receipts(), used), overage: check.overage(used) };
        if change.refund.is_none() && change.overage.is_none() {
            return Settlement::now(queue.settled(Ok(decision.at_micros())));
        }
        match charged {
            Charged::Local(memory) => queue.settle_at_once(memory, change),
            Charged::Store | Charged::Nothing => queue.settle(change),
        }
    }
}

/// Applies the rule for a reservation that is dropped unsettled.
impl Drop for Held {
    fn drop(&mut self) {
        if self.unsettled == Unsettled::Refund && !self.is_settled.swap(true, Ordering::AcqRel) {
            // It proceeds in the background.
            drop(self.change_to(&vec![0; self.check.pairs().len()]));
        }
    }
}

impl Settlement {
    fn now(settled: Settled) -> Self {
        Self(NowOrLater::now(settled))
    }

    fn waiting(confirmation: oneshot::Receiver<Settled>) -> Self {
        Self(NowOrLater::Later(Confirmation(confirmation)))
    }
}

impl Future for Settlement {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Settled> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Future for Confirmation {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Settled> {
        let settled = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(settled.unwrap_or_else(|_| Settled::Lost(BackendError::new(Reason::Other))))
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", &self.0.decision)
            .field("is_settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").finish_non_exhaustive()
    }
}
