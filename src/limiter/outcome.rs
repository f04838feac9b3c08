//! The outcome of a request: `Result<Admission, Rejection>`.

use std::sync::Arc;

use super::rejection::Rejection;
use crate::{
    check::{Check, Namespace},
    decision::Decision,
    error::BackendError,
    hold::Hold,
    key::KeyError,
    observe::RequestOutcome,
    outage::{LocalDecision, Unchecked},
    settle::Reservation,
};

/// The result of a request.
pub(crate) type AdmitResult = Result<Admission, Rejection>;

/// An admitted request, and how it was admitted.
///
/// | outage rule | admitted by | method |
/// | --- | --- | --- |
/// | any, while the store answers | the store, which has charged the request | [`decision`](Self::decision) |
/// | [local fallback](crate::OutageRule::LocalFallback) | the memory of this process | [`local`](Self::local) |
/// | [fail open](crate::OutageRule::FailOpen) | nothing: the request is not counted | [`unchecked`](Self::unchecked) |
///
/// An [exempt](crate::protocol::Draft::exempt) request passes uncounted, and all three methods return `None`.
#[derive(Clone, Debug)]
#[must_use = "an admission may be unchecked, or contain a reservation; drop it if this makes no difference"]
pub struct Admission {
    pub(crate) basis: Basis,
    pub(crate) reservation: Option<Reservation>,
    /// The check that the store has admitted, if the limiter learns from answers.
    pub(crate) learning: Option<Arc<Check>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Basis {
    Store(Decision),
    Local(LocalDecision),
    Unchecked(Unchecked),
    /// The draft is exempt.
    Exempt,
}

impl Admission {
    pub(super) fn new(basis: Basis, reservation: Option<Reservation>) -> Self {
        Self { basis, reservation, learning: None }
    }

    /// Creates the admission of a plain charge, which is in this namespace.
    #[inline]
    pub(super) fn from_decision(decision: Decision, namespace: &Namespace) -> Self {
        Self::new(Basis::Store(decision.with_namespace(namespace)), None)
    }

    /// Returns the decision of the store, or `None` if the store has not decided.
    pub fn decision(&self) -> Option<&Decision> {
        let Basis::Store(decision) = &self.basis else { return None };
        Some(decision)
    }

    /// Returns the decision of the local fallback, if it has admitted the request.
    pub fn local(&self) -> Option<&LocalDecision> {
        let Basis::Local(local) = &self.basis else { return None };
        Some(local)
    }

    /// Returns the mark of a request that was admitted without a check.
    pub fn unchecked(&self) -> Option<&Unchecked> {
        let Basis::Unchecked(unchecked) = &self.basis else { return None };
        Some(unchecked)
    }

    /// Returns the error of the store, or `None` if there was none.
    pub fn error(&self) -> Option<&BackendError> {
        self.local().map(LocalDecision::error).or_else(|| self.unchecked().map(Unchecked::error))
    }

    /// Returns the units that the request holds under policies [in flight](crate::Policy::in_flight), in the store or in the memory of the
    /// local fallback. `None` if there are none.
    pub fn hold(&self) -> Option<&Hold> {
        let local = || self.local().and_then(|local| local.decision().hold());
        self.decision().and_then(Decision::hold).or_else(local)
    }

    /// Returns the reservation, if the request is a reservation.
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }
}

/// Returns the outcome of a request of a layer, for its metrics. `None` is an exempt request.
pub(crate) fn request_outcome(outcome: Option<&AdmitResult>) -> RequestOutcome {
    match outcome {
        None | Some(Ok(Admission { basis: Basis::Exempt, .. })) => RequestOutcome::Exempt,
        Some(Ok(Admission { basis: Basis::Store(_), .. })) => RequestOutcome::Admitted,
        Some(Ok(Admission { basis: Basis::Local(_), .. })) => RequestOutcome::LocalFallback,
        Some(Ok(Admission { basis: Basis::Unchecked(_), .. })) => RequestOutcome::Unchecked,
        Some(Err(rejection)) => match rejection {
            Rejection::Denied(_) | Rejection::WaitTooLong { .. } => RequestOutcome::Denied,
            Rejection::Unavailable(_)
            | Rejection::LocalFallbackDenied(_)
            | Rejection::TooManyWaiting { .. } => RequestOutcome::Unavailable,
            Rejection::Key(KeyError::Misconfigured { .. }) | Rejection::Misconfigured(_) => {
                RequestOutcome::Misconfigured
            }
            Rejection::Key(_) => RequestOutcome::InvalidKey,
        },
    }
}
