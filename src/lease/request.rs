//! Checks that the leases could not grant: the store is asked, some of them for a lease.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::table::{Leases, Request, Step};
use crate::{
    check::{Check, Pair, Purpose},
    decision::{Decided, Decision, Status},
    error::{BackendError, Reason},
    foreign::contain,
    guard::until,
    now_or_later::BoxFuture,
    observe::Counted,
};

/// A check waits for the lease requests of others for at most this part of its deadline: a quarter.
const WAIT: u32 = 4;

/// The result of a lookup.
pub(crate) enum LeaseLookup {
    /// The check is admitted from leases. The requests are those for units of the next bucket.
    Granted(Decision, Vec<RequestInFlight>),
    /// The store must be asked, and the leases learn from its decision.
    Miss(LeaseMiss),
    /// No pair of the check is leased.
    Bypass,
}

/// A check that the store must be asked.
pub(crate) struct LeaseMiss {
    leases: Arc<Leases>,
    /// Whether the check may take and use leases.
    is_leasable: bool,
}

/// A lease request. If it is dropped without an answer, nothing is leased for a while.
pub(crate) struct RequestInFlight {
    leases: Arc<Leases>,
    check: Check,
    request: Request,
    progress: RequestProgress,
}

enum RequestProgress {
    Unsent,
    Sent,
    Ended,
}

impl Leases {
    /// Looks up a check.
    pub(crate) fn lookup(self: &Arc<Self>, check: &Check) -> LeaseLookup {
        if check.pairs().iter().all(|pair| pair.policy.lease().is_none()) {
            return LeaseLookup::Bypass;
        }
        let is_leasable = is_leasable(check);
        if is_leasable && let Some((decision, asks_ahead)) = self.grant(check) {
            let requests = if asks_ahead { self.requests_ahead(check) } else { Vec::new() };
            return LeaseLookup::Granted(decision, requests);
        }
        LeaseLookup::Miss(LeaseMiss { leases: self.clone(), is_leasable })
    }

    #[cold]
    fn requests_ahead(self: &Arc<Self>, check: &Check) -> Vec<RequestInFlight> {
        let begun = self.begin_ahead(check).into_iter();
        begun.map(|(check, request)| RequestInFlight::new(self.clone(), check, request)).collect()
    }
}

impl LeaseMiss {
    /// Asks the store by means of `ask` within this deadline, for a lease if one is due, and learns from its decision. If a lease request
    /// of the same pair is in flight, waits for its end first, because its lease may grant the check.
    pub(crate) fn ask(
        self,
        check: Check,
        deadline: Duration,
        ask: impl FnOnce(Check, Duration) -> BoxFuture<Decided> + Send + 'static,
    ) -> BoxFuture<Decided> {
        let Self { leases, is_leasable } = self;
        Box::pin(async move {
            if !is_leasable {
                let decision = ask(check.clone(), deadline).await?;
                leases.read(&check, &decision);
                return Ok(decision);
            }
            let mut left = deadline;
            let mut step = leases.next_step(&check, deadline);
            // Outside a runtime, nothing bounds the wait.
            if matches!(step, Step::Wait(_))
                && Handle::try_current().is_ok()
                && let Ok(_permit) = leases.waits.try_acquire()
            {
                let started = Instant::now();
                while let Step::Wait(mut request) = step {
                    // The only change is the end.
                    let has_ended = until(started + deadline / WAIT, request.changed()).await.is_some();
                    // If its answer came after the end of its bucket, another check asks for the units of the next one.
                    let is_late = has_ended && *request.borrow();
                    if let Some((decision, _)) = leases.grant(&check) {
                        let granted = Ok(decision);
                        leases.events.decided(&check, &granted, None);
                        return granted;
                    }
                    step = leases.next_step(&check, deadline);
                    if !is_late {
                        break;
                    }
                }
                left = deadline.saturating_sub(started.elapsed());
            }
            let Step::Request(request) = step else {
                let decision = ask(check.clone(), left).await?;
                leases.learn(&check, &decision, None);
                return Ok(decision);
            };
            let asked = ask(check.clone().leasing(request.units.iter().copied()), left);
            let in_flight = RequestInFlight::new(leases, check, request);
            match Handle::try_current() {
                // Others wait for it, so it must not depend on this caller.
                Ok(runtime) => runtime
                    .spawn(in_flight.send(asked))
                    .await
                    .unwrap_or_else(|error| Err(BackendError::with_source(Reason::Other, error.to_string()))),
                Err(_) => in_flight.send(asked).await,
            }
        })
    }
}

impl RequestInFlight {
    fn new(leases: Arc<Leases>, check: Check, request: Request) -> Self {
        Self { leases, check, request, progress: RequestProgress::Unsent }
    }

    /// Sends a request for units of the next bucket by means of `ask`, in a task of its own. Outside a runtime, drops it.
    pub(crate) fn start(self, ask: impl FnOnce(Check) -> BoxFuture<Decided>) {
        if let Ok(runtime) = Handle::try_current() {
            let asked = ask(self.check.clone());
            drop(runtime.spawn(self.send(asked)));
        }
    }

    async fn send(mut self, asked: BoxFuture<Decided>) -> Decided {
        let sent = self.leases.clock.now();
        self.progress = RequestProgress::Sent;
        let decision = match asked.await {
            Err(error) if !may_have_charged(&error) => {
                self.progress = RequestProgress::Ended;
                self.leases.end_request(&self.check, &self.request, true);
                return Err(error);
            }
            // Without an answer of the store, the deny cache may repeat a denial.
            Ok(decision) if !decision.is_cached() => decision,
            unanswered => return unanswered,
        };
        self.progress = RequestProgress::Ended;
        let held = self.leases.learn(&self.check, &decision, Some((&self.request, sent)));
        let decided = Ok(for_caller(&self.check, &decision, &held));
        self.leases.events.decided(&self.check, &decided, None);
        decided
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let is_sent = match self.progress {
            RequestProgress::Ended => return,
            RequestProgress::Unsent => false,
            RequestProgress::Sent => true,
        };
        self.leases.end_request(&self.check, &self.request, is_sent);
        if is_sent {
            let units = self.request.units.iter().copied().map(u64::from).sum();
            contain(|| self.leases.events.count(Counted::UnitsLost, units));
        }
    }
}

/// Returns whether a check may take and use leases: it charges, all its pairs are leased, and they have one partition key.
fn is_leasable(check: &Check) -> bool {
    let may = |pair: &Pair| pair.policy.lease().is_some() && pair.cost > 0 && !pair.is_shadow;
    matches!(check.purpose(), Purpose::Charge | Purpose::Reserve)
        && check.pairs().iter().all(may)
        && !check.has_several_keys()
}

/// Returns the decision on a lease request as that on the check itself. The remaining quota includes the units that are held.
fn for_caller(check: &Check, decision: &Decision, held: &[u32]) -> Decision {
    let with_held =
        |(i, status): (usize, &Status)| status.clone().with_more(held.get(i).copied().unwrap_or_default());
    let statuses: Vec<_> = decision.statuses().iter().enumerate().map(with_held).collect();
    let receipts = if check.purpose() == Purpose::Reserve { decision.receipts() } else { &[] };
    Decision::with_receipts(decision.at_micros(), statuses, receipts)
}

/// Returns whether a check with this error may have been charged.
fn may_have_charged(error: &BackendError) -> bool {
    let is_unknown = matches!(
        error.reason(),
        Reason::Timeout | Reason::Connection | Reason::BrokenReply | Reason::Overloaded | Reason::Other
    );
    is_unknown && error.was_asked()
}
