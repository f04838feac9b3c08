//! The guard of a server: circuit breaker, load shedding and deadline.

mod breaker;
mod deadline;
mod protection;
mod server_guard;

pub use breaker::Breaker;
#[cfg(feature = "redis")]
pub(crate) use breaker::ServerAnswer;
#[cfg(feature = "redis")]
pub(crate) use deadline::LAST_TURNS;
pub(crate) use deadline::{before, until};
pub use protection::Protection;
#[cfg(feature = "redis")]
pub(crate) use protection::SharedProtection;
pub(crate) use server_guard::Guard;
#[cfg(feature = "redis")]
pub(crate) use server_guard::{CallReport, Pass, Permit};
