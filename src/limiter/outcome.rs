//! The outcome of a request: `Result<Admission, Rejection>`.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    check::Namespace,
    decision::{Decision, Wait},
    error::{BackendError, ConfigError},
    key::KeyError,
    observe::RequestOutcome,
    outage::{LocalDecision, Unchecked},
    settle::Reservation,
};

/// The result of a request.
pub(crate) type AdmitResult = Result<Admission, Rejection>;

/// An admitted request, and how it was admitted.
///
/// | outage rule | admitted by | method |
/// | --- | --- | --- |
/// | any, while the store answers | the store, which has charged the request | [`decision`](Self::decision) |
/// | [local fallback](crate::OutageRule::LocalFallback) | the memory of this process | [`local`](Self::local) |
/// | [fail open](crate::OutageRule::FailOpen) | nothing: the request is not counted | [`unchecked`](Self::unchecked) |
///
/// An [exempt](crate::protocol::Draft::exempt) request passes uncounted, and all three methods return `None`.
#[derive(Clone, Debug)]
#[must_use = "an admission may be unchecked, or contain a reservation; drop it if this makes no difference"]
pub struct Admission {
    pub(crate) basis: Basis,
    pub(crate) reservation: Option<Reservation>,
}

#[derive(Clone, Debug)]
pub(crate) enum Basis {
    Store(Decision),
    Local(LocalDecision),
    Unchecked(Unchecked),
    /// The draft is exempt.
    Exempt,
}

impl Admission {
    /// Creates the admission of a plain charge, which is in this namespace.
    #[inline]
    pub(super) fn from_decision(decision: Decision, namespace: Namespace) -> Self {
        Self { basis: Basis::Store(decision.with_namespace(namespace)), reservation: None }
    }

    /// Returns the decision of the store, or `None` if the store has not decided.
    pub fn decision(&self) -> Option<&Decision> {
        let Basis::Store(decision) = &self.basis else { return None };
        Some(decision)
    }

    /// Returns the decision of the local fallback, if it has admitted the request.
    pub fn local(&self) -> Option<&LocalDecision> {
        let Basis::Local(local) = &self.basis else { return None };
        Some(local)
    }

    /// Returns the mark of a request that was admitted without a check.
    pub fn unchecked(&self) -> Option<&Unchecked> {
        let Basis::Unchecked(unchecked) = &self.basis else { return None };
        Some(unchecked)
    }

    /// Returns the error of the store, or `None` if there was none.
    pub fn error(&self) -> Option<&BackendError> {
        self.local().map(LocalDecision::error).or_else(|| self.unchecked().map(Unchecked::error))
    }

    /// Returns the reservation, if the request is a reservation.
    pub fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }
}

/// The reason why a request is rejected. Only [`Denied`](Self::Denied) and [`WaitTooLong`](Self::WaitTooLong) are caused by the
/// client, and only they are a 429.
///
/// A rejection is in the extensions of the response, regardless of which code built the body. With the feature `axum`, it is also a
/// response that a handler may return.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// The quota is used up.
    Denied(Decision),
    /// The backend could not decide, and the outage rule is to fail closed.
    Unavailable(BackendError),
    /// The backend could not decide, and the [local fallback](crate::OutageRule::LocalFallback) has no room. This is not a
    /// denial: the quota may not be used up, and no wait is known.
    LocalFallbackDenied(BackendError),
    /// The request gave up [waiting](crate::Limiter::wait): those ahead of it in the queue of its key need too long. The store was
    /// not asked for it.
    WaitTooLong {
        /// A lower bound of the remaining wait, if those ahead stay in the queue and no units are returned.
        at_least: Duration,
    },
    /// As many requests [wait](crate::Limiter::wait) as may wait, and others of this key are ahead. The store was not asked for
    /// this one.
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

impl Rejection {
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

/// Returns the outcome of a request of a layer, for its metrics. `None` is an exempt request.
pub(crate) fn request_outcome(outcome: Option<&AdmitResult>) -> RequestOutcome {
    match outcome {
        None | Some(Ok(Admission { basis: Basis::Exempt, .. })) => RequestOutcome::Exempt,
        Some(Ok(Admission { basis: Basis::Store(_), .. })) => RequestOutcome::Admitted,
        Some(Ok(Admission { basis: Basis::Local(_), .. })) => RequestOutcome::LocalFallback,
        Some(Ok(Admission { basis: Basis::Unchecked(_), .. })) => RequestOutcome::Unchecked,
        Some(Err(rejection)) => match rejection {
            Rejection::Denied(_) | Rejection::WaitTooLong { .. } => RequestOutcome::Denied,
            Rejection::Unavailable(_)
            | Rejection::LocalFallbackDenied(_)
            | Rejection::TooManyWaiting { .. } => RequestOutcome::Unavailable,
            Rejection::Key(KeyError::Misconfigured { .. }) | Rejection::Misconfigured(_) => {
                RequestOutcome::Misconfigured
            }
            Rejection::Key(_) => RequestOutcome::InvalidKey,
        },
    }
}
