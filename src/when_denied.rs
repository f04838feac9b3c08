//! What a service does with a denied request: it rejects the request, or lets it wait.

use std::{error::Error, fmt, time::Duration};

use crate::{
    key::KeyError,
    limiter::{Admission, Draft, Limiter, LimiterFuture, Rejection},
};

/// What a [`RateLimit`](crate::RateLimit) service does with a denied request. It is sealed: no other type implements it.
pub trait WhenDenied: Sealed {
    /// The error of the service, if the error of the inner service is `E`.
    type Error<E>;

    /// Converts the error of the inner service.
    fn inner_error<E>(error: E) -> Self::Error<E>;
}

pub trait Sealed {
    /// Starts the check of a request. Returns `None` if the request is exempt.
    fn start(
        &self,
        limiter: &Limiter,
        draft: Result<Draft, KeyError>,
    ) -> Option<LimiterFuture<Result<Admission, Rejection>>>;
}

/// Rejects a denied request at once, as [`RateLimitLayer`](crate::RateLimitLayer) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyAtOnce;

/// Lets a denied request wait, at most for this time, as [`WaitLayer`](crate::wait::WaitLayer) does.
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
    fn start(
        &self,
        limiter: &Limiter,
        draft: Result<Draft, KeyError>,
    ) -> Option<LimiterFuture<Result<Admission, Rejection>>> {
        limiter.start(draft).map(LimiterFuture)
    }
}

impl WhenDenied for WaitAtMost {
    type Error<E> = WaitError<E>;

    fn inner_error<E>(error: E) -> WaitError<E> {
        WaitError::Inner(error)
    }
}

impl Sealed for WaitAtMost {
    fn start(
        &self,
        limiter: &Limiter,
        draft: Result<Draft, KeyError>,
    ) -> Option<LimiterFuture<Result<Admission, Rejection>>> {
        limiter.start_waiting(draft, self.0).map(LimiterFuture)
    }
}

/// The error of a service of a [`WaitLayer`](crate::wait::WaitLayer): the request was rejected, or the inner service has failed.
#[derive(Clone, Debug)]
pub enum WaitError<E> {
    /// The limit rejects the request. The inner service has not received it.
    Rejected(Rejection),
    /// The inner service has failed.
    Inner(E),
}

impl<E> WaitError<E> {
    /// Returns the rejection, or `None` if the inner service has failed.
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            Self::Inner(_) => None,
        }
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

impl<E> From<Rejection> for WaitError<E> {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl<E: fmt::Display> fmt::Display for WaitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for WaitError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Rejected(rejection) => rejection.source(),
            Self::Inner(error) => error.source(),
        }
    }
}
