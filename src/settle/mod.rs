//! Replacing a charge by what was really used.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use crate::{
    backend::{BackendError, Reason},
    check::{Check, Refund},
    cost::Costs,
    decision::Decision,
    limiter::{Limiter, engine::Change},
};

mod queue;
mod used;

pub(crate) use queue::Queue;
pub use used::{
    ActualCost, ByHand, FromResponse, ReadActualCost, ResponseHead, Settling, Used, actual_cost, by_hand,
    from_response,
};

/// The handle of a charge, by which it is replaced by what was really used.
///
/// [`Limiter::reserve`](crate::Limiter::reserve) gives one, and so does a layer that [settles](crate::Builder::settle): it
/// is in the extensions of every counted request then, in axum as an extractor (feature `axum`). Clones are the same handle.
///
/// - **Settled once**, the charge is what was used: what is less goes back to the place of the charge, so that nothing is
///   counted twice or freed late; what is more is charged now, even past the quota, for it was used already.
/// - **Settled again**, by whichever clone, nothing changes.
/// - **Settled late**, what has left its window meanwhile, or was reset, gets nothing back.
/// - **Let through in an outage**, it was charged nowhere in the store, and nothing is settled there: what was decided
///   [locally](crate::LocalDecision) is settled in the memory of this process, and of what was let through
///   [unchecked](crate::Unchecked) there is nothing to settle.
/// - **Never settled**, as when the request is dropped, the charge stands and leaves with its window.
///
/// In Redis, giving units back to one of the newest or of the oldest charges of a sliding log takes microseconds, however
/// long the log is. In the middle of a long one the starts of half its records are rewritten: some 4 ms of the server's time in a log of
/// 10,000, and more than 0.1 s in one of 100,000. Where requests are settled late in such logs, count in
/// [sliding buckets](crate::Algorithm::SlidingBuckets).
///
/// A charge that is settled to 0 while older and newer ones count keeps its record until its window has passed, and counts
/// towards the bound of a sliding log on its records.
///
/// Nothing waits for a settlement. Where the backend does not answer at once it goes through a
/// [bounded queue](crate::LimiterBuilder::settlement_queue), which a task on the current tokio runtime works off; it is sent
/// once and never again. One that is lost leaves the charge as it is and is [counted](crate::Limiter::lost_settlements).
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, Settled};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder(MemoryBackend::new())
///     .policy(Policy::new("tokens", 10_000, Duration::from_secs(60))?)
///     .build()?;
///
/// let reserved = limiter.reserve(PartitionKey::new("user", "alice"), 1_000).await?;
/// if let Some(reservation) = reserved.admitted() {
///     // The model has answered with 317 tokens.
///     assert!(matches!(reservation.settle(317).await, Settled::Done));
///     assert!(matches!(reservation.settle(0).await, Settled::Already));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Held>);

struct Held {
    limiter: Limiter,
    check: Check,
    /// Of an unchecked one, nothing.
    decision: Decision,
    charged: Charged,
    is_settled: AtomicBool,
}

/// Who has the charge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charged {
    Store,
    /// The memory of this process, for the store could not decide.
    Local,
    Nobody,
}

/// What became of a settlement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settled {
    /// What was used has taken the place of the charge, as far as that still counts.
    Done,
    /// The reservation was settled before, by this handle or a clone. This time nothing has changed.
    Already,
    /// There is no charge: the request was let through [unchecked](crate::Unchecked). Nothing has changed.
    Uncharged,
    /// It may not have been done, and is not tried again. The charge stands, or may stand; the settlement is counted as lost.
    Lost(BackendError),
}

/// A settlement that has begun. It goes on when this is dropped; awaited, it tells what became of it.
pub struct Settlement(Progress);

enum Progress {
    Now(Option<Settled>),
    Waiting(oneshot::Receiver<Settled>),
}

impl Reservation {
    pub(crate) fn new(limiter: Limiter, check: Check, decision: Decision) -> Self {
        Self::held(limiter, check, decision, Charged::Store)
    }

    pub(crate) fn local(limiter: Limiter, check: Check, decision: Decision) -> Self {
        Self::held(limiter, check, decision, Charged::Local)
    }

    pub(crate) fn unchecked(limiter: Limiter, check: Check) -> Self {
        Self::held(limiter, check, Decision::new(0, []), Charged::Nobody)
    }

    fn held(limiter: Limiter, check: Check, decision: Decision, charged: Charged) -> Self {
        Self(Arc::new(Held { limiter, check, decision, charged, is_settled: AtomicBool::new(false) }))
    }

    /// The decision that has admitted it. None if the store has made none, whether the request was decided locally or let
    /// through unchecked.
    pub fn decision(&self) -> Option<&Decision> {
        (self.0.charged == Charged::Store).then_some(&self.0.decision)
    }

    /// The decision behind the charge, for those who know that there is one.
    pub(crate) fn charged(&self) -> &Decision {
        &self.0.decision
    }

    /// Whether it was settled, by this handle or a clone.
    pub fn is_settled(&self) -> bool {
        self.0.is_settled.load(Ordering::Acquire)
    }

    /// Replaces the charge by what was used, in quota units, 0 to 2^32-1. The first call takes effect, of whichever clone, and
    /// no other does. Of a policy that is not named the charge stays.
    ///
    /// It begins at once: there is no need to keep or to await what is returned.
    pub fn settle(&self, used: impl Into<Costs>) -> Settlement {
        let Held { limiter, check, decision, charged, is_settled } = &*self.0;
        if is_settled.swap(true, Ordering::AcqRel) {
            return Settlement::now(Settled::Already);
        }
        let used = used.into();
        limiter.know_names(&used, check.pairs());
        if *charged == Charged::Nobody {
            return Settlement::now(Settled::Uncharged);
        }
        let used = check.pairs().iter().map(|pair| used.of(pair.policy.name()).unwrap_or(pair.cost));
        let used: Vec<u32> = used.collect();
        let change =
            Change { refund: Refund::of(check, decision.receipts(), &used), overage: check.overage(&used) };
        match charged {
            Charged::Local => limiter.queue().settle_at_once(limiter.local().memory(), change),
            _ => limiter.queue().settle(change),
        }
    }
}

impl Settlement {
    fn now(settled: Settled) -> Self {
        Self(Progress::Now(Some(settled)))
    }
}

impl Future for Settlement {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Settled> {
        match &mut self.0 {
            Progress::Now(settled) => settled.take().map_or(Poll::Pending, Poll::Ready),
            Progress::Waiting(outcome) => {
                let outcome = ready!(Pin::new(outcome).poll(cx));
                self.0 = Progress::Now(None);
                Poll::Ready(outcome.unwrap_or_else(|_| Settled::Lost(BackendError::new(Reason::Other))))
            }
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

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").finish_non_exhaustive()
    }
}
