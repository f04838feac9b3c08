//! The guard of a store: circuit breaker, load shedding and deadline.

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
    Breaker,
    breaker::{Circuit, Report},
};
use crate::{
    backend::{BackendError, Reason},
    outage::breaker::Ticket,
};

/// The guard of a store that does not answer at once. Clones of a limiter share it.
pub(crate) struct Guard {
    circuit: Option<Circuit>,
    deadline: Duration,
    in_flight: AtomicUsize,
    max_in_flight: usize,
}

/// A check in flight. Dropping it releases its place.
struct Pass {
    guard: Arc<Guard>,
    /// `None` once its outcome is reported, or if there is no breaker.
    ticket: Option<Ticket>,
}

impl Guard {
    pub(crate) fn new(breaker: Option<Breaker>, deadline: Duration, max_in_flight: usize) -> Arc<Self> {
        let circuit = breaker.map(|breaker| Circuit::new(breaker, deadline));
        Arc::new(Self { circuit, deadline, in_flight: AtomicUsize::new(0), max_in_flight })
    }

    /// Returns the deadline of a check that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Asks the store until the deadline, if the circuit breaker permits it and fewer than `max_in_flight` checks are in flight.
    pub(crate) async fn ask<T>(
        self: Arc<Self>,
        asked: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let deadline = self.deadline;
        let mut pass = self.enter()?;
        let outcome = within(deadline, asked).await;
        pass.report(match &outcome {
            Err(error) if !error.reason().is_of_one_check() => Report::Failed(error),
            _ => Report::Answered,
        });
        outcome
    }

    fn enter(self: Arc<Self>) -> Result<Pass, BackendError> {
        let ticket = self.circuit.as_ref().map(Circuit::enter).transpose()?;
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let max = self.max_in_flight;
        // From here on, dropping it releases the place.
        let pass = Pass { guard: self, ticket };
        if others < max { Ok(pass) } else { Err(BackendError::new(Reason::Overloaded).unasked()) }
    }
}

impl Pass {
    fn report(&mut self, report: Report<'_>) {
        if let (Some(circuit), Some(ticket)) = (&self.guard.circuit, self.ticket.take()) {
            circuit.leave(ticket, report);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.report(Report::Dropped);
        self.guard.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a future until the deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    asked: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    // Without a runtime there is no timer, and creating one would panic.
    if tokio::runtime::Handle::try_current().is_err() {
        return asked.await;
    }
    tokio::time::timeout(deadline, asked).await.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)))
}
