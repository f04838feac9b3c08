//! Sliding buckets: the charges of a bucket count together, for one window from the end of the bucket.

use std::{num::NonZeroU64, time::Duration};

#[cfg(feature = "serde")]
pub(super) use super::length::serialize;
use super::properties::{EqualChecks, Expiry, GivenFields, Properties, RedisProperties};
use crate::error::ConfigError;

const MIN_PRECISION: Duration = Duration::from_millis(1);
const MAX_BUCKETS: u64 = 4_096;

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 1,
    script: ("sliding_buckets.lua", include_str!("../../lua/sliding_buckets.lua")),
    refund: ("refund_log.lua", include_str!("../../lua/refund_log.lua")),
    refund_windows: 1,
    key_letters: b"abcefg",
    equal_checks: EqualChecks::Remaining,
    max_records: |_, window, precision| (window / precision.max(1)).saturating_add(3),
    optional_commands: &[],
};

/// Returns the properties of a policy, or an error if its precision is not possible.
pub(super) fn properties(
    GivenFields { name, window, .. }: GivenFields<'_>,
    precision: Duration,
) -> Result<Properties, ConfigError> {
    // A precision is at most the window.
    let bucket_micros = NonZeroU64::new(precision.as_micros() as u64);
    let is_possible = (MIN_PRECISION..=window).contains(&precision)
        && precision.subsec_nanos().is_multiple_of(1_000)
        && window.as_micros().div_ceil(precision.as_micros()) <= u128::from(MAX_BUCKETS);
    if !is_possible {
        let valid = format!(
            "1 ms to the window of {window:?}, in whole microseconds, with at most {MAX_BUCKETS} buckets in a window"
        );
        return Err(ConfigError::invalid_policy(name, "precision", format_args!("{precision:?}"), valid));
    }
    let properties = Properties::new(window, &REDIS);
    let arguments = [properties.window_micros, precision.as_micros() as u64];
    Ok(Properties { bucket_micros, arguments, expiry: Expiry::ByBucket, ..properties })
}

/// Reads the precision in a file.
#[cfg(feature = "serde")]
pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    super::length::deserialize("precision", deserializer)
}
