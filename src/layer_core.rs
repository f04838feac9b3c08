//! The state that all clones of a layer and of its services share.

use std::sync::Arc;

use crate::{
    decision::Decision,
    limiter::{AdmitResult, Limiter, request_outcome},
    observe::FirstRequests,
    per_thread::{Apart, PerThread},
};

/// What a layer and its services have.
pub(crate) type SharedCore<P> = Arc<PerThread<LocalCore<P>>>;

/// What a request keeps: it counts a reference that other threads do not count.
pub(crate) type LocalCore<P> = Arc<Apart<Arc<LayerCore<P>>>>;

pub(crate) struct LayerCore<P> {
    pub(crate) limiter: Limiter,
    pub(crate) protocol: P,
    first_requests: FirstRequests,
}

impl<P> LayerCore<P> {
    pub(crate) fn shared(limiter: Limiter, protocol: P) -> SharedCore<P> {
        let core = Arc::new(Self { limiter, protocol, first_requests: FirstRequests::all() });
        Arc::new(PerThread::new(|| Arc::new(Apart(core.clone()))))
    }

    /// Counts the outcome of a request. `None` is an exempt request. `route` returns its matched route. Warns if none of the first
    /// requests is limited.
    #[inline]
    pub(crate) fn responded<'a>(
        &self,
        outcome: Option<&AdmitResult>,
        route: impl FnOnce() -> Option<&'a str>,
    ) {
        self.limiter.events().responded(request_outcome(outcome), route);
        if self.first_requests.show(|| is_free(outcome)) {
            self.limiter.events().limits_nothing(self.limiter.policies());
        }
    }
}

/// Returns whether the outcome of a request is the same for any quota: it is exempt, or costs 0.
fn is_free(outcome: Option<&AdmitResult>) -> bool {
    let is_free = |decision: &Decision| decision.statuses().iter().all(|status| status.cost() == 0);
    outcome
        .is_none_or(|outcome| matches!(outcome, Ok(admission) if admission.decision().is_some_and(is_free)))
}
