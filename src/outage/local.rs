//! The local fallback: decisions in the memory of this process.

use std::{
    num::NonZeroU32,
    sync::{Arc, LazyLock},
};

use super::Share;
use crate::{
    backend::DynBackend,
    check::{Check, Pair},
    decision::Decision,
    error::{BackendError, Reason},
};

/// The memory of the local fallback. It is created by the first local decision.
pub(crate) struct LocalFallback(LazyLock<Arc<dyn DynBackend>, CreateMemory>);

type CreateMemory = Box<dyn FnOnce() -> Arc<dyn DynBackend> + Send>;

impl LocalFallback {
    /// `memory` creates the memory.
    pub(crate) fn new(memory: impl FnOnce() -> Arc<dyn DynBackend> + Send + 'static) -> Self {
        Self(LazyLock::new(Box::new(memory)))
    }

    pub(crate) fn memory(&self) -> &Arc<dyn DynBackend> {
        &self.0
    }

    /// Decides a check by this share of every quota. If `clamps`, a cost above the share is clamped to it. Returns the decision and
    /// the check that was charged, `None` if the share has no room, and an error if the memory could not decide.
    pub(crate) fn decide(
        &self,
        check: &Check,
        share: Share,
        clamps: bool,
    ) -> Result<Option<(Decision, Check)>, BackendError> {
        let Some(mut check) = shared(check, share) else { return Ok(None) };
        if clamps {
            check.clamp();
        }
        let decision = match check.pairs() {
            // All costs are 0, except those of shadow pairs.
            [] => Decision::new(0, []),
            _ => self.memory().check_now(&check).unwrap_or_else(|| Err(BackendError::new(Reason::Other)))?,
        };
        Ok(decision.is_admitted().then_some((decision, check)))
    }
}

/// Returns the check with shares as quotas, or `None` if an enforcing pair with a cost above 0 has a share of 0.
fn shared(check: &Check, share: Share) -> Option<Check> {
    let part = |pair: &Pair| {
        let quota = NonZeroU32::new(pair.policy.quota_units() / share.processes());
        quota.map(|quota| Pair { policy: pair.policy.reduced_to(quota), ..pair.clone() })
    };
    let is_left_out = |pair: &Pair| (pair.cost == 0 || pair.is_shadow) && part(pair).is_none();
    let costs = check.pairs().iter().filter(|pair| !is_left_out(pair));
    Some(check.with_pairs(costs.map(part).collect::<Option<_>>()?))
}
