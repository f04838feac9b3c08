//! The guard of a server: circuit breaker, load shedding and deadline.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Breaker, ServerBreaker,
    breaker::{Answer, Change, Circuit, Report, Ticket},
};
use crate::{
    backend::{BackendError, Reason},
    check::Check,
    decision::Decision,
    observe::ServerEvents,
};

/// The settings by which a limiter protects its service from a store that fails. A backend that
/// [protects](crate::backend::Backend::protect) its servers itself receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Protection {
    /// The circuit breaker, or `None` if the limiter has none.
    pub breaker: Option<Breaker>,
    /// The deadline of a check.
    pub deadline: Duration,
    /// The largest number of checks in flight.
    pub max_in_flight: usize,
}

/// The protection of all servers of a backend: the strictest settings of the limiters that share it.
#[derive(Default)]
pub(crate) struct SharedProtection(Mutex<Option<Protection>>);

/// The guard of one server, or of a backend that is guarded as a whole.
pub(crate) struct Guard {
    protection: Arc<SharedProtection>,
    circuit: Circuit,
    in_flight: AtomicUsize,
    events: ServerEvents,
}

/// A check in flight. Dropping it releases its place.
pub(crate) struct Pass {
    guard: Arc<Guard>,
    deadline: Option<Instant>,
    /// `None` once its outcome is reported.
    ticket: Option<Ticket>,
}

/// The right to report the outcome of a call that decides several checks. Dropping it reports nothing.
#[cfg(feature = "redis")]
pub(crate) struct CallReport {
    guard: Arc<Guard>,
    ticket: Ticket,
}

impl Protection {
    fn strictest(self, other: Self) -> Self {
        let breaker = match (self.breaker, other.breaker) {
            (Some(a), Some(b)) => {
                Some(Breaker { failures: a.failures.min(b.failures), open_for: a.open_for.max(b.open_for) })
            }
            (a, b) => a.or(b),
        };
        Self {
            breaker,
            deadline: self.deadline.min(other.deadline),
            max_in_flight: self.max_in_flight.min(other.max_in_flight),
        }
    }
}

impl SharedProtection {
    /// Adds the settings of a limiter.
    pub(crate) fn add(&self, new: Protection) {
        let mut settings = self.settings();
        *settings = Some(settings.map_or(new, |old| old.strictest(new)));
    }

    // No code that holds the lock can panic or wait.
    fn settings(&self) -> MutexGuard<'_, Option<Protection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn breaker(&self) -> (Option<Breaker>, Duration) {
        self.settings().map_or((None, Duration::ZERO), |settings| (settings.breaker, settings.deadline))
    }

    fn max_in_flight(&self) -> usize {
        self.settings().map_or(usize::MAX, |settings| settings.max_in_flight)
    }
}

impl Guard {
    /// Returns the guard of one of the servers that share this protection. Events name the server: its address without user and
    /// password.
    #[cfg(feature = "redis")]
    pub(crate) fn new(protection: Arc<SharedProtection>, server: impl Into<Box<str>>) -> Arc<Self> {
        let guard = Self::unregistered(protection, server.into());
        guard.events.register();
        Arc::new(guard)
    }

    fn unregistered(protection: Arc<SharedProtection>, server: Box<str>) -> Self {
        let (circuit, events) = (Circuit::default(), ServerEvents::new(server));
        Self { protection, circuit, in_flight: AtomicUsize::new(0), events }
    }

    /// Adds the settings of a limiter to those that this guard shares.
    #[cfg(feature = "redis")]
    pub(crate) fn protect(&self, protection: Protection) {
        self.protection.add(protection);
    }

    /// Returns the guard of a whole backend.
    pub(crate) fn of_backend(protection: Protection, store: &str) -> Arc<Self> {
        let shared = SharedProtection::default();
        shared.add(protection);
        // The name of such a store may have a number. Its breaker has no metrics unless it opens.
        Arc::new(Self::unregistered(Arc::new(shared), store.into()))
    }

    /// Returns the circuit breaker, or `None` if there is none.
    pub(crate) fn breaker(&self) -> Option<ServerBreaker> {
        let (breaker, _) = self.protection.breaker();
        breaker.map(|_| ServerBreaker::new(self.events.server(), self.circuit.breaker_state()))
    }

    /// Asks the store until the deadline, if the circuit breaker permits it and fewer than `max_in_flight` checks are in flight.
    pub(crate) async fn ask(
        self: Arc<Self>,
        check: &Check,
        deadline: Instant,
        asked: Pin<&mut impl Future<Output = Result<Decision, BackendError>>>,
    ) -> Result<Decision, BackendError> {
        let pass = self.enter(None)?;
        let outcome = before(deadline, asked).await;
        pass.decided(check, &outcome);
        outcome
    }

    fn report(&self, ticket: Ticket, report: Report<'_>) {
        let Self { circuit, protection, events, .. } = self;
        match circuit.leave(ticket, report, || protection.breaker()) {
            Some(Change::Opened(error)) => events.breaker_opened(&error),
            Some(Change::Closed(open_for)) => events.breaker_closed(open_for),
            Some(Change::Failed(error)) => events.failed(&error),
            None => {}
        }
    }

    /// Starts a check, if the circuit breaker permits it and fewer than `max_in_flight` checks are in flight.
    pub(crate) fn enter(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Pass, BackendError> {
        let ticket = self.circuit.enter()?;
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        // From here on, dropping it releases the place.
        let pass = Pass { guard: self.clone(), deadline, ticket: Some(ticket) };
        let max = self.protection.max_in_flight();
        if others < max {
            Ok(pass)
        } else {
            self.events.overloaded(max);
            Err(BackendError::new(Reason::Overloaded).unasked())
        }
    }
}

impl Pass {
    /// Returns whether this check is in flight at this guard.
    #[cfg(feature = "redis")]
    pub(crate) fn is_of(&self, guard: &Arc<Guard>) -> bool {
        Arc::ptr_eq(&self.guard, guard)
    }

    /// Ends the check with its outcome.
    pub(crate) fn decided(self, check: &Check, outcome: &Result<Decision, BackendError>) {
        self.finish(outcome.as_ref().map(|decision| match decision.has_written(check) {
            true => Answer::Works,
            false => Answer::Reads,
        }));
    }

    /// Ends the check with an error, or with an answer.
    pub(crate) fn finish(mut self, outcome: Result<Answer, &BackendError>) {
        self.report(match outcome {
            Ok(answer) => Report::Answered(answer),
            Err(error) if error.reason().is_of_one_check() => Report::Answered(Answer::Reads),
            Err(error) => Report::Failed(error),
        });
    }

    /// Reports that the deadline has passed. The check may still be in flight.
    pub(crate) fn time_out(&mut self) {
        self.report(Report::Failed(&BackendError::new(Reason::Timeout)));
    }

    fn report(&mut self, report: Report<'_>) {
        if let Some(ticket) = self.ticket.take() {
            self.guard.report(ticket, report);
        }
    }
}

#[cfg(feature = "redis")]
impl Pass {
    /// Returns whether this check is the probe of a breaker that is half-open.
    pub(crate) fn is_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_probe)
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn has_timed_out(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
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
    pub(crate) fn answered(self, answer: Answer) {
        self.guard.report(self.ticket, Report::Answered(answer));
    }

    /// Reports that the deadline has passed.
    pub(crate) fn time_out(self) {
        self.guard.report(self.ticket, Report::Failed(&BackendError::new(Reason::Timeout)));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.time_out();
        } else {
            self.report(Report::Dropped);
        }
        self.guard.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a future for at most the deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    asked: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    before(Instant::now() + deadline, asked).await
}

/// Runs a future until the deadline. A large future is best passed as a pinned reference, so that it is not copied.
pub(crate) async fn before<T>(
    deadline: Instant,
    asked: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let outcome = until(deadline, asked).await;
    outcome.unwrap_or_else(|| Err(BackendError::new(Reason::Timeout)))
}

/// Runs a future until an instant. Returns `None` if the instant comes first. Outside tokio, the instant has no effect.
pub(crate) async fn until<T>(end: Instant, future: impl Future<Output = T>) -> Option<T> {
    // Without a runtime there is no timer, and creating one would panic.
    if tokio::runtime::Handle::try_current().is_err() {
        return Some(future.await);
    }
    tokio::time::timeout_at(end, future).await.ok()
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "redis")]
    use super::*;

    #[cfg(feature = "redis")]
    #[test]
    fn renewed_pass_keeps_its_place() {
        let settings = Protection { breaker: None, deadline: Duration::from_secs(1), max_in_flight: 1 };
        let guard = Guard::of_backend(settings, "test");
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
}
