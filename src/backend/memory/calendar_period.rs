//! The count of a calendar period.

use super::count::{Count, Forecast, UsageReading, monotonic_instant};
use crate::{
    backend::generation::{Generation, Generations},
    check::Receipt,
    policy::Policy,
};

/// The usage of a period saturates here. Only overages beyond a quota can reach it.
const MAX_USED: u64 = (1 << 33) - 1;

/// The usage of one partition key under one policy in a calendar period.
#[derive(Clone, Copy)]
pub(super) struct CalendarPeriod {
    /// That of the charges of the period.
    generation: Generation,
    /// The instant of the last charge, which is in the period.
    last: u64,
    begin: u64,
    /// The end of the period, as of the policy that has begun it.
    end: u64,
    used: u64,
}

/// A calendar period at one instant.
#[derive(Clone, Copy)]
pub(super) struct CalendarPeriodReading {
    /// The instant from which on the usage does not count for the policy that reads it: the earlier one of the end of its own period
    /// and that of the stored one.
    end: u64,
    /// The usage after a charge of nothing now. Its last instant is that of the pair: the clock, or the last charge's instant while the
    /// clock is behind it.
    usage: CalendarPeriod,
}

impl Count for CalendarPeriod {
    const EMPTY: Self = Self { generation: Generation::NONE, last: 0, begin: 0, end: 0, used: 0 };

    type Reading<'a> = CalendarPeriodReading;
    type Instant = CalendarPeriodReading;

    fn read(&self, clock: u64, policy: &Policy) -> CalendarPeriodReading {
        let Self { last, begin, end, .. } = *self;
        let [before, middle, after] = policy.boundaries_around(clock).unwrap_or_default();
        let period = if clock < middle { before..middle } else { middle..after };
        let new = Self { last: clock, begin: period.start, end: period.end, ..Self::EMPTY };
        let (end, usage) = match monotonic_instant(clock, last, end - begin) {
            None => (period.end, new),
            Some(now) if now > clock => (end, *self),
            // Before the end, a later begin starts a period only if nothing was charged since. Otherwise, policies with other begins
            // would start several periods in one.
            Some(now) if self.used == 0 || now >= end || period.start > begin && period.start > last => {
                (period.end, new)
            }
            Some(_) => {
                if period.start < begin {
                    policy.note_earlier_period();
                }
                // A charge does not move the stored end: that of a busy client might never come.
                (end.min(period.end), Self { last: clock, ..*self })
            }
        };
        CalendarPeriodReading { end, usage }
    }

    fn instant(reading: &CalendarPeriodReading) -> CalendarPeriodReading {
        *reading
    }

    fn charge(&mut self, reading: CalendarPeriodReading, cost: u32) {
        let CalendarPeriod { generation, used, .. } = reading.usage;
        let generation = if used == 0 { Generation::NONE } else { generation };
        *self = Self { generation, used: MAX_USED.min(used + u64::from(cost)), ..reading.usage };
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

impl UsageReading for CalendarPeriodReading {
    fn used(&self) -> u64 {
        self.usage.used
    }

    fn falls_to(&self, units: u64) -> u64 {
        if self.uses_at_most(units) { self.usage.last } else { self.end }
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        Forecast { used: self.usage.used + units, next: self.end, reset: self.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Anchor, Period, Zone};

    #[test]
    fn period_that_has_ended_never_goes_on() {
        // 20 January and 3 February 2026.
        let [charged, later] = [1_768_867_200_000_000, 1_770_076_800_000_000];
        let monthly = |day| {
            let policy = Policy::calendar_period("p", 3, Period::Month, Zone::utc()).unwrap();
            policy.anchored(Anchor::day(day)).unwrap()
        };
        let mut count = CalendarPeriod::EMPTY;
        count.charge(count.read(charged, &monthly(1)), 3);
        assert_eq!(count.read(charged, &monthly(15)).used(), 3);
        assert_eq!(count.read(later, &monthly(15)).used(), 0, "it ended on 1 February");
    }
}
