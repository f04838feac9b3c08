//! Outages: what happens if the backend makes no decision.
//!
//! A deadline, a circuit breaker and a bound on checks in flight protect the service from a store that fails. The
//! [`OutageRule`] states what happens to a request without a decision. The [`DenyCache`] answers repeated denials without the
//! store.

mod admission;
mod breaker;
mod guard;
mod local;
mod readiness;
mod rule;

pub use admission::{LocalDecision, Unchecked};
#[cfg(feature = "redis")]
pub(crate) use breaker::Answer;
pub(crate) use breaker::check_breaker;
pub use breaker::{Breaker, BreakerState, ServerBreaker};
pub use guard::Protection;
#[cfg(feature = "redis")]
pub(crate) use guard::{CallReport, LAST_TURNS, Pass, Permit, SharedProtection};
pub(crate) use guard::{Guard, before, until};
pub(crate) use local::{Local, Locally};
pub use readiness::Readiness;
pub use rule::{OutageRule, Share};

pub use crate::deny_cache::DenyCache;
