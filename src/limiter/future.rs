//! Checks in progress.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Limiter,
    draft::Reserve,
    outcome::{Admission, Basis, Rejection},
};
use crate::{
    backend::{BackendError, Reason},
    check::Check,
    decision::Decision,
    now_or_later::{BoxFuture, NowOrLater},
    outage::{Locally, OutageRule, Unchecked},
    settle::Reservation,
};

type Decided = Result<Decision, BackendError>;
type Outcome = Result<Admission, Rejection>;

/// A request whose decision is in progress.
pub(crate) type Asking = NowOrLater<Outcome, Waiting>;

/// The future of [`Limiter::check`] and [`Limiter::peek`]. It resolves to the decision.
#[must_use = "a check does nothing unless it is awaited"]
pub struct CheckFuture(pub(super) NowOrLater<Decided>);

/// The future of [`Limiter::reserve`]. It resolves to the reservation, or the reason for the rejection.
#[must_use = "a reservation does nothing unless it is awaited"]
pub struct ReserveFuture(pub(super) Asking);

/// The future of [`Limiter::admit`]. It resolves to the admission, or the reason for the rejection.
#[must_use = "a check does nothing unless it is awaited"]
pub struct AdmitFuture(pub(super) Asking);

/// The future of [`Limiter::reset`].
#[must_use = "a reset does nothing unless it is awaited"]
pub struct ResetFuture(pub(super) NowOrLater<Result<(), BackendError>>);

/// A request that waits for the store, with what is needed to apply the outage rule.
pub(crate) struct Waiting {
    pub(super) store: BoxFuture<Decided>,
    pub(super) rule: OutageRule,
    /// `None` for a plain charge.
    pub(super) reserve: Option<Reserve>,
    /// The check, if it is needed again: for a reservation, or for the local fallback.
    pub(super) kept: Option<(Limiter, Check)>,
}

impl Future for Waiting {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let decided = ready!(self.store.as_mut().poll(cx));
        let (rule, reserve) = (self.rule, self.reserve);
        Poll::Ready(match self.kept.take() {
            Some((limiter, check)) => outcome(decided, rule, reserve, Some((&limiter, check))),
            None => outcome(decided, rule, reserve, None),
        })
    }
}

/// Applies the outage rule.
pub(super) fn outcome(
    decided: Decided,
    rule: OutageRule,
    reserve: Option<Reserve>,
    kept: Option<(&Limiter, Check)>,
) -> Outcome {
    let error = match decided {
        Ok(decision) if decision.is_admitted() => {
            let reservation = kept.zip(reserve).map(|((limiter, check), reserve)| {
                Reservation::new(limiter.queue().clone(), check, decision.clone(), reserve.unsettled)
            });
            return Ok(Admission { basis: Basis::Store(decision), reservation });
        }
        Ok(decision) => return Err(Rejection::Denied(decision)),
        Err(error) => error,
    };
    match (rule, kept) {
        (OutageRule::FailOpen, kept) if !error.reason().is_of_one_check() => {
            let reservation = kept
                .filter(|_| reserve.is_some())
                .map(|(limiter, check)| Reservation::unchecked(limiter.queue().clone(), check));
            Ok(Admission { basis: Basis::Unchecked(Unchecked::new(error)), reservation })
        }
        (OutageRule::LocalFallback(share), Some((limiter, check))) => {
            match limiter.local().decide(&check, share, reserve.is_some_and(|reserve| reserve.clamps), &error)
            {
                Locally::Admitted(local, check) => {
                    let reservation = reserve.map(|reserve| {
                        let (queue, memory) = (limiter.queue().clone(), limiter.local().memory().clone());
                        let decision = local.decision().clone();
                        Reservation::local(queue, memory, check, decision, reserve.unsettled)
                    });
                    Ok(Admission { basis: Basis::Local(local), reservation })
                }
                Locally::Denied => Err(Rejection::LocalFallbackDenied(error)),
                Locally::Unavailable => {
                    limiter.events().local_memory_full();
                    Err(Rejection::Unavailable(error))
                }
            }
        }
        _ => Err(Rejection::Unavailable(error)),
    }
}

impl Future for CheckFuture {
    type Output = Decided;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decided> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Future for ReserveFuture {
    type Output = Result<Reservation, Rejection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(outcome.and_then(|admission| {
            // An admitted reservation always has a handle.
            admission.reservation.ok_or_else(|| Rejection::Unavailable(BackendError::new(Reason::Other)))
        }))
    }
}

impl Future for AdmitFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Future for ResetFuture {
    type Output = Result<(), BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for AdmitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmitFuture").finish_non_exhaustive()
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
