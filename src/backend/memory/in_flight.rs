//! The count of a policy in flight: the units that requests hold. A release returns them.

use super::count::{Count, Forecast, UsageReading};
use crate::policy::Policy;

/// The units that requests of one partition key hold.
pub(super) struct InFlight {
    held: u64,
}

/// The held units at one instant.
#[derive(Clone, Copy)]
pub(super) struct InFlightReading {
    clock: u64,
    held: u64,
}

impl InFlight {
    pub(super) fn release(&mut self, units: u32) {
        self.held = self.held.saturating_sub(units.into());
    }
}

impl Count for InFlight {
    const EMPTY: Self = Self { held: 0 };

    type Reading<'a> = InFlightReading;
    type Instant = InFlightReading;

    fn read(&self, clock: u64, _: &Policy) -> InFlightReading {
        InFlightReading { clock, held: self.held }
    }

    fn instant(reading: &InFlightReading) -> InFlightReading {
        *reading
    }

    fn charge(&mut self, _: InFlightReading, units: u32) {
        self.held += u64::from(units);
    }

    fn idle_at(&self, _: &Policy) -> u64 {
        if self.held > 0 { u64::MAX } else { 0 }
    }
}

impl UsageReading for InFlightReading {
    fn clock(&self) -> u64 {
        self.clock
    }

    fn used(&self) -> u64 {
        self.held
    }

    /// It is not known.
    fn falls_to(&self, _: u64) -> u64 {
        u64::MAX
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        Forecast { used: self.held + units, next: self.clock, reset: self.clock }
    }
}
