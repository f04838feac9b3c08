//! What was asked and is under way.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Limiter,
    engine::{Outcome, Progress},
};
use crate::{backend::BackendError, check::Check, decision::Decision, settle::Reservation};

/// A check under way. It resolves to the decision, at once where the backend answers at once.
#[must_use = "a check does nothing unless it is awaited"]
pub struct CheckFuture(pub(super) Progress<Decision>);

/// A reservation under way; made by [`Limiter::reserve`].
#[must_use = "a reservation does nothing unless it is awaited"]
pub struct ReserveFuture(pub(super) Ask);

/// A reset under way; made by [`Limiter::reset`].
#[must_use = "a reset does nothing unless it is awaited"]
pub struct ResetFuture(pub(super) Progress<()>);

/// What became of a reservation.
#[derive(Clone, Debug)]
pub enum Reserved {
    /// It was admitted and charged. The charge stands unless it is settled.
    Admitted(Reservation),
    /// It was denied, and nothing was charged.
    Denied(Decision),
}

impl Reserved {
    /// What was decided.
    pub fn decision(&self) -> &Decision {
        match self {
            Self::Admitted(reservation) => reservation.decision(),
            Self::Denied(decision) => decision,
        }
    }

    /// The handle to settle, if it was admitted.
    pub fn admitted(self) -> Option<Reservation> {
        match self {
            Self::Admitted(reservation) => Some(reservation),
            Self::Denied(_) => None,
        }
    }
}

/// A check under way that may be a reservation.
pub(crate) struct Ask {
    pub(super) progress: Progress<Decision>,
    /// None for a plain check.
    pub(super) reserving: Option<(Limiter, Check)>,
}

/// The decision on a request.
pub(crate) struct Verdict {
    pub(crate) decision: Decision,
    /// There if the decision is an admission, and it was asked for.
    pub(crate) reservation: Option<Reservation>,
}

impl Ask {
    /// The verdict, if it is there already; or else what is still under way.
    pub(crate) fn now(self) -> Result<Outcome<Verdict>, Self> {
        match self.progress.now() {
            Ok(outcome) => Ok(outcome.map(|decision| Verdict::new(decision, self.reserving))),
            Err(progress) => Err(Self { progress, ..self }),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<Verdict>> {
        let outcome = ready!(self.progress.poll(cx));
        Poll::Ready(outcome.map(|decision| Verdict::new(decision, self.reserving.take())))
    }
}

impl Verdict {
    fn new(decision: Decision, reserving: Option<(Limiter, Check)>) -> Self {
        let reserving = reserving.filter(|_| decision.is_admitted());
        let reservation =
            reserving.map(|(limiter, check)| Reservation::new(limiter, check, decision.clone()));
        Self { decision, reservation }
    }
}

impl Future for CheckFuture {
    type Output = Result<Decision, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl Future for ReserveFuture {
    type Output = Result<Reserved, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.0.poll(cx));
        Poll::Ready(outcome.map(|Verdict { decision, reservation }| match reservation {
            Some(reservation) => Reserved::Admitted(reservation),
            None => Reserved::Denied(decision),
        }))
    }
}

impl Future for ResetFuture {
    type Output = Result<(), BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for CheckFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckFuture").finish_non_exhaustive()
    }
}

impl fmt::Debug for ReserveFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReserveFuture").finish_non_exhaustive()
    }
}

impl fmt::Debug for ResetFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResetFuture").finish_non_exhaustive()
    }
}
