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
    check::{Check, Namespace},
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
    pub(super) terms: Terms,
    /// The check, if it is needed again: for a reservation, or for the local fallback. The decision contains it as well.
    /// Boxed, because every request of a layer has room for this value, and few use it.
    pub(super) kept: Option<Box<(Limiter, Check)>>,
}

/// What happens to a request after its decision, or without one.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) rule: OutageRule,
    /// Whether the check has shadow pairs only, so that no error rejects the request.
    pub(super) is_shadow: bool,
    /// `None` for a plain charge.
    pub(super) reserve: Option<Reserve>,
}

impl Future for Waiting {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let decided = ready!(self.store.as_mut().poll(cx));
        let terms = self.terms;
        Poll::Ready(match self.kept.take().map(|kept| *kept) {
            Some((limiter, check)) => outcome(decided, terms, Some((&limiter, check))),
            None => outcome(decided, terms, None),
        })
    }
}

/// Returns the outcome of a decided check in a namespace that is no reservation.
#[inline]
pub(super) fn of_decision(decision: Decision, namespace: impl FnOnce() -> Namespace) -> Outcome {
    if decision.is_admitted() {
        let decision = decision.with_namespace(namespace());
        Ok(Admission { basis: Basis::Store(decision), reservation: None })
    } else {
        Err(Rejection::Denied(decision))
    }
}

/// Applies the outage rule.
pub(super) fn outcome(
    decided: Decided,
    Terms { rule, is_shadow, reserve }: Terms,
    kept: Option<(&Limiter, Check)>,
) -> Outcome {
    let error = match decided {
        Ok(decision) if decision.is_admitted() => {
            let (decision, reservation) = match (kept, reserve) {
                (Some((limiter, check)), Some(reserve)) => {
                    let (queue, decision) =
                        (limiter.queue().clone(), decision.with_namespace(check.place().clone()));
                    let reservation = Reservation::new(queue, check, decision.clone(), reserve.unsettled);
                    (decision, Some(reservation))
                }
                (Some((_, check)), None) => (decision.with_namespace(check.into_place()), None),
                (None, _) => (decision, None),
            };
            return Ok(Admission { basis: Basis::Store(decision), reservation });
        }
        Ok(decision) => return Err(Rejection::Denied(decision)),
        Err(error) => error,
    };
    match (rule, kept) {
        (OutageRule::FailOpen, kept) if is_shadow || error.reason().is_outage() => {
            let reservation = kept
                .filter(|_| reserve.is_some())
                .map(|(limiter, check)| Reservation::unchecked(limiter.queue().clone(), check));
            Ok(Admission { basis: Basis::Unchecked(Unchecked::new(error)), reservation })
        }
        (OutageRule::LocalFallback(share), Some((limiter, check)))
            if error.reason() != Reason::Overloaded =>
        {
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
