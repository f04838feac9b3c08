//! The settings of the guards of a backend.

use std::time::Duration;

use super::Breaker;
use crate::{lock::Lock, parameter::IntoOption};

/// The settings by which a limiter protects its service from a store that fails. A backend that
/// [protects](crate::backend::Backend::protect) its servers itself receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Protection {
    /// The circuit breaker, or `None` if the limiter has none.
    pub breaker: Option<Breaker>,
    /// The deadline of a check: 1 ms to 60 s, as [`LimiterBuilder::deadline`](crate::LimiterBuilder::deadline) validates.
    pub deadline: Duration,
    /// The largest number of checks in flight: 1 to 2^20, as [`LimiterBuilder::max_checks_in_flight`](crate::LimiterBuilder::max_checks_in_flight)
    /// validates.
    pub max_checks_in_flight: usize,
}

/// The protection of all servers of a backend: the strictest settings of the limiters that share it.
#[derive(Default)]
pub(crate) struct SharedProtection(Lock<Option<Protection>>);

impl Protection {
    /// Creates the settings of a limiter: to test a backend, or to pass them on to another one. Nothing is validated.
    pub fn new(breaker: impl IntoOption<Breaker>, deadline: Duration, max_checks_in_flight: usize) -> Self {
        Self { breaker: breaker.into(), deadline, max_checks_in_flight }
    }

    fn strictest(self, other: Self) -> Self {
        let breaker = match (self.breaker, other.breaker) {
            (Some(a), Some(b)) => {
                Some(Breaker { failures: a.failures.min(b.failures), open_for: a.open_for.max(b.open_for) })
            }
            (a, b) => a.or(b),
        };
        Self {
            breaker,
            deadline: self.deadline.min(other.deadline),
            max_checks_in_flight: self.max_checks_in_flight.min(other.max_checks_in_flight),
        }
    }
}

impl SharedProtection {
    /// Adds the settings of a limiter.
    pub(crate) fn add(&self, new: Protection) {
        let mut settings = self.0.lock();
        *settings = Some(settings.map_or(new, |old| old.strictest(new)));
    }

    pub(super) fn breaker(&self) -> (Option<Breaker>, Duration) {
        self.0.lock().map_or((None, Duration::ZERO), |settings| (settings.breaker, settings.deadline))
    }

    pub(super) fn max_checks_in_flight(&self) -> usize {
        self.0.lock().map_or(usize::MAX, |settings| settings.max_checks_in_flight)
    }
}
