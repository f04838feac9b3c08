//! Reservations: the handle of a charge that can be settled.

use std::{
    fmt, mem,
    sync::{Arc, Weak, atomic::AtomicU64},
};

use super::{
    change::Change,
    queue::SettlementQueue,
    settled::{Settled, Settlement, Unsettled},
    settling::Settling,
};
use crate::{
    backend::DynBackend,
    check::{Check, Pair, Purpose, Receipt, Refund},
    cost::IntoCosts,
    decision::Decision,
    lock::Lock,
};

/// The handle of a charge. Settling it replaces the charge by the amount actually used.
///
/// [`Limiter::reserve`](crate::Limiter::reserve) returns one. A layer that [settles](crate::RateLimitLayerBuilder::settle_by) leaves one in
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
/// still counts towards the bound of a sliding log. So many requests that are settled to 0 can fill the log of a key that several clients
/// share, whatever its quota is: for such a key and a long window, use [buckets](crate::Algorithm::SlidingBuckets).
///
/// Settling never delays a response. If the backend does not answer at once, the settlement goes through a
/// [bounded queue](crate::LimiterBuilder::settlement_queue), which a task on the current tokio runtime processes. It is
/// never sent again once it may have run. It has 5 s: after that, it changes nothing. If it is lost, the charge stands, and the loss is [counted](crate::Limiter::lost_settlements).
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
pub struct Reservation(pub(super) Arc<ReservedCharge>);

pub(super) struct ReservedCharge {
    pub(super) queue: Arc<SettlementQueue>,
    pub(super) check: Check,
    /// Empty for an unchecked reservation.
    pub(super) decision: Decision,
    pub(super) charged: Charged,
    unsettled: Unsettled,
    /// Locked while a token is made, so that a settlement meanwhile neither finds it settled nor is lost if that fails.
    pub(super) is_settled: Lock<bool>,
    /// The counters of the meters, as long as there are meters.
    pub(super) meters: Lock<Weak<MeterCounters>>,
}

/// The amounts of all meters of a reservation.
pub(super) struct MeterCounters {
    pub(super) reservation: Reservation,
    /// For every pair, 0 without an addition, and otherwise the sum plus 1.
    pub(super) sums: Box<[AtomicU64]>,
}

/// The owner of the charge.
pub(crate) enum Charged {
    /// The limiter that learns from the answer to the request waits for the settlement.
    Store(Option<Settling>),
    /// The memory of the local fallback.
    Local(Arc<dyn DynBackend>),
    /// The request was admitted unchecked.
    Nothing,
}

impl Reservation {
    pub(crate) fn new(
        queue: Arc<SettlementQueue>,
        check: Check,
        decision: Decision,
        charged: Charged,
        unsettled: Unsettled,
    ) -> Self {
        let (is_settled, meters) = (Lock::default(), Lock::default());
        Self(Arc::new(ReservedCharge { queue, check, decision, charged, unsettled, is_settled, meters }))
    }

    /// Returns the decision of the store that has admitted the request. Returns `None` if the local fallback has admitted it, or
    /// if it was admitted unchecked.
    pub fn decision(&self) -> Option<&Decision> {
        matches!(self.0.charged, Charged::Store(_)).then_some(&self.0.decision)
    }

    /// Returns whether the reservation was settled, by this handle or a clone, or has become a [token](Self::into_token).
    pub fn is_settled(&self) -> bool {
        *self.0.is_settled.lock()
    }

    /// Returns what waits for the settlement of this reservation. `None` unless the limiter learns from answers, and the store was charged.
    pub(crate) fn settling(&self) -> Option<Settling> {
        let Charged::Store(settling) = &self.0.charged else { return None };
        settling.clone()
    }

    /// Returns the units that were taken, or `None` unless the check was to take units.
    pub(crate) fn taken_units(&self) -> Option<u32> {
        let Purpose::TakeUpTo(units) = self.0.check.purpose() else { return None };
        Some(units)
    }

    /// Replaces the charge by the amount used, in quota units, 0 to 2^32-1. Only the first call on any clone takes effect. If
    /// `used` does not name a policy, the charge of that policy stands.
    ///
    /// The settlement begins at once. The returned future need not be kept or awaited.
    pub fn settle(&self, used: impl IntoCosts) -> Settlement {
        let used = used.into_costs();
        self.settle_pairs(|pairs| {
            self.0.queue.events.unknown_policies(&used, pairs.iter().map(|pair| &pair.policy));
            pairs.iter().map(|pair| used.amount(pair.policy.name()).unwrap_or(pair.cost)).collect()
        })
    }

    /// Replaces the charge of every pair by the amount that the closure returns for it. Only the first call takes effect.
    pub(super) fn settle_pairs(&self, used: impl FnOnce(&[Pair]) -> Vec<u32>) -> Settlement {
        if self.0.mark_settled() {
            return Settlement::now(Settled::Already);
        }
        self.0.change_to(&used(self.0.check.pairs()))
    }
}

impl ReservedCharge {
    /// Marks the reservation as settled. Returns whether it was.
    fn mark_settled(&self) -> bool {
        mem::replace(&mut self.is_settled.lock(), true)
    }

    /// Replaces the charge of every pair by these amounts.
    fn change_to(&self, used: &[u32]) -> Settlement {
        let Self { queue, check, decision, charged, .. } = self;
        if let Charged::Nothing = charged {
            return Settlement::now(Settled::Uncharged);
        }
        // A shadow pair that was not charged has nothing to settle.
        let amount = |((pair, receipt), used): ((&Pair, &Receipt), &u32)| {
            if pair.is_uncharged(receipt) { pair.cost } else { *used }
        };
        let used: &[u32] =
            &check.pairs().iter().zip(decision.receipts()).zip(used).map(amount).collect::<Vec<_>>();
        let mut change =
            Change { refund: Refund::new(check, decision.receipts(), used), overage: check.overage(used) };
        if change.refund.is_none() && change.overage.is_none() {
            return Settlement::now(queue.settled(Ok(decision.at_micros())));
        }
        match charged {
            Charged::Nothing => Settlement::now(Settled::Uncharged),
            Charged::Local(memory) => Settlement::now(queue.settled(change.make_now(&**memory))),
            Charged::Store(settling) => queue.settle(change, settling.as_ref()),
        }
    }
}

/// Applies the rule for a reservation that is dropped unsettled.
impl Drop for ReservedCharge {
    fn drop(&mut self) {
        if self.unsettled == Unsettled::Refund && !self.mark_settled() {
            // It proceeds in the background.
            drop(self.change_to(&vec![0; self.check.pairs().len()]));
        }
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
