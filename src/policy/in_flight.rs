//! In flight: units that are held until their request has ended.

use std::time::Duration;

#[cfg(feature = "serde")]
pub(super) use super::length::serialize;
use super::properties::{EqualChecks, Expiry, GivenFields, Properties, RedisProperties};
use crate::error::ConfigError;

/// The largest quota.
const MAX_QUOTA: u32 = 1 << 16;
/// The names of the times in errors.
const HOLD_TIME: &str = "hold time";
const RETRY_AFTER: &str = "retry after";
/// The longest hold time, and the longest wait that a response states.
const MAX_TIME: Duration = Duration::from_secs(3_600);

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 7,
    script: ("in_flight.lua", include_str!("../../lua/in_flight.lua")),
    refund: ("refund_nothing.lua", include_str!("../../lua/refund_nothing.lua")),
    refund_windows: 1,
    key_letters: b"+",
    // Each check has a number of its own.
    equal_checks: EqualChecks::Different,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set", "setrange", "getrange"],
};

/// Returns the default hold time.
pub(super) const fn hold_time() -> Duration {
    Duration::from_secs(30)
}

/// Returns the default of the wait that a response states.
pub(super) const fn retry_after() -> Duration {
    Duration::from_secs(1)
}

/// Returns an error unless the quota is in its range.
pub(super) fn check_quota(policy: &str, quota: u32) -> Result<(), ConfigError> {
    if (1..=MAX_QUOTA).contains(&quota) {
        return Ok(());
    }
    let valid = format!("1 to {MAX_QUOTA} units in flight");
    Err(ConfigError::invalid_policy(policy, "quota", quota, valid))
}

/// Returns the properties of a policy, or an error if its quota or one of its times is out of its range.
pub(super) fn properties(
    GivenFields { name, quota, .. }: GivenFields<'_>,
    hold_time: Duration,
    retry_after: Duration,
) -> Result<Properties, ConfigError> {
    check_quota(name, quota.get())?;
    for (field, time, min) in
        [(HOLD_TIME, hold_time, Duration::from_secs(1)), (RETRY_AFTER, retry_after, Duration::from_millis(1))]
    {
        if !(min..=MAX_TIME).contains(&time) {
            let (given, valid) = (format!("{time:?}"), format!("{min:?} to {MAX_TIME:?}"));
            return Err(ConfigError::invalid_policy(name, field, given, valid));
        }
    }
    Ok(Properties {
        is_held: true,
        next_of_unused: 0,
        // No window bounds how soon units return.
        quotas_in_window: u64::MAX,
        expiry: Expiry::Gradual,
        ..Properties::new(hold_time, &REDIS)
    })
}

/// Reads the hold time in a file.
#[cfg(feature = "serde")]
pub(super) fn read_hold_time<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    super::length::deserialize(HOLD_TIME, deserializer)
}

/// Reads the wait that a response states in a file.
#[cfg(feature = "serde")]
pub(super) fn read_retry_after<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    super::length::deserialize(RETRY_AFTER, deserializer)
}
