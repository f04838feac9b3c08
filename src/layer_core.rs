//! The state that all clones of a layer and of its services share.

use crate::{
    limiter::{Admission, Limiter, Rejection},
    observe::FirstRequests,
};

pub(crate) struct LayerCore<P> {
    pub(crate) limiter: Limiter,
    pub(crate) protocol: P,
    first_requests: FirstRequests,
}

impl<P> LayerCore<P> {
    pub(crate) fn new(limiter: Limiter, protocol: P) -> Self {
        Self { limiter, protocol, first_requests: FirstRequests::all() }
    }

    /// Counts the outcome of a request. `None` is an exempt request. `route` returns its matched route. Warns if none of the first
    /// requests is limited.
    #[inline]
    pub(crate) fn responded<'a>(
        &self,
        outcome: Option<&Result<Admission, Rejection>>,
        route: impl FnOnce() -> Option<&'a str>,
    ) {
        self.limiter.responded(outcome, route);
        if self.first_requests.show(|| is_free(outcome)) {
            self.limiter.events().limits_nothing(self.limiter.policies());
        }
    }
}

/// Returns whether the outcome of a request is the same for any quota: it is exempt, or costs 0.
fn is_free(outcome: Option<&Result<Admission, Rejection>>) -> bool {
    match outcome {
        None => true,
        Some(Ok(admission)) => admission
            .decision()
            .is_some_and(|decision| decision.statuses().iter().all(|status| status.cost() == 0)),
        Some(Err(_)) => false,
    }
}
