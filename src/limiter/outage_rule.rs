//! From the decision of a check to the outcome of its request: the outage rule applies without a decision.

use std::sync::Arc;

use super::{
    draft::Reserve,
    inner::Limiter,
    outcome::{Admission, AdmitResult, Basis},
    rejection::Rejection,
};
use crate::{
    check::{Check, Purpose},
    decision::{Decided, Decision},
    error::{BackendError, Reason},
    observe::Counted,
    outage::{LocalDecision, OutageRule, Share, Unchecked},
    settle::{Charged, Reservation, Settling, Unsettled},
};

/// What happens to a request after its decision, or without one.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) rule: OutageRule,
    /// `None` for a plain charge.
    pub(super) reserve: Option<Reserve>,
}

impl Terms {
    /// Returns the result of a decided check, or what the outage rule makes of an error.
    pub(super) fn outcome(self, limiter: &Limiter, check: Check, decided: Decided) -> AdmitResult {
        match decided {
            Ok(decision) if decision.is_admitted() => Ok(self.admitted(limiter, check, decision)),
            Ok(decision) => Err(Rejection::Denied(decision)),
            Err(error) => self.undecided(limiter, check, error),
        }
    }

    fn admitted(self, limiter: &Limiter, check: Check, decision: Decision) -> Admission {
        let learning = limiter.0.learner.as_ref().map(|_| Arc::new(decision.charged_check(check.clone())));
        let Some(reserve) = self.reserve else {
            return Admission { learning, ..Admission::from_decision(decision, check.scope()) };
        };
        let decision = decision.with_namespace(check.scope());
        let (queue, check) = (limiter.0.queue.clone(), decision.charged_check(check));
        let charged = Charged::Store(learning.as_ref().map(|_| Settling::default()));
        let reservation = Reservation::new(queue, check, decision.clone(), charged, reserve.unsettled);
        Admission { learning, ..Admission::new(Basis::Store(decision), Some(reservation)) }
    }

    /// Applies the outage rule.
    fn undecided(self, limiter: &Limiter, check: Check, error: BackendError) -> AdmitResult {
        match self.rule {
            // No error rejects the request of a check with shadow pairs only.
            OutageRule::FailOpen if error.reason().is_outage() || check.is_shadow() => {
                limiter.events().count(Counted::Unchecked, 1);
                let reservation = self.reserve.map(|_| limiter.uncharged(check));
                Ok(Admission::new(Basis::Unchecked(Unchecked(error)), reservation))
            }
            // Several slots cannot take units. This is no outage.
            _ if error.reason() == Reason::CrossSlot && matches!(check.purpose(), Purpose::TakeUpTo(_)) => {
                Err(Rejection::Unavailable(error))
            }
            OutageRule::LocalFallback(share) if error.reason() != Reason::Overloaded => {
                self.decided_locally(limiter, &check, share, error)
            }
            _ => Err(Rejection::Unavailable(error)),
        }
    }

    fn decided_locally(
        self,
        limiter: &Limiter,
        check: &Check,
        share: Share,
        error: BackendError,
    ) -> AdmitResult {
        let fallback = &limiter.0.local_fallback;
        let clamps = self.reserve.is_some_and(|reserve| reserve.clamps);
        match fallback.decide(check, share, clamps) {
            Ok(Some((decision, check))) => {
                limiter.events().count(Counted::LocalFallback, 1);
                let check = decision.charged_check(check);
                let reservation = self.reserve.map(|reserve| {
                    let (queue, charged) =
                        (limiter.0.queue.clone(), Charged::Local(fallback.memory().clone()));
                    Reservation::new(queue, check, decision.clone(), charged, reserve.unsettled)
                });
                Ok(Admission::new(Basis::Local(LocalDecision { decision, error }), reservation))
            }
            Ok(None) => Err(Rejection::LocalFallbackDenied(error)),
            Err(_) => {
                limiter.events().local_memory_full();
                Err(Rejection::Unavailable(error))
            }
        }
    }
}

impl Limiter {
    /// Returns the reservation of a request for which nothing was charged.
    pub(super) fn uncharged(&self, check: Check) -> Reservation {
        let (queue, decision) = (self.0.queue.clone(), Decision::new(0, []));
        Reservation::new(queue, check, decision, Charged::Nothing, Unsettled::Keep)
    }
}
