//! The readiness of a limiter, as plain data.

use std::fmt;

use super::ServerBreaker;

/// The readiness of a limiter: whether the store decides its checks now, or the [`OutageRule`](crate::OutageRule) applies; see
/// [`Limiter::readiness`](crate::Limiter::readiness).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Readiness {
    /// Every server is available, as far as its last checks show.
    Ready,
    /// Some servers are available. The outage rule applies to the checks of the others.
    Degraded,
    /// No server is available. The outage rule applies to every check.
    Unavailable,
}

impl Readiness {
    pub(crate) fn from_breakers(breakers: &[ServerBreaker]) -> Self {
        match breakers.iter().filter(|breaker| breaker.is_available).count() {
            available if available == breakers.len() => Self::Ready,
            0 => Self::Unavailable,
            _ => Self::Degraded,
        }
    }

    /// Returns whether the store decides at least some checks: `Ready` and `Degraded`.
    pub fn can_decide(self) -> bool {
        self != Self::Unavailable
    }
}

/// Writes `ready`, `degraded` or `unavailable`.
impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        })
    }
}
