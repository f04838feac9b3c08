//! What was asked and is under way.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Limiter,
    engine::{Boxed, Outcome, Progress},
};
use crate::{
    backend::{BackendError, Reason},
    check::Check,
    decision::Decision,
    outage::{Admission, Locally, OutageRule, Unchecked},
    settle::Reservation,
};

/// A check under way. It resolves to the decision, at once where the backend answers at once.
#[must_use = "a check does nothing unless it is awaited"]
pub struct CheckFuture(pub(super) Progress<Decision>);

/// A reservation under way; made by [`Limiter::reserve`].
#[must_use = "a reservation does nothing unless it is awaited"]
pub struct ReserveFuture {
    pub(super) progress: Progress<Decision>,
    /// None when it is done, or if there was nothing to ask.
    pub(super) kept: Option<(Limiter, Check)>,
}

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
            Self::Admitted(reservation) => reservation.charged(),
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

/// What became of a request when the [outage rule](OutageRule) has had its say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It goes on, and this is how it was let through; with the reservation, if it was asked for.
    Admitted(Admission, Option<Reservation>),
    /// The quota is used up.
    Denied(Decision),
    /// The store could not decide, and the [local share](OutageRule::Local) has no room. This is no denial.
    BeyondShare(BackendError),
    /// The store could not decide.
    Unavailable(BackendError),
}

/// A request under way; made by [`Limiter::admit`].
#[must_use = "a check does nothing unless it is awaited"]
pub struct AdmitFuture(pub(super) Admitting);

pub(super) enum Admitting {
    /// Empty when the verdict was taken.
    Now(Option<Verdict>),
    Later(Ask),
}

/// A check under way that a rule stands behind.
pub(crate) struct Ask {
    pub(super) asked: Boxed<Decision>,
    pub(super) rule: OutageRule,
    pub(super) reserves: bool,
    /// There if the check is needed once more: for a reservation, or to decide it locally.
    pub(super) kept: Option<(Limiter, Check)>,
}

impl Ask {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        let outcome = ready!(self.asked.as_mut().poll(cx));
        Poll::Ready(Verdict::new(outcome, self.rule, self.reserves, self.kept.take()))
    }
}

impl Verdict {
    pub(super) fn new(
        outcome: Outcome<Decision>,
        rule: OutageRule,
        reserves: bool,
        kept: Option<(Limiter, Check)>,
    ) -> Self {
        let error = match outcome {
            Ok(decision) if decision.is_admitted() => {
                let kept = kept.filter(|_| reserves);
                let held = kept.map(|(limiter, check)| Reservation::new(limiter, check, decision.clone()));
                return Self::Admitted(Admission::Checked(decision), held);
            }
            Ok(decision) => return Self::Denied(decision),
            Err(error) => error,
        };
        match (rule, kept) {
            (OutageRule::Admit, kept) if !error.reason().is_of_one_check() => {
                let held = kept.map(|(limiter, check)| Reservation::unchecked(limiter, check));
                Self::Admitted(Admission::Unchecked(Unchecked::new(error)), held)
            }
            (OutageRule::Local(share), Some((limiter, check))) => {
                match limiter.local().decide(&check, share, &error) {
                    Locally::Admitted(local, check) => {
                        let decision = local.decision().clone();
                        let held = reserves.then(|| Reservation::local(limiter, check, decision));
                        Self::Admitted(Admission::Local(local), held)
                    }
                    Locally::BeyondShare => Self::BeyondShare(error),
                    Locally::Unavailable => Self::Unavailable(error),
                }
            }
            _ => Self::Unavailable(error),
        }
    }
}

impl Future for AdmitFuture {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Verdict> {
        match &mut self.0 {
            Admitting::Now(verdict) => verdict.take().map_or(Poll::Pending, Poll::Ready),
            Admitting::Later(ask) => ask.poll(cx),
        }
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
        let outcome = ready!(self.progress.poll(cx));
        let kept = self.kept.take();
        Poll::Ready(outcome.and_then(|decision| match kept {
            _ if !decision.is_admitted() => Ok(Reserved::Denied(decision)),
            Some((limiter, check)) => Ok(Reserved::Admitted(Reservation::new(limiter, check, decision))),
            // Polled again after it was done, which is no use of a future.
            None => Err(BackendError::new(Reason::Other)),
        }))
    }
}

impl Future for ResetFuture {
    type Output = Result<(), BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
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
