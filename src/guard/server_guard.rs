//! The guard of a server: circuit breaker, load shedding and deadline.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    breaker::{BreakerChange, Circuit, CircuitTicket, ServerAnswer},
    deadline::until,
    protection::{Protection, SharedProtection},
};
use crate::{
    check::Check,
    decision::Decision,
    error::{BackendError, Reason},
    observe::{LateCause, ServerBreaker, ServerEvents},
};

/// The number of checks in flight from which this process may delay their answers, instead of the server.
const CROWD: usize = 64;

/// The guard of one server, or of a backend that is guarded as a whole.
pub(crate) struct Guard {
    pub(crate) protection: Arc<SharedProtection>,
    circuit: Circuit,
    in_flight: AtomicUsize,
    pub(crate) events: ServerEvents,
}

/// A check in flight.
pub(crate) struct Pass {
    pub(crate) guard: Arc<Guard>,
    /// `None` if the call that contains this check has it.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "dropping it releases the place"))]
    pub(crate) permit: Option<Permit>,
    /// The deadline of the check. `None` without a limiter.
    pub(crate) deadline: Option<Instant>,
    /// Whether it began among many others.
    is_crowded: bool,
    /// `None` once its outcome is reported. Dropping it reports nothing.
    ticket: Option<CircuitTicket>,
}

/// A place in the count of checks in flight. Dropping it releases the place.
pub(crate) struct Permit(Arc<Guard>);

/// The right to report the outcome of a call that decides several checks. Dropping it reports nothing.
#[cfg(feature = "redis")]
pub(crate) struct CallReport {
    guard: Arc<Guard>,
    ticket: CircuitTicket,
}

impl Guard {
    /// Returns the guard of one of the servers that share this protection. Events name the server: its address without user and
    /// password. [`register`](Self::register) registers its metrics.
    pub(crate) fn new(protection: Arc<SharedProtection>, server: impl Into<Box<str>>) -> Arc<Self> {
        let (circuit, events) = (Circuit::default(), ServerEvents::new(server));
        Arc::new(Self { protection, circuit, in_flight: AtomicUsize::new(0), events })
    }

    /// Registers the metrics of the server, so that they exist before its first outage. The recorder may use the backend, so the caller
    /// holds no lock.
    #[cfg(feature = "redis")]
    pub(crate) fn register(&self) {
        self.events.register();
    }

    /// Returns the guard of a whole backend.
    pub(crate) fn for_backend(protection: Protection, store: &str) -> Arc<Self> {
        let shared = SharedProtection::default();
        shared.add(protection);
        // The name of such a store may have a number. Its breaker has no metrics unless it opens.
        Self::new(Arc::new(shared), store)
    }

    /// Returns the circuit breaker, or `None` if there is none.
    pub(crate) fn breaker(&self) -> Option<ServerBreaker> {
        let (breaker, _) = self.protection.breaker();
        breaker.map(|_| self.circuit.breaker(self.events.server()))
    }

    /// Asks the store until the deadline, if the circuit breaker permits it and fewer than `max_checks_in_flight` checks are in flight.
    pub(crate) async fn ask(
        self: Arc<Self>,
        check: &Check,
        deadline: Instant,
        asked: impl Future<Output = Result<Decision, BackendError>>,
    ) -> Result<Decision, BackendError> {
        let mut pass = self.enter(Some(deadline))?;
        match until(deadline, asked).await {
            Some(outcome) => pass.decided(check, outcome),
            None => Err(pass.time_out()),
        }
    }

    /// Returns the error of a check that got no answer in time: an overload if the server still answers other checks.
    pub(crate) fn timeout(&self) -> BackendError {
        self.unless_overload(BackendError::new(Reason::Timeout), false)
    }

    /// Returns the error of a check, or an overload if the error does not show that the server is silent. `is_crowded` states whether the
    /// check was one of many.
    fn unless_overload(&self, error: BackendError, is_crowded: bool) -> BackendError {
        let deadline = self.deadline();
        let was_busy = || self.circuit.was_busy(deadline);
        let cause = match error.reason() {
            _ if !error.was_asked() => return error,
            // The server has answered. It may have answered late.
            Reason::DeadlineExceeded if is_crowded => LateCause::Crowded,
            Reason::Timeout | Reason::DeadlineExceeded if was_busy() => LateCause::Busy,
            // A server that has begun to hang has answered the checks before this one only, which is a whole deadline ago.
            Reason::Timeout if !self.circuit.is_silent(deadline * 3 / 4) => LateCause::Slow,
            _ => return error,
        };
        self.events.answers_late(cause);
        BackendError::new(Reason::Overloaded)
    }

    /// Records by how much a task of this process was late. If many wait for their turn, so may the one that reads the replies.
    fn note_delay(&self, late: Duration) {
        let deadline = self.deadline();
        if late > deadline / 20 {
            self.circuit.busy(deadline);
        }
    }

    /// Returns the deadline of a check. Zero without a limiter.
    fn deadline(&self) -> Duration {
        self.protection.breaker().1
    }

    /// Records a reply whose callers have gone. Among many checks, a reply may be late because of this process, or of the others.
    #[cfg(feature = "redis")]
    pub(crate) fn answered_late(&self) {
        if self.in_flight.load(Ordering::Relaxed) >= CROWD {
            self.circuit.hear();
        }
    }

    /// Records that the server has answered outside a check.
    #[cfg(feature = "redis")]
    pub(crate) fn answered(&self) {
        self.log(self.circuit.close());
    }

    /// Ends the protection of a server that has left the topology, and its outage.
    #[cfg(feature = "redis")]
    pub(crate) fn retire(&self) {
        if let Some(open_for) = self.circuit.retire() {
            self.sync_metrics();
            self.events.server_left(open_for);
        }
    }

    /// Reports the outcome of a check, unless it has been reported.
    fn report(&self, ticket: Option<CircuitTicket>, outcome: Result<ServerAnswer, &BackendError>) {
        if let Some(ticket) = ticket {
            self.log(self.circuit.leave(ticket, outcome, || self.protection.breaker()));
            if outcome.is_err() {
                self.events.count_failure();
                // A failed probe keeps the breaker open.
                self.sync_metrics();
            }
        }
    }

    /// Reports that the deadline of a check has passed, unless this is an overload. Returns the error of the check.
    fn time_out(&self, ticket: Option<CircuitTicket>) -> BackendError {
        let error = self.timeout();
        if error.reason() != Reason::Overloaded {
            self.report(ticket, Err(&error));
        }
        error
    }

    fn log(&self, change: Option<BreakerChange>) {
        let events = &self.events;
        match change {
            Some(BreakerChange::Opened(error)) => {
                self.sync_metrics();
                events.breaker_opened(&error);
            }
            // Another thread may have closed it since.
            Some(BreakerChange::StillOpen(error, open_for)) if self.circuit.is_open() => {
                events.breaker_still_open(&error, open_for);
            }
            Some(BreakerChange::Closed(open_for)) => {
                self.sync_metrics();
                events.breaker_closed(open_for);
            }
            Some(BreakerChange::Failed(error)) => events.failed(&error),
            Some(BreakerChange::StillOpen(..)) | None => {}
        }
    }

    /// Sets the metrics to the present state. Other threads may have changed it since the change that this thread has made.
    fn sync_metrics(&self) {
        self.events.sync_metrics(|| self.circuit.is_open());
    }

    /// Starts a check, if the circuit breaker permits it and fewer than `max_checks_in_flight` checks are in flight. Otherwise, the error is an
    /// overload, unless the server has answered no check for one deadline.
    pub(crate) fn enter(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Pass, BackendError> {
        let ticket = self.circuit.enter()?;
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let permit = Some(Permit(self.clone()));
        let is_crowded = others >= CROWD;
        let pass = Pass { guard: self.clone(), permit, deadline, is_crowded, ticket: Some(ticket) };
        let max = self.protection.max_checks_in_flight();
        if others < max {
            return Ok(pass);
        }
        let reason = if self.circuit.is_failing(self.deadline()) {
            Reason::Timeout
        } else {
            self.events.overloaded(max);
            Reason::Overloaded
        };
        Err(BackendError::new(reason).not_sent("too many checks in flight"))
    }
}

impl Pass {
    /// Ends the check with its outcome, and returns the outcome for the caller.
    pub(crate) fn decided(
        self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        match outcome {
            Ok(decision) => {
                self.answered(ServerAnswer::from_write(decision.has_written(check)));
                Ok(decision)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Ends the check with an answer.
    pub(crate) fn answered(self, answer: ServerAnswer) {
        self.guard.report(self.ticket, Ok(answer));
    }

    /// Ends the check with an error, and returns the error for the caller.
    pub(crate) fn failed(self, error: BackendError) -> BackendError {
        let error = self.guard.unless_overload(error, self.is_crowded());
        match error.reason() {
            reason if reason.is_of_one_check() => self.answered(ServerAnswer::Reads),
            Reason::Overloaded => {}
            _ => self.guard.report(self.ticket, Err(&error)),
        }
        error
    }

    /// Reports that the deadline has passed, and returns the error for the caller. The check may still be in flight.
    pub(crate) fn time_out(&mut self) -> BackendError {
        let late = self.deadline.map_or(Duration::ZERO, |deadline| deadline.elapsed());
        if self.is_crowded() {
            self.guard.note_delay(late);
        }
        self.guard.time_out(self.ticket.take())
    }

    fn is_crowded(&self) -> bool {
        self.is_crowded || self.guard.in_flight.load(Ordering::Relaxed) >= CROWD
    }
}

#[cfg(feature = "redis")]
impl Pass {
    /// Returns whether this check is the probe of a breaker that is half-open.
    pub(crate) fn is_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.probe.is_some())
    }

    /// Returns whether the outcome of this check is not reported, or not by this pass.
    pub(crate) fn is_reported(&self) -> bool {
        self.ticket.is_none()
    }

    /// Gets a new right to report, for a retry after a call that has reported its outcome. The check stays in flight, so load
    /// shedding does not reject it.
    pub(crate) fn renew(&mut self) -> Result<(), BackendError> {
        self.ticket = Some(self.guard.circuit.enter()?);
        Ok(())
    }

    /// Takes the right to report, for the call that contains this check. From then on, this pass reports nothing.
    pub(crate) fn take_report(&mut self) -> Option<CallReport> {
        Some(CallReport { guard: self.guard.clone(), ticket: self.ticket.take()? })
    }

    /// Gives the right to report to this pass.
    pub(crate) fn give_report(&mut self, report: CallReport) {
        self.ticket = Some(report.ticket);
    }
}

#[cfg(feature = "redis")]
impl CallReport {
    /// Reports that the store has answered.
    pub(crate) fn answered(self, answer: ServerAnswer) {
        self.guard.report(Some(self.ticket), Ok(answer));
    }

    /// Records how long the call has waited for its turn in this process.
    pub(crate) fn has_waited(&self, time: Duration) {
        if self.guard.in_flight.load(Ordering::Relaxed) >= CROWD {
            self.guard.note_delay(time);
        }
    }

    /// Ends the call for its callers, who have all gone. Reports that its deadline has passed, unless this is an overload. Also
    /// returns whether it has reported this.
    pub(crate) fn time_out(self, deadline: Instant) -> (Arc<Guard>, bool) {
        self.has_waited(deadline.elapsed());
        let error = self.guard.time_out(Some(self.ticket));
        (self.guard, error.reason() != Reason::Overloaded)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "redis")]
    use super::*;

    #[cfg(feature = "redis")]
    #[test]
    fn renewed_pass_keeps_its_place() {
        let settings = Protection::new(None, Duration::from_secs(1), 1);
        let guard = Guard::for_backend(settings, "test");
        let mut pass = guard.enter(None).unwrap();
        drop(pass.take_report());
        // A check that is rejected occupies a place for a moment, too.
        guard.in_flight.fetch_add(1, Ordering::Relaxed);
        assert!(pass.is_reported() && pass.renew().is_ok() && !pass.is_reported());
        guard.in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(guard.enter(None).is_err_and(|error| error.reason() == Reason::Overloaded));
        drop(pass);
        assert!(guard.enter(None).is_ok());
    }

    /// Another thread may close a breaker before the thread that has opened it reports this.
    #[cfg(all(feature = "metrics", feature = "redis"))]
    #[test]
    fn late_report_of_opening_does_not_open_gauge() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let is_open = || recorder.handle().render().contains("rate_limit_breaker_open{server=\"test\"} 1");
        metrics::with_local_recorder(&recorder, || {
            let breaker = crate::outage::Breaker::new(1, Duration::from_secs(1));
            let guard = Guard::for_backend(Protection::new(Some(breaker), Duration::from_secs(1), 1), "test");
            let (ticket, error) = (guard.circuit.enter().unwrap(), BackendError::new(Reason::Connection));
            let opened = guard.circuit.leave(ticket, Err(&error), || guard.protection.breaker());
            guard.log(guard.circuit.close());
            guard.log(opened);
            assert!(!is_open(), "the breaker is closed");
        });
    }
}
