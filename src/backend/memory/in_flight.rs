//! The count of a policy in flight: the units that requests hold. A release returns them.

use super::count::{Count, Forecast, UsageReading};
use crate::{check::Receipt, policy::Policy};

/// The units that requests of one partition key hold. They are the same at every instant.
#[derive(Clone, Copy)]
pub(super) struct InFlight {
    held: u64,
}

impl Count for InFlight {
    const EMPTY: Self = Self { held: 0 };

    type Reading<'a> = Self;
    type Instant = ();

    fn read(&self, _: u64, _: &Policy) -> Self {
        *self
    }

    fn instant(_: &Self) {}

    fn charge(&mut self, (): (), units: u32) {
        self.held += u64::from(units);
    }

    /// Releases units.
    fn refund(&mut self, _: u64, _: &Policy, _: Receipt, units: u32) {
        self.held = self.held.saturating_sub(units.into());
    }

    fn idle_at(&self, _: &Policy) -> u64 {
        if self.held > 0 { u64::MAX } else { 0 }
    }
}

impl UsageReading for InFlight {
    fn used(&self) -> u64 {
        self.held
    }

    /// It is not known.
    fn falls_to(&self, _: u64) -> u64 {
        u64::MAX
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        Forecast { used: self.held + units, next: 0, reset: 0 }
    }
}
