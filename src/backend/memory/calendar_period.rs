//! The count of a calendar period.

use super::count::{Count, Forecast, UsageReading, monotonic_instant};
use crate::{
    backend::generation::{Generation, Generations},
    check::Receipt,
    observe,
    policy::Policy,
};

/// The usage of a period saturates here. Only overages beyond a quota can reach it.
const MAX_USED: u64 = (1 << 33) - 1;

/// The usage of one partition key under one policy in a calendar period.
pub(super) struct CalendarPeriod {
    /// That of the charges of the period.
    generation: Generation,
    /// The instant of the last charge, which is in the period.
    last: u64,
    begin: u64,
    /// The end of the period, as of the policies that have charged it: the latest one.
    end: u64,
    used: u64,
}

/// A calendar period at one instant.
#[derive(Clone, Copy)]
pub(super) struct CalendarPeriodReading {
    /// The clock as read.
    clock: u64,
    /// The instant of the pair: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    begin: u64,
    /// The end of the period, as of the policy that reads it.
    end: u64,
    kept_until: u64,
    used: u64,
}

impl Count for CalendarPeriod {
    const EMPTY: Self = Self { generation: Generation::NONE, last: 0, begin: 0, end: 0, used: 0 };

    type Reading<'a> = CalendarPeriodReading;
    type Instant = CalendarPeriodReading;

    fn read(&self, clock: u64, policy: &Policy) -> CalendarPeriodReading {
        let Self { last, begin, end, used, .. } = *self;
        let period = policy.period_at(clock);
        let new = CalendarPeriodReading {
            clock,
            now: clock,
            begin: period.start,
            end: period.end,
            kept_until: period.end,
            used: 0,
        };
        match monotonic_instant(clock, last, end - begin) {
            None => new,
            Some(now) if now > clock => {
                CalendarPeriodReading { now, begin, end, kept_until: end, used, ..new }
            }
            // A later begin starts a period only if nothing was charged since. Otherwise, policies with other begins would start
            // several periods in one.
            Some(_) if period.start > begin && period.start > last => new,
            Some(_) => {
                if period.start < begin {
                    observe::earlier_period(policy);
                }
                CalendarPeriodReading { begin, kept_until: end.max(period.end), used, ..new }
            }
        }
    }

    fn instant(reading: &CalendarPeriodReading) -> CalendarPeriodReading {
        *reading
    }

    fn charge(&mut self, reading: CalendarPeriodReading, cost: u32) {
        let CalendarPeriodReading { now, begin, kept_until, used, .. } = reading;
        let generation = if used == 0 { Generation::NONE } else { self.generation };
        *self =
            Self { generation, last: now, begin, end: kept_until, used: reading.used_after(u64::from(cost)) };
    }

    fn receipt(&mut self, _: CalendarPeriodReading, generations: &Generations) -> Receipt {
        Receipt { generation: self.generation.get(generations), at_micros: self.last, ordinal: 0 }
    }

    fn refund(&mut self, clock: u64, _: &Policy, receipt: Receipt, units: u32) {
        let now = monotonic_instant(clock, self.last, self.end - self.begin);
        if now.is_some_and(|now| now < self.end) && self.generation.is(receipt.generation) {
            self.used = self.used.saturating_sub(units.into());
        }
    }

    fn idle_at(&self, _: &Policy) -> u64 {
        if self.used == 0 { self.last } else { self.end }
    }
}

impl CalendarPeriodReading {
    fn used_after(&self, units: u64) -> u64 {
        (self.used + units).min(MAX_USED)
    }
}

impl UsageReading for CalendarPeriodReading {
    fn clock(&self) -> u64 {
        self.clock
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn uses_at_most(&self, units: u64) -> bool {
        self.used <= units
    }

    fn has_room(&self) -> bool {
        true
    }

    fn falls_to(&self, units: u64) -> u64 {
        if self.uses_at_most(units) { self.now } else { self.end }
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        Forecast { used: self.used_after(units), next: self.end, reset: self.end }
    }
}
