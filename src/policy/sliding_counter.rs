//! The sliding counter: the charges of a calendar window, and a share of those of the window before it.

use super::properties::{EqualChecks, Expiry, GivenFields, Properties, RedisProperties};
use crate::error::ConfigError;

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 2,
    script: ("sliding_counter.lua", include_str!("../../lua/sliding_counter.lua")),
    refund: ("refund_calendar.lua", include_str!("../../lua/refund_calendar.lua")),
    refund_windows: 2,
    key_letters: b"jklnop",
    equal_checks: EqualChecks::Different,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set", "setrange"],
};

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(fields: GivenFields<'_>) -> Result<Properties, ConfigError> {
    Ok(Properties { quotas_in_window: 2, expiry: Expiry::Gradual, ..Properties::new(fields.window, &REDIS) })
}
