//! The local share: what this process may grant by itself.

use std::{num::NonZeroU32, sync::OnceLock};

use super::{LocalDecision, Share};
use crate::{
    backend::{Backend, BackendError, memory::MemoryBackend},
    check::{Check, Pair},
    decision::Decision,
};

/// Where local decisions are kept. There is nothing before the first one.
#[derive(Default)]
pub(crate) struct Local(OnceLock<MemoryBackend>);

/// What was decided locally.
pub(crate) enum Locally {
    /// This check was charged in the memory.
    Admitted(LocalDecision, Check),
    /// The share has no room.
    Denied,
    /// The memory could not decide either.
    Unavailable,
}

impl Local {
    pub(crate) fn in_memory(memory: MemoryBackend) -> Self {
        Self(memory.into())
    }

    pub(crate) fn memory(&self) -> &MemoryBackend {
        self.0.get_or_init(MemoryBackend::new)
    }

    /// Decides by this share of every quota what the store could not, for this reason.
    pub(crate) fn decide(&self, check: &Check, share: Share, error: &BackendError) -> Locally {
        let Some(check) = shared(check, share) else { return Locally::Denied };
        if check.pairs().is_empty() {
            // Nothing costs anything.
            return Locally::Admitted(LocalDecision::new(Decision::new(0, []), error.clone()), check);
        }
        match self.memory().check_now(&check) {
            Some(Ok(decision)) if decision.is_admitted() => {
                Locally::Admitted(LocalDecision::new(decision, error.clone()), check)
            }
            Some(Ok(_)) => Locally::Denied,
            Some(Err(_)) | None => Locally::Unavailable,
        }
    }
}

/// The check by shares. None if a pair costs something and its share is 0.
fn shared(check: &Check, share: Share) -> Option<Check> {
    let part = |pair: &Pair| {
        let quota = NonZeroU32::new(pair.policy.quota() / share.processes());
        quota.map(|quota| Pair { policy: pair.policy.with_quota(quota), ..pair.clone() })
    };
    let costs = check.pairs().iter().filter(|pair| pair.cost > 0 || part(pair).is_some());
    Some(check.with_pairs(costs.map(part).collect::<Option<_>>()?))
}
