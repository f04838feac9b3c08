//! The count of a gate: the instant until which it blocks. Only an overage charges it.

use super::count::{Count, Forecast, UsageReading};
use crate::policy::{BLOCK_UNIT, Policy};

/// A gate of one partition key.
pub(super) struct Gate {
    until: u64,
}

/// A gate at one instant.
#[derive(Clone, Copy)]
pub(super) struct GateReading {
    clock: u64,
    /// At least the clock.
    until: u64,
    /// The longest block, in microseconds.
    longest: u64,
}

impl GateReading {
    /// Returns the end of a block of these units that begins now, or that of the present block if it is later.
    fn until_after(&self, units: u64) -> u64 {
        self.until.max(self.clock + (units * BLOCK_UNIT).min(self.longest))
    }
}

impl Count for Gate {
    const EMPTY: Self = Self { until: 0 };

    type Reading<'a> = GateReading;
    type Instant = GateReading;

    fn read(&self, clock: u64, policy: &Policy) -> GateReading {
        let longest = policy.window_micros();
        // The clock may be behind by one longest block. A later instant is of another clock.
        let until = if self.until > clock + 2 * longest { clock } else { self.until.max(clock) };
        GateReading { clock, until, longest }
    }

    fn instant(reading: &GateReading) -> GateReading {
        *reading
    }

    fn charge(&mut self, reading: GateReading, units: u32) {
        self.until = reading.until_after(units.into());
    }

    fn idle_at(&self, _: &Policy) -> u64 {
        self.until
    }
}

impl UsageReading for GateReading {
    /// A gate that blocks is used up.
    fn used(&self) -> u64 {
        if self.until > self.clock { u32::MAX.into() } else { 0 }
    }

    fn falls_to(&self, _: u64) -> u64 {
        self.until
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        let after = Self { until: self.until_after(units), ..*self };
        Forecast { used: after.used(), next: after.until, reset: after.until }
    }
}
