//! The gate: an instant until which it blocks.

use super::{
    properties::{EqualChecks, GivenFields, Properties, RedisProperties},
    rate::MAX_WINDOW,
};
use crate::error::ConfigError;

/// The unit in which a block is stated, in microseconds.
pub(crate) const BLOCK_UNIT: u64 = 10_000;

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 5,
    script: ("gate.lua", include_str!("../../lua/gate.lua")),
    refund: ("refund_nothing.lua", include_str!("../../lua/refund_nothing.lua")),
    refund_windows: 1,
    // All letters belong to other types.
    key_letters: b"-",
    equal_checks: EqualChecks::Different,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set"],
};

/// Returns the properties of a policy. A gate has neither a quota nor a window.
pub(super) fn properties(_: GivenFields<'_>) -> Result<Properties, ConfigError> {
    let properties = Properties::new(MAX_WINDOW, &REDIS);
    Ok(Properties {
        has_quota: false,
        // A gate blocks for at most 366 days.
        arguments: [BLOCK_UNIT, properties.window_micros],
        next_of_unused: 0,
        quotas_in_window: u64::MAX,
        ..properties
    })
}
