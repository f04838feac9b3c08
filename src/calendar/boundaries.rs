//! The boundaries of periods.

use std::ops::Range;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, date},
    tz::TimeZone,
};

use super::{Anchor, Period, Zone};

/// A Monday.
const FIRST_DAY: Date = date(1969, 12, 29);
const MINUTE: u64 = 60_000_000;
/// Far after the last instant of the calendar.
const LAST_INSTANT: u64 = u64::MAX / 2;

/// Three boundaries in a row, which are two periods: whole minutes, in microseconds of Unix time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Boundaries(pub(crate) [u64; 3]);

impl Boundaries {
    /// Returns the boundaries around an instant: of the boundaries before and after it, the nearer one is in the middle.
    pub(crate) fn around(micros: u64, period: Period, zone: Zone, anchor: Anchor) -> Self {
        let begins = Begins { period, rules: zone.rules(), anchor };
        // Before what stands for no instant.
        let micros = micros.min(LAST_INSTANT);
        let mut index = begins.index_at(micros);
        while begins.begin(index) > micros {
            index -= 1;
        }
        while begins.begin(index + 1) <= micros {
            index += 1;
        }
        let (begin, end) = (begins.begin(index), begins.begin(index + 1));
        // A day that a zone has left out has the same begin as the next one.
        let others = |step: i64| (1..=3).map(move |n| index + n * step).map(|index| begins.begin(index));
        if micros - begin < end - micros {
            Self([others(-1).find(|before| *before < begin).unwrap_or(0), begin, end])
        } else {
            Self([begin, end, others(1).find(|after| *after > end).unwrap_or(u64::MAX)])
        }
    }

    /// Returns whether the middle one is the nearest to an instant.
    pub(crate) fn are_around(self, micros: u64) -> bool {
        let [first, middle, last] = self.0;
        let nearer = |other: u64| micros.abs_diff(middle) < micros.abs_diff(other);
        middle > 0 && nearer(first) && nearer(last)
    }

    /// Returns the period of an instant that they are around.
    pub(crate) fn period_at(self, micros: u64) -> Range<u64> {
        let [first, middle, last] = self.0;
        if micros < middle { first..middle } else { middle..last }
    }
}

/// The begins of all periods, by their index.
struct Begins {
    period: Period,
    rules: TimeZone,
    anchor: Anchor,
}

impl Begins {
    /// Returns the index of a period that is at most one away from that of an instant.
    fn index_at(&self, micros: u64) -> i64 {
        let at = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
        let date = self.rules.to_datetime(at.unwrap_or(Timestamp::MAX)).date();
        let (year, month) = (i64::from(date.year()), i64::from(date.month()));
        let days = || FIRST_DAY.duration_until(date).as_hours() / 24;
        match self.period {
            Period::Day => days(),
            Period::Week => days() / 7,
            Period::Month => 12 * year + month - 1,
            Period::Year => year,
        }
    }

    /// Returns the begin of a period. An instant outside the calendar is the first or the last one.
    fn begin(&self, index: i64) -> u64 {
        let (hour, minute) = (self.anchor.hour.min(23), self.anchor.minute.min(59));
        let instant = self.date(index).and_then(|date| {
            let time = date.at(hour as i8, minute as i8, 0, 0);
            let instants = self.rules.to_ambiguous_timestamp(time);
            let first = instants.compatible().ok()?;
            // Where the table of a zone ends, the library may find a second instant that has another time (jiff 1.0.2,
            // America/Nuuk, 2023-10-28 23:41). If the clocks skip the time, both calls return the same.
            if self.rules.to_datetime(first) == time { Some(first) } else { instants.later().ok() }
        });
        // Since 1972, all offsets are whole minutes.
        let minutes = |at: Timestamp| u64::try_from(at.as_second()).unwrap_or(0) / 60;
        instant.map_or(u64::MAX, |at| minutes(at) * MINUTE)
    }

    /// Returns the first day of a period. A day of the anchor that the month or the week does not have is the last one.
    fn date(&self, index: i64) -> Option<Date> {
        let Anchor { month, day, .. } = self.anchor;
        let day = day.max(1);
        let days_later = |days: i64| FIRST_DAY.checked_add(SignedDuration::from_hours(24 * days)).ok();
        let in_month = |year: i64, month: i64| {
            let first = Date::new(year.try_into().ok()?, month.try_into().ok()?, 1).ok()?;
            Date::new(first.year(), first.month(), first.days_in_month().min(day.min(31) as i8)).ok()
        };
        match self.period {
            Period::Day => days_later(index),
            Period::Week => days_later(7 * index + i64::from(day.min(7)) - 1),
            Period::Month => in_month(index.div_euclid(12), index.rem_euclid(12) + 1),
            Period::Year => in_month(index, month.clamp(1, 12).into()),
        }
    }
}
