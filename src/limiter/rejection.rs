//! Why a request is rejected.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    decision::{Decision, Wait},
    error::{BackendError, ConfigError},
    key::KeyError,
};

/// The reason why a request is rejected. Only [`Denied`](Self::Denied) and [`WaitTooLong`](Self::WaitTooLong) state that a limit is
/// reached, and only they are a 429.
///
/// A rejection is in the extensions of the response, regardless of which code built the body.
/// [`to_response`](Self::to_response) makes a response of it. With the feature `axum`, a handler may return the rejection itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// The quota is used up.
    Denied(Decision),
    /// The backend could not decide, and the outage rule admits nothing: it is to fail closed, or it does not apply, as to an
    /// [overload](crate::guide::outages#overload), or the memory of the local fallback is full.
    Unavailable(BackendError),
    /// The backend could not decide, and the [local fallback](crate::OutageRule::LocalFallback) has no room. This is not a
    /// denial: the quota may not be used up, and no wait is known.
    LocalFallbackDenied(BackendError),
    /// The request gave up [waiting](crate::Limiter::wait): those ahead of it in the queue of its key need too long. The store was
    /// not asked for it.
    #[non_exhaustive]
    WaitTooLong {
        /// A lower bound of the remaining wait, if those ahead stay in the queue and no units are returned.
        at_least: Duration,
    },
    /// As many requests [wait](crate::Limiter::wait) as may wait, and others of this key are ahead. The store was not asked for
    /// this one.
    #[non_exhaustive]
    TooManyWaiting {
        /// The bound.
        max: usize,
        /// Whether it is the bound [for this key](crate::LimiterBuilder::max_waiting_per_key), or else the bound
        /// [for all keys](crate::LimiterBuilder::max_waiting).
        is_per_key: bool,
    },
    /// The request has no partition key that can be read.
    Key(KeyError),
    /// The request cannot be checked: it has too many pairs, the same pair twice, two policies of one name, or a key without
    /// policies. This is a mistake in the server, and the backend was not asked.
    Misconfigured(Arc<ConfigError>),
}

impl From<KeyError> for Rejection {
    fn from(error: KeyError) -> Self {
        Self::Key(error)
    }
}

impl Rejection {
    /// Creates a [`WaitTooLong`](Self::WaitTooLong), for the test of an answer.
    pub const fn wait_too_long(at_least: Duration) -> Self {
        Self::WaitTooLong { at_least }
    }

    /// Creates a [`TooManyWaiting`](Self::TooManyWaiting), for the test of an answer.
    pub const fn too_many_waiting(max: usize, is_per_key: bool) -> Self {
        Self::TooManyWaiting { max, is_per_key }
    }

    /// Returns the decision of a denial.
    pub fn decision(&self) -> Option<&Decision> {
        let Self::Denied(decision) = self else { return None };
        Some(decision)
    }

    /// Returns the error of the backend, if it made no decision.
    pub fn error(&self) -> Option<&BackendError> {
        let (Self::Unavailable(error) | Self::LocalFallbackDenied(error)) = self else { return None };
        Some(error)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => {
                f.write_str("rate limit exceeded: policy")?;
                for (i, policy) in decision.violated().enumerate() {
                    write!(f, "{} {:?}", if i == 0 { "" } else { "," }, policy.name())?;
                }
                match decision.retry_after() {
                    Wait::For(wait) => write!(f, "; retry after {wait:?}"),
                    Wait::Unknown => Ok(()),
                    Wait::Never => f.write_str("; the cost is above the quota"),
                }
            }
            Self::Unavailable(error) => error.fmt(f),
            Self::LocalFallbackDenied(error) => write!(f, "{error}; the local fallback has no room"),
            Self::WaitTooLong { at_least } => {
                write!(f, "rate limit wait is too long: the requests ahead need at least {at_least:?}")
            }
            Self::TooManyWaiting { max, is_per_key } => {
                let bound = if *is_per_key { "max_waiting_per_key" } else { "max_waiting" };
                write!(f, "too many requests wait for a rate limit: {max} wait, which is the bound `{bound}`")
            }
            Self::Key(error) => error.fmt(f),
            Self::Misconfigured(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Rejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied(_) | Self::WaitTooLong { .. } | Self::TooManyWaiting { .. } => None,
            Self::Unavailable(error) | Self::LocalFallbackDenied(error) => error.source(),
            Self::Key(error) => error.source(),
            Self::Misconfigured(error) => error.source(),
        }
    }
}
