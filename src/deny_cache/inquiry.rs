//! A check that the store is asked, and what is learnt from its answer.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Denials,
    known::{Claim, Known},
};
use crate::{backend::BackendError, check::Check, decision::Decision};

/// What is known of a check before the store is asked.
pub(crate) enum Look {
    /// It is denied.
    Denied(Decision),
    /// The store has to be asked.
    Ask(Inquiry),
    /// The store has to be asked, and its answer is not remembered.
    Pass,
}

/// A check that the store has to be asked.
pub(crate) struct Inquiry {
    denials: Arc<Denials>,
    /// There if it is known to be denied, and asks for all who are denied likewise.
    claim: Option<Claim>,
}

/// A check that is being sent.
pub(crate) struct Sent {
    inquiry: Inquiry,
    at: Instant,
    evictions: u64,
}

impl Inquiry {
    pub(super) fn new(denials: Arc<Denials>, claim: Option<Claim>) -> Self {
        Self { denials, claim }
    }

    /// To be called right before the check is sent: what is learnt counts from here.
    pub(crate) fn send(self) -> Sent {
        let evictions = self.denials.evictions();
        Sent { inquiry: self, at: Instant::now(), evictions }
    }
}

impl Sent {
    /// Remembers what was denied. Where there is no answer to a check that is known to be denied, it is denied.
    pub(crate) fn learn(
        self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        let Self { inquiry: Inquiry { denials, claim }, at, evictions } = self;
        let decision = match outcome {
            Ok(decision) => decision,
            Err(error) => return claim.and_then(|_| denials.repeat(check)).ok_or(error),
        };
        let pairs = check.pairs().iter().zip(decision.statuses()).filter(|(pair, _)| pair.cost > 0);
        for (pair, status) in pairs {
            if !status.retry_after().is_zero() {
                // Slots of a cluster have a clock each, and what one has charged may just be going back.
                if !decision.is_divided() {
                    denials.enter(pair, Known::new(pair, status, at, decision.at_micros()), evictions);
                }
            } else if claim.is_some() {
                denials.refute(pair);
            }
        }
        Ok(decision)
    }
}
