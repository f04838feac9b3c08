//! Outages: what happens if the backend makes no decision.
//!
//! A deadline, a circuit breaker and a bound on checks in flight protect the service from a store that fails. The
//! [`OutageRule`] states what happens to a request without a decision. The [`DenyCacheConfig`] answers repeated denials without the
//! store.

mod admission;
mod local;
mod readiness;
mod rule;

pub use admission::{LocalDecision, Unchecked};
pub(crate) use local::LocalFallback;
pub use readiness::Readiness;
pub use rule::{OutageRule, Share};

pub use crate::{
    deny_cache::DenyCacheConfig,
    guard::{Breaker, Protection},
    observe::server_breaker::{BreakerState, ServerBreaker},
};
