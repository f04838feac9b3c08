//! Rates: a number of units for each period.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

/// The longest window, and the longest period of a rate.
pub(crate) const MAX_WINDOW: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A number of units for each period, such as 7 per second. They return evenly, not all at the end of the period.
///
/// A rate in its range has 1 to 2^32-1 units, and a period of 1 us to 366 days, which is rounded up to whole microseconds.
/// A policy of another rate cannot be created.
///
/// Two rates are equal if their units return at the same instants: 60 per minute is 1 per second.
///
/// With the feature `serde`, the text of a rate is its units and its period: `"7/s"`, `"100/m"`, `"10000/d"` or `"3/10s"`.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::policy::Rate;
///
/// assert_eq!(Rate::per_minute(60), Rate::new(1, Duration::from_secs(1)));
/// assert_eq!(Rate::per_second(7).units(), 7);
/// ```
#[derive(Clone, Copy, Debug, Eq)]
pub struct Rate {
    units: u32,
    period: Duration,
}

impl Rate {
    /// Returns the rate of these units for each period.
    pub const fn new(units: u32, period: Duration) -> Self {
        Self { units, period }
    }

    /// Returns the rate of these units for each second.
    pub const fn per_second(units: u32) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// Returns the rate of these units for each minute.
    pub const fn per_minute(units: u32) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// Returns the rate of these units for each hour.
    pub const fn per_hour(units: u32) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// Returns the rate of these units for each 24 hours.
    pub const fn per_day(units: u32) -> Self {
        Self::new(units, Duration::from_secs(86_400))
    }

    /// Returns the units for each period.
    pub const fn units(self) -> u32 {
        self.units
    }

    /// Returns the period.
    pub const fn period(self) -> Duration {
        self.period
    }

    /// Returns whether units and period are in their ranges.
    pub(super) fn is_in_range(self) -> bool {
        self.units > 0 && (Duration::from_micros(1)..=MAX_WINDOW).contains(&self.period)
    }

    /// Returns the period in whole microseconds, rounded up.
    pub(super) fn period_micros(self) -> u64 {
        // At most 366 days.
        self.period.as_nanos().div_ceil(1_000) as u64
    }

    /// Returns the units and the period in microseconds, divided by their greatest common divisor.
    pub(super) fn lowest_terms(self) -> [u64; 2] {
        let terms = [u64::from(self.units), self.period_micros()];
        let [mut divisor, mut rest] = terms;
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        terms.map(|term| term / divisor.max(1))
    }

    /// Returns the time in which this many units return, rounded up to whole microseconds.
    pub(super) fn time_of(self, units: u32) -> Duration {
        let micros = u128::from(self.period_micros()) * u128::from(units);
        Duration::from_micros(micros.div_ceil(u128::from(self.units.max(1))).try_into().unwrap_or(u64::MAX))
    }

    /// Returns whether more units return in the same time.
    pub(super) fn is_faster_than(self, other: Self) -> bool {
        let [own, others] =
            [[self, other], [other, self]].map(|[a, b]| u128::from(a.units) * u128::from(b.period_micros()));
        own > others
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.lowest_terms() == other.lowest_terms()
    }
}

impl Hash for Rate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.lowest_terms().hash(state);
    }
}
