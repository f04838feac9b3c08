//! The state of the circuit breaker of a server, as plain data.

use std::fmt;

/// The state of a circuit breaker; see [`Breaker`](crate::outage::Breaker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Every check asks the store.
    Closed,
    /// No check asks the store.
    Open,
    /// One check at a time asks the store, as a probe.
    HalfOpen,
}

/// The circuit breaker of one server; see [`Stats::breakers`](crate::observe::Stats::breakers).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerBreaker {
    /// The server: its address without user and password, or the name of the store.
    pub server: String,
    /// The state of the circuit breaker.
    pub state: BreakerState,
    /// Whether the server is expected to decide the next check. The breaker is closed, or it is half-open and no check has failed for
    /// 5 s. The look-ups of a cluster are available if at least one node is.
    pub is_available: bool,
}

impl ServerBreaker {
    /// Creates the state of the circuit breaker of a server, for a [`Backend`](crate::backend::Backend::breakers) of your own. The
    /// server is available unless the breaker is open.
    pub fn new(server: impl Into<String>, state: BreakerState) -> Self {
        Self { server: server.into(), state, is_available: state != BreakerState::Open }
    }
}

/// Writes `closed`, `open` or `half-open`.
impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        })
    }
}
