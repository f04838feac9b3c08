//! Instants in microseconds of Unix time. The days begin at midnight in the zone of the API, which is 8 h behind UTC in winter.

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// By how much the midnight of the API is later than that of UTC.
pub(crate) const BEHIND_UTC: u64 = 8 * HOUR;

/// Midnight of Monday, 2027-01-11.
pub(crate) const MONDAY: u64 = 1_799_654_400 * SECOND;
pub(crate) const SUNDAY: u64 = MONDAY - DAY;
