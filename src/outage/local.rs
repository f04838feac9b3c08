//! The local fallback: decisions in the memory of this process.

use std::{num::NonZeroU32, sync::OnceLock};

use super::{LocalDecision, Share};
use crate::{
    backend::{Backend, MemoryBackend},
    check::{Check, Pair},
    decision::Decision,
    error::BackendError,
};

/// The memory of the local fallback. It is created by the first local decision.
#[derive(Default)]
pub(crate) struct LocalFallback(OnceLock<MemoryBackend>);

/// The result of a local decision.
pub(crate) enum FallbackOutcome {
    /// The check was charged in the memory.
    Admitted(LocalDecision, Check),
    /// The share has no room.
    Denied,
    /// The memory could not decide.
    Unavailable,
}

impl LocalFallback {
    pub(crate) fn in_memory(memory: MemoryBackend) -> Self {
        Self(memory.into())
    }

    pub(crate) fn memory(&self) -> &MemoryBackend {
        self.0.get_or_init(MemoryBackend::new)
    }

    /// Decides a check by this share of every quota, after this error of the store. If `clamps`, a cost above the share is clamped
    /// to it.
    pub(crate) fn decide(
        &self,
        check: &Check,
        share: Share,
        clamps: bool,
        error: &BackendError,
    ) -> FallbackOutcome {
        let Some(mut check) = shared(check, share) else { return FallbackOutcome::Denied };
        if clamps {
            check.clamp();
        }
        if check.pairs().is_empty() {
            // All costs are 0, except those of shadow pairs.
            return FallbackOutcome::Admitted(LocalDecision::new(Decision::new(0, []), error.clone()), check);
        }
        match self.memory().check_now(&check) {
            Some(Ok(decision)) if decision.is_admitted() => {
                FallbackOutcome::Admitted(LocalDecision::new(decision, error.clone()), check)
            }
            Some(Ok(_)) => FallbackOutcome::Denied,
            Some(Err(_)) | None => FallbackOutcome::Unavailable,
        }
    }
}

/// Returns the check with shares as quotas, or `None` if an enforcing pair with a cost above 0 has a share of 0.
fn shared(check: &Check, share: Share) -> Option<Check> {
    let part = |pair: &Pair| {
        let quota = NonZeroU32::new(pair.policy.quota_units() / share.processes());
        quota.map(|quota| Pair { policy: pair.policy.with_quota(quota), ..pair.clone() })
    };
    let is_left_out = |pair: &Pair| (pair.cost == 0 || pair.is_shadow) && part(pair).is_none();
    let costs = check.pairs().iter().filter(|pair| !is_left_out(pair));
    Some(check.with_pairs(costs.map(part).collect::<Option<_>>()?))
}
