//! Who may ask the store, and how many at once.

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
    breaker::{Circuit, Told},
};
use crate::{
    backend::{BackendError, Reason},
    outage::breaker::Ticket,
};

/// Stands before a store that does not answer at once. Clones of a limiter share it.
pub(crate) struct Guard {
    circuit: Option<Circuit>,
    deadline: Duration,
    in_flight: AtomicUsize,
    max_in_flight: usize,
}

/// A check that is under way. However it ends, its place is given back.
struct Pass {
    guard: Arc<Guard>,
    /// None when its end was told, or if there is no breaker.
    ticket: Option<Ticket>,
}

impl Guard {
    pub(crate) fn new(breaker: Option<Breaker>, deadline: Duration, max_in_flight: usize) -> Arc<Self> {
        let circuit = breaker.map(|breaker| Circuit::new(breaker, deadline));
        Arc::new(Self { circuit, deadline, in_flight: AtomicUsize::new(0), max_in_flight })
    }

    /// Until when nobody waits for what is asked now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Asks, if that is of use and there is a place, and waits until the deadline.
    pub(crate) async fn ask<T>(
        self: Arc<Self>,
        asked: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let deadline = self.deadline;
        let mut pass = self.enter()?;
        let outcome = within(deadline, asked).await;
        pass.tell(match &outcome {
            Err(error) if !error.reason().is_of_one_check() => Told::Failed(error),
            _ => Told::Answered,
        });
        outcome
    }

    fn enter(self: Arc<Self>) -> Result<Pass, BackendError> {
        let ticket = self.circuit.as_ref().map(Circuit::enter).transpose()?;
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let max = self.max_in_flight;
        // From here on dropping it gives back what was taken.
        let pass = Pass { guard: self, ticket };
        if others < max { Ok(pass) } else { Err(BackendError::new(Reason::Shed).unasked()) }
    }
}

impl Pass {
    fn tell(&mut self, told: Told<'_>) {
        if let (Some(circuit), Some(ticket)) = (&self.guard.circuit, self.ticket.take()) {
            circuit.leave(ticket, told);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.tell(Told::Nothing);
        self.guard.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is asked, for as long as this.
pub(crate) async fn within<T>(
    deadline: Duration,
    asked: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    // Without a runtime there is no timer, and asking for one would panic.
    if tokio::runtime::Handle::try_current().is_err() {
        return asked.await;
    }
    tokio::time::timeout(deadline, asked).await.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)))
}
