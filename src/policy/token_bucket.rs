//! The token bucket: a capacity, and a rate at which units return.
//!
//! The usage is counted in *parts* of a unit, so that it is a whole number at every microsecond. A rate of `Q` units for each `W`
//! microseconds returns `Q / g` parts of `W / g` in each microsecond, where `g` is the greatest common divisor of `Q` and `W`.

use super::{
    properties::{EqualChecks, Expiry, GivenFields, Properties, RedisProperties},
    rate::{MAX_WINDOW, Rate},
};
use crate::error::ConfigError;

/// The largest usage in parts. A sum of two numbers of this size and of a rate is an integer that a script represents exactly.
pub(crate) const MAX_PARTS: u64 = (1 << 53) - (1 << 32);

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 4,
    script: ("token_bucket.lua", include_str!("../../lua/token_bucket.lua")),
    refund: ("refund_tokens.lua", include_str!("../../lua/refund_tokens.lua")),
    refund_windows: 1,
    key_letters: b"y",
    equal_checks: EqualChecks::Parts,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set", "setrange"],
};

/// Returns an error unless the units and the period of a rate are in their ranges.
pub(super) fn check_rate(policy: &str, rate: Rate) -> Result<(), ConfigError> {
    if rate.is_in_range() {
        return Ok(());
    }
    let given = format!("{} units per {:?}", rate.units(), rate.period());
    let valid = format!("1 to {} units per 1 us to 366 days", u32::MAX);
    Err(ConfigError::invalid_policy(policy, "rate", given, valid))
}

/// Returns the properties of a policy, or an error if its rate is not possible with its capacity.
pub(super) fn properties(
    GivenFields { name, quota, .. }: GivenFields<'_>,
    rate: Rate,
) -> Result<Properties, ConfigError> {
    check_rate(name, rate)?;
    let [returned_parts, parts_of_unit] = rate.lowest_terms();
    let refilled_in = rate.time_of(quota.get());
    let capacity = u128::from(parts_of_unit) * u128::from(quota.get());
    if refilled_in > MAX_WINDOW || capacity > u128::from(MAX_PARTS) {
        let given = format!("{quota} units at {} units per {:?}", rate.units(), rate.period());
        let returning = u128::from(MAX_WINDOW.as_micros() as u64) * u128::from(returned_parts)
            / u128::from(parts_of_unit);
        let counted = u128::from(MAX_PARTS / parts_of_unit);
        let reason = if returning <= counted {
            "a full capacity returns within 366 days"
        } else {
            "its parts are counted below 2^53"
        };
        let valid = format!("at most {} units at this rate: {reason}", returning.min(counted));
        return Err(ConfigError::invalid_policy(name, "capacity of", given, valid));
    }
    let properties = Properties::new(refilled_in, &REDIS);
    Ok(Properties {
        arguments: [parts_of_unit, returned_parts],
        next_of_unused: 0,
        quotas_in_window: 2,
        expiry: Expiry::Gradual,
        ..properties
    })
}
