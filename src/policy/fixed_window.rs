//! The fixed window: the charges of a calendar window.

use super::properties::{EqualChecks, GivenFields, Properties, RedisProperties};
use crate::error::ConfigError;

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 3,
    script: ("fixed_window.lua", include_str!("../../lua/fixed_window.lua")),
    refund: ("refund_calendar.lua", include_str!("../../lua/refund_calendar.lua")),
    refund_windows: 1,
    key_letters: b"qrtvwx",
    equal_checks: EqualChecks::Remaining,
    max_records: |_, _, _| 1,
    optional_commands: &["get", "set", "setrange"],
};

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(fields: GivenFields<'_>) -> Result<Properties, ConfigError> {
    Ok(Properties { returns_at_end: true, quotas_in_window: 2, ..Properties::new(fields.window, &REDIS) })
}
