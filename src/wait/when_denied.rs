//! What a service does with a denied request.

use std::time::Duration;

use super::WaitError;
use crate::{
    key::KeyError,
    limiter::{AdmitFuture, Draft, Limiter},
};

/// What a [`RateLimit`](crate::RateLimit) service does with a denied request: [`DenyAtOnce`] or [`WaitAtMost`]. It is sealed: no other
/// type implements it.
pub trait WhenDenied: Sealed {
    /// The error of the service, if the error of the inner service is `E`.
    type Error<E>;

    /// Converts the error of the inner service.
    fn inner_error<E>(error: E) -> Self::Error<E>;
}

pub trait Sealed {
    /// Starts the check of a request. Returns `None` if the request is exempt.
    fn start(&self, limiter: &Limiter, draft: Result<Draft, KeyError>) -> Option<AdmitFuture>;
}

/// Rejects a denied request at once, as [`RateLimitLayer`](crate::RateLimitLayer) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyAtOnce;

/// Lets a denied request wait, at most for this time, as [`WaitLayer`](super::WaitLayer) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitAtMost(pub Duration);

impl WhenDenied for DenyAtOnce {
    type Error<E> = E;

    fn inner_error<E>(error: E) -> E {
        error
    }
}

impl Sealed for DenyAtOnce {
    #[inline]
    fn start(&self, limiter: &Limiter, draft: Result<Draft, KeyError>) -> Option<AdmitFuture> {
        limiter.start(draft).map(AdmitFuture)
    }
}

impl WhenDenied for WaitAtMost {
    type Error<E> = WaitError<E>;

    fn inner_error<E>(error: E) -> WaitError<E> {
        WaitError::Inner(error)
    }
}

impl Sealed for WaitAtMost {
    fn start(&self, limiter: &Limiter, draft: Result<Draft, KeyError>) -> Option<AdmitFuture> {
        limiter.start_waiting(draft, self.0).map(AdmitFuture)
    }
}
