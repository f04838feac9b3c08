//! The error of a service whose requests wait.

use std::{error::Error, fmt};

use crate::limiter::Rejection;

/// The error of a service of a [`WaitLayer`](super::WaitLayer): the request was rejected, or the inner service has failed.
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
