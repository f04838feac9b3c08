//! The local fallback: decisions in the memory of this process.

use std::{
    num::NonZeroU32,
    sync::{Arc, LazyLock},
};

use super::{LocalDecision, Share};
use crate::{
    backend::DynBackend,
    check::{Check, Pair},
    decision::Decision,
    error::BackendError,
};

/// The memory of the local fallback. It is created by the first local decision.
pub(crate) struct LocalFallback(LazyLock<Arc<dyn DynBackend>, CreateMemory>);

type CreateMemory = Box<dyn FnOnce() -> Arc<dyn DynBackend> + Send>;

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
    /// `memory` creates the memory.
    pub(crate) fn new(memory: impl FnOnce() -> Arc<dyn DynBackend> + Send + 'static) -> Self {
        Self(LazyLock::new(Box::new(memory)))
    }

    pub(crate) fn memory(&self) -> &Arc<dyn DynBackend> {
        &self.0
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
