//! The token bucket: a capacity, and a rate at which units return.
//!
//! The usage is counted in *parts* of a unit, so that it is a whole number at every microsecond. A rate of `Q` units for each `W`
//! microseconds returns `Q / g` parts of `W / g` in each microsecond, where `g` is the greatest common divisor of `Q` and `W`.

use std::{num::NonZeroU32, time::Duration};

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
    if !is_possible(rate, quota) {
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
    let properties = Properties::new(rate.time_of(quota.get()), &REDIS);
    Ok(Properties {
        arguments: [parts_of_unit, returned_parts],
        next_of_unused: 0,
        quotas_in_window: 2,
        expiry: Expiry::Gradual,
        ..properties
    })
}

/// Returns whether a rate in its range is possible with this capacity.
fn is_possible(rate: Rate, capacity: NonZeroU32) -> bool {
    let [_, parts_of_unit] = rate.lowest_terms();
    let parts = u128::from(parts_of_unit) * u128::from(capacity.get());
    rate.time_of(capacity.get()) <= MAX_WINDOW && parts <= u128::from(MAX_PARTS)
}

/// Returns a rate that is smaller by the factor of two capacities. It is rounded down, unless the smaller capacity would then need
/// more than 366 days to return.
pub(super) fn reduced(rate: Rate, from: NonZeroU32, to: NonZeroU32) -> Rate {
    let units = u64::from(rate.units()) * u64::from(to.get());
    // Not more than the units were.
    let same_period = Rate::new((units / u64::from(from.get())) as u32, rate.period());
    let exact = if units % u64::from(from.get()) == 0 { Some(same_period) } else { exact(rate, from, to) };
    if let Some(exact) = exact.filter(|exact| exact.is_in_range() && is_possible(*exact, to)) {
        return exact;
    }
    let rates = [128, 16, 1].into_iter().flat_map(|units| with_longer_period(rate, units, from, to));
    let longer_period = rates.into_iter().find(|rate| rate.period() <= MAX_WINDOW);
    let longer_period = longer_period.unwrap_or(Rate::new(1, MAX_WINDOW));
    // The one that is rounded less: the units if they are many, and otherwise the period.
    let is_better =
        same_period.units() > 0 && is_possible(same_period, to) && !longer_period.is_faster_than(same_period);
    if is_better { same_period } else { longer_period }
}

/// Returns the rate that is smaller by exactly the factor of two capacities. None if its numbers are too large.
fn exact(rate: Rate, from: NonZeroU32, to: NonZeroU32) -> Option<Rate> {
    // The factor in its lowest terms, in the form of a rate.
    let factor = Rate::new(to.get(), Duration::from_micros(from.get().into()));
    let [units, period] = factor.lowest_terms();
    let units = u32::try_from(u64::from(rate.units()) * units).ok()?;
    Some(Rate::new(units, Duration::from_micros(rate.period_micros().checked_mul(period)?)))
}

/// Returns a smaller rate of this many units. The more they are, the less the rate changes because its period is rounded. None if the
/// period is too long to be represented.
fn with_longer_period(rate: Rate, units: u32, from: NonZeroU32, to: NonZeroU32) -> Option<Rate> {
    let divisor = u128::from(rate.units().max(1)) * u128::from(to.get());
    let period = u128::from(rate.period_micros()) * u128::from(from.get()) * u128::from(units);
    let longest = MAX_WINDOW.as_micros() * u128::from(units) / u128::from(to.get());
    let micros = u64::try_from(period.div_ceil(divisor).min(longest)).ok()?;
    Some(Rate::new(units, Duration::from_micros(micros)))
}
