//! What happens when the backend cannot answer: how long anybody waits for it, and what becomes of a request without a
//! decision.
//!
//! Nothing here knows of requests and responses, and nothing here is asked for a decision that is there at once.

mod admission;
mod breaker;
mod guard;
mod local;
mod rule;

pub use admission::{Admission, LocalDecision, Unchecked};
pub use breaker::Breaker;
pub(crate) use breaker::check_breaker;
pub(crate) use guard::{Guard, within};
pub(crate) use local::{Local, Locally};
pub use rule::{OutageRule, Share};
