//! What a service does with a denied request: it rejects the request, or lets it wait.

use std::{error::Error, time::Duration};

use crate::limiter::Rejection;

/// What a [`RateLimit`](crate::RateLimit) service does with a denied request. It is sealed: no other type implements it.
pub trait WhenDenied: Sealed {
    /// The error of the service, if the error of the inner service is `E`.
    type Error<E>;

    /// Converts the error of the inner service.
    fn inner_error<E>(error: E) -> Self::Error<E>;
}

pub trait Sealed {
    /// Returns how long a denied request may wait. `None` rejects it at once.
    fn at_most(&self) -> Option<Duration>;
}

/// Rejects a denied request at once, as [`RateLimitLayer`](crate::RateLimitLayer) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyAtOnce;

/// Lets a denied request wait, at most for this time, as [`WaitLayer`](crate::wait::WaitLayer) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitAtMost(pub(crate) Duration);

impl WhenDenied for DenyAtOnce {
    type Error<E> = E;

    fn inner_error<E>(error: E) -> E {
        error
    }
}

impl Sealed for DenyAtOnce {
    #[inline]
    fn at_most(&self) -> Option<Duration> {
        None
    }
}

impl WhenDenied for WaitAtMost {
    type Error<E> = WaitError<E>;

    fn inner_error<E>(error: E) -> WaitError<E> {
        WaitError::Inner(error)
    }
}

impl Sealed for WaitAtMost {
    fn at_most(&self) -> Option<Duration> {
        Some(self.0)
    }
}

/// The error of a service of a [`WaitLayer`](crate::wait::WaitLayer): the request was rejected, or the inner service has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub enum WaitError<E> {
    /// The limit rejects the request. The inner service has not received it.
    Rejected(#[from] Rejection),
    /// The inner service has failed.
    Inner(E),
}

impl<E> WaitError<E> {
    /// Returns the rejection, or `None` if the inner service has failed.
    pub fn rejection(&self) -> Option<&Rejection> {
        let Self::Rejected(rejection) = self else { return None };
        Some(rejection)
    }

    /// Returns the rejection or the inner error as a boxed error. Add `.map_err(WaitError::into_boxed)` to a
    /// `tower::ServiceBuilder` whose inner service has a boxed error, for example behind a timeout: a box is no
    /// [`Error`], so a `WaitError` that contains one is none either.
    pub fn into_boxed(self) -> Box<dyn Error + Send + Sync>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        match self {
            Self::Rejected(rejection) => rejection.into(),
            Self::Inner(error) => error.into(),
        }
    }
}
