//! Checks that the leases could not grant: the store is asked, some of them for a lease.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

use super::table::{Leases, OfPairs};
use crate::{
    backend::{BackendError, Reason},
    check::Check,
    decision::Decision,
    now_or_later::BoxFuture,
    observe::LeasedUnits,
};

type Outcome = Result<Decision, BackendError>;

/// A check that the store must be asked.
pub(crate) struct Miss(Arc<Leases>);

/// The units to lease.
pub(super) struct Request {
    /// The units for each pair, at least one.
    units: OfPairs<u32>,
    /// For each pair, the number of times that its lease was ended before the request.
    ends: OfPairs<u64>,
}

/// A lease request. If it is dropped without an answer, nothing is leased for a while.
struct InFlight {
    leases: Arc<Leases>,
    check: Check,
    request: Request,
    progress: Progress,
}

enum Progress {
    Unsent,
    Sent,
    Ended,
}

/// A lease request that continues in the background if the caller drops it. Otherwise, the units of an answer that comes later would be
/// idle.
struct Continued {
    request: Option<BoxFuture<Outcome>>,
    is_begun: bool,
}

impl Miss {
    pub(super) fn new(leases: Arc<Leases>) -> Self {
        Self(leases)
    }

    /// Asks the store by means of `ask`, for a lease if one is due, and learns from its decision.
    pub(crate) fn ask(
        self,
        check: Check,
        ask: impl FnOnce(Check) -> BoxFuture<Outcome>,
    ) -> BoxFuture<Outcome> {
        let Self(leases) = self;
        let Some(request) = leases.begin_request(&check) else {
            let asked = ask(check.clone());
            return Box::pin(async move { asked.await.map(|decision| leases.learn(&check, decision, None)) });
        };
        let asked = ask(check.clone().leasing(request.units.iter().copied()));
        let in_flight = InFlight { leases, check, request, progress: Progress::Unsent };
        Box::pin(Continued { request: Some(Box::pin(in_flight.send(asked))), is_begun: false })
    }
}

impl Request {
    pub(super) fn new(units: OfPairs<u32>, ends: OfPairs<u64>) -> Self {
        Self { units, ends }
    }

    /// Returns the number of times that the lease of a pair was ended before the request.
    pub(super) fn ends(&self, pair: usize) -> u64 {
        self.ends.get(pair).copied().unwrap_or_default()
    }
}

impl InFlight {
    async fn send(mut self, asked: BoxFuture<Outcome>) -> Outcome {
        let sent = self.leases.clock.now();
        self.progress = Progress::Sent;
        let decision = match asked.await {
            Err(error) if !may_have_charged(&error) => {
                self.progress = Progress::Ended;
                self.leases.end_request(&self.check, true);
                return Err(error);
            }
            // Without an answer of the store, the deny cache may repeat a denial.
            Ok(decision) if !decision.is_cached() => decision,
            unanswered => return unanswered,
        };
        self.progress = Progress::Ended;
        Ok(self.leases.learn(&self.check, decision, Some((&self.request, sent))))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let is_sent = match self.progress {
            Progress::Ended => return,
            Progress::Unsent => false,
            Progress::Sent => true,
        };
        self.leases.end_request(&self.check, is_sent);
        if is_sent {
            let units = self.request.units.iter().copied().map(u64::from).sum();
            self.leases.events.leased(LeasedUnits::Lost, units);
        }
    }
}

/// Returns whether a check with this error may have been charged.
fn may_have_charged(error: &BackendError) -> bool {
    let is_unknown =
        matches!(error.reason(), Reason::Timeout | Reason::Connection | Reason::BrokenReply | Reason::Other);
    is_unknown && error.was_asked()
}

impl Future for Continued {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.is_begun = true;
        let Some(request) = &mut self.request else { return Poll::Pending };
        let polled = request.as_mut().poll(cx);
        if polled.is_ready() {
            self.request = None;
        }
        polled
    }
}

impl Drop for Continued {
    fn drop(&mut self) {
        if self.is_begun
            && let Some(request) = self.request.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(request);
        }
    }
}
