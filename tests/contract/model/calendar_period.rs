//! The reference model of the calendar period: an enumeration of all days, and the time zones of another library. All instants are in
//! microseconds.

use std::{
    ops::Range,
    str::FromStr,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

use chrono::{Duration, LocalResult, NaiveDate, NaiveDateTime, Offset, TimeZone};
use chrono_tz::Tz;
use tower_sliding_window::{
    Algorithm, Policy,
    policy::{Anchor, Period, Zone},
};

use super::account::Counting;

/// The days from 1 January 1970, as year, month and day.
static DAYS: LazyLock<Vec<[u32; 3]>> = LazyLock::new(|| {
    let months = (1970..2110).flat_map(|year| (1..=12).map(move |month| (year, month)));
    months.flat_map(|(year, month)| (1..=length(year, month)).map(move |day| [year, month, day])).collect()
});

fn length(year: u32, month: u32) -> u32 {
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1]
}

/// The begins of all periods of each calendar that a test has used.
static BEGINS: Mutex<Vec<(Calendar, Arc<[u64]>)>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq)]
struct Calendar {
    period: Period,
    zone: Tz,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
}

#[derive(Clone)]
pub struct CalendarPeriod {
    calendar: Calendar,
    /// The begins of all periods, as soon as one is needed.
    begins: OnceLock<Arc<[u64]>>,
}

impl CalendarPeriod {
    pub fn new(period: Period, zone: Zone, anchor: Anchor) -> Self {
        let text = anchor.to_string();
        let (date, time) = text.split_once(' ').unwrap_or((&text, "00:00"));
        let (month, day) = date.split_once('-').unwrap_or(("1", date));
        let (hour, minute) = time.split_once(':').unwrap();
        let [month, day, hour, minute] = [month, day, hour, minute].map(|text| text.parse().unwrap());
        let zone = Tz::from_str(zone.name()).unwrap();
        Self { calendar: Calendar { period, zone, month, day, hour, minute }, begins: OnceLock::new() }
    }

    pub fn of(algorithm: Algorithm) -> Self {
        let Algorithm::CalendarPeriod { period, zone, anchor, .. } = algorithm else {
            panic!("{algorithm:?}")
        };
        Self::new(period, zone, anchor)
    }

    /// Returns all begins of periods on these days.
    pub fn begins(&self, days: Range<usize>) -> Vec<u64> {
        self.calendar.begins(days)
    }

    /// Returns the begin and the end of the period of an instant.
    pub fn period(&self, at: u64) -> [u64; 2] {
        let begins = self.begins.get_or_init(|| self.calendar.all_begins());
        let next = begins.partition_point(|begin| *begin <= at);
        [next.checked_sub(1).map_or(0, |last| begins[last]), begins[next]]
    }
}

impl Calendar {
    /// Returns whether a period begins on the day with this index.
    fn begins_on(self, index: usize) -> bool {
        let [year, month, day] = DAYS[index];
        let is_day = |of_month: u32| day == self.day.min(length(year, of_month));
        match self.period {
            Period::Day => true,
            // 1 January 1970 was a Thursday.
            Period::Week => (index as u32 + 3) % 7 + 1 == self.day,
            Period::Month => is_day(month),
            Period::Year => month == self.month && is_day(month),
            other => panic!("{other:?} has no reference model"),
        }
    }

    /// Returns the instant at which the time of day of the anchor comes on a day.
    fn instant(self, index: usize) -> u64 {
        let [year, month, day] = DAYS[index];
        let local = NaiveDate::from_ymd_opt(year as i32, month, day).unwrap();
        let local = local.and_hms_opt(self.hour, self.minute, 0).unwrap();
        let offset = match self.offset(local) {
            Some(offset) => offset,
            // The time is skipped. The offset before the change makes it later by the length of the change.
            None => (1..).find_map(|hours| self.offset(local - Duration::hours(hours))).unwrap(),
        };
        let seconds = local.and_utc().timestamp() - offset;
        u64::try_from(seconds).unwrap_or(0) * 1_000_000
    }

    /// Returns the offset of a local time in seconds: the first one, if the time occurs twice.
    fn offset(self, local: NaiveDateTime) -> Option<i64> {
        match self.zone.offset_from_local_datetime(&local) {
            LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => {
                Some(offset.fix().local_minus_utc().into())
            }
            LocalResult::None => None,
        }
    }

    fn begins(self, days: Range<usize>) -> Vec<u64> {
        let mut begins: Vec<u64> =
            days.filter(|index| self.begins_on(*index)).map(|index| self.instant(index)).collect();
        // A day that a zone has left out has no period.
        begins.dedup();
        begins
    }

    /// Returns the begins of the periods of all days. They are enumerated once in a process.
    fn all_begins(self) -> Arc<[u64]> {
        let known = BEGINS.lock().unwrap().iter().find(|(calendar, _)| *calendar == self).cloned();
        if let Some((_, begins)) = known {
            return begins;
        }
        let begins: Arc<[u64]> = self.begins(0..DAYS.len()).into();
        BEGINS.lock().unwrap().push((self, begins.clone()));
        begins
    }
}

/// Returns the algorithm of a policy by the calendar.
pub fn algorithm(period: Period, zone: Zone, anchor: Anchor) -> Algorithm {
    let policy = Policy::calendar_period("p", 1, period, zone).unwrap();
    policy.anchored(anchor).unwrap().algorithm()
}

impl Counting for CalendarPeriod {
    fn window(&self) -> u64 {
        367 * 86_400_000_000
    }

    fn window_of(&self, last: u64) -> u64 {
        let [begin, end] = self.period(last);
        end - begin
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        let [begin, end] = self.period(charged);
        u64::from((begin..end).contains(&now))
    }

    fn used(&self, charges: &[super::account::Charge], now: u64) -> u64 {
        let [begin, end] = self.period(now);
        let of_period = charges.iter().filter(|charge| (begin..end).contains(&charge.at));
        of_period.map(|charge| charge.units).sum()
    }

    fn next_of_unused(&self, at: u64) -> Option<u64> {
        Some(self.period(at)[1])
    }
}
