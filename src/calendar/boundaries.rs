//! The boundaries of periods.

use jiff::{
    Span,
    civil::{Date, date},
    tz::TimeZone,
};

use super::{Anchor, Period, Zone};

const MINUTE: u64 = 60_000_000;
/// The last instant of the calendar.
const LAST_INSTANT: u64 = 253_402_207_200_000_000;

/// Three boundaries in a row, which are two periods: whole minutes, in microseconds of Unix time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Boundaries(pub(crate) [u64; 3]);

impl Boundaries {
    /// Returns the boundaries around an instant: of the boundaries before and after it, the nearer one is in the middle.
    pub(crate) fn around(micros: u64, period: Period, zone: Zone, anchor: Anchor) -> Self {
        let rules = zone.rules();
        let micros = micros.min(LAST_INSTANT);
        let mean_seconds = match period {
            Period::Day => 86_400,
            Period::Week => 604_800,
            Period::Month => 2_629_746,
            Period::Year => 31_556_952,
        };
        // The lengths of months and years, the zone and the anchor move a begin by less than two periods.
        let near = (micros / 1_000_000 / mean_seconds) as i64;
        let begin = |index| begin(period, &rules, anchor, index).unwrap_or(u64::MAX);
        let mut begins: Vec<u64> = (near - 4..=near + 4).map(begin).collect();
        // A day that a zone has left out has the same begin as the next one.
        begins.dedup();
        let in_a_row = begins.windows(3).filter_map(|begins| begins.first_chunk().copied().map(Self));
        in_a_row.min_by_key(|Self([_, middle, _])| middle.abs_diff(micros)).unwrap_or_default()
    }

    /// Returns whether the middle one is the nearest to an instant.
    pub(crate) fn are_around(self, micros: u64) -> bool {
        let [first, middle, last] = self.0;
        let nearer = |other: u64| micros.abs_diff(middle) < micros.abs_diff(other);
        middle > 0 && nearer(first) && nearer(last)
    }
}

/// Returns the begin of a period, by the number of periods since that of 1 January 1970. An instant outside the calendar is `None`, or the
/// first one.
fn begin(period: Period, rules: &TimeZone, anchor: Anchor, index: i64) -> Option<u64> {
    let (hour, minute) = (anchor.hour.min(23), anchor.minute.min(59));
    let time = first_day(period, anchor, index)?.at(hour as i8, minute as i8, 0, 0);
    let instants = rules.to_ambiguous_timestamp(time);
    let first = instants.compatible().ok()?;
    // Where the table of a zone ends, the library may find a second instant that has another time (jiff 1.0.2, America/Nuuk, 2023-10-28
    // 23:41). If the clocks skip the time, both calls return the same.
    let instant = if rules.to_datetime(first) == time { first } else { instants.later().ok()? };
    // Since 1972, all offsets are whole minutes.
    Some(u64::try_from(instant.as_second()).unwrap_or(0) / 60 * MINUTE)
}

/// Returns the first day of a period. A day of the anchor that the month or the week does not have is the last one.
fn first_day(period: Period, Anchor { month, day, .. }: Anchor, index: i64) -> Option<Date> {
    let [days, months] = [day.clamp(1, 7), month.clamp(1, 12)].map(|number| i64::from(number) - 1);
    let monday = date(1969, 12, 29);
    // January has all days. Months later, a day that the month does not have becomes its last one.
    let in_january = Date::new(1970, 1, day.clamp(1, 31) as i8).ok()?;
    let (first, later) = match period {
        Period::Day => (date(1970, 1, 1), Span::new().try_days(index)),
        Period::Week => (monday, Span::new().try_days(7 * index + days)),
        Period::Month => (in_january, Span::new().try_months(index)),
        Period::Year => (in_january, Span::new().try_months(12 * index + months)),
    };
    first.checked_add(later.ok()?).ok()
}
