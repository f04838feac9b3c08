//! The marks of a request that was admitted without a decision of the store.

use crate::{
    decision::Decision,
    error::{BackendError, Reason},
};

/// A request that was admitted without a check, because the outage rule is to [fail open](crate::OutageRule::FailOpen).
///
/// It is in the extensions of the request, in place of a [`Decision`], and in those of the response. In nested layers, it states
/// that at least one layer could not check.
#[derive(Clone, Debug)]
pub struct Unchecked(pub(crate) BackendError);

/// A request that the [local fallback](crate::OutageRule::LocalFallback) has admitted.
///
/// It is in the extensions of the request, in place of a [`Decision`], and in those of the response. There it holds no units [in
/// flight](crate::Policy::in_flight).
#[derive(Clone, Debug)]
pub struct LocalDecision {
    pub(crate) decision: Decision,
    pub(crate) error: BackendError,
}

impl Unchecked {
    /// Returns the error of the store.
    pub fn error(&self) -> &BackendError {
        &self.0
    }

    /// Returns the reason of the error.
    pub fn reason(&self) -> Reason {
        self.0.reason()
    }
}

impl LocalDecision {
    /// Returns a copy that holds no units.
    pub(crate) fn without_hold(&self) -> Self {
        Self { decision: self.decision.without_hold(), error: self.error.clone() }
    }

    /// Returns the local decision. The quota of its policies is the share of this process, and its statuses apply to this
    /// process only. It omits a pair of cost 0, and a shadow pair, whose share is 0.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the error of the store.
    pub fn error(&self) -> &BackendError {
        &self.error
    }

    /// Returns the reason of the error.
    pub fn reason(&self) -> Reason {
        self.error.reason()
    }
}
