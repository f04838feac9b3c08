//! The sliding log: each charge counts for one window from its own instant.

use super::properties::{EqualChecks, GivenFields, Properties, RedisProperties};
use crate::error::ConfigError;

/// The largest number of charges in a sliding log.
pub(crate) const MAX_CHARGES: u32 = 1 << 20;

pub(super) const REDIS: RedisProperties = RedisProperties {
    number: 0,
    script: ("sliding_log.lua", include_str!("../../lua/sliding_log.lua")),
    refund: ("refund_log.lua", include_str!("../../lua/refund_log.lua")),
    refund_windows: 1,
    key_letters: b"dhmsiu",
    equal_checks: EqualChecks::Remaining,
    max_records: |quota, _, _| quota,
    optional_commands: &[],
};

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(fields: GivenFields<'_>) -> Result<Properties, ConfigError> {
    Ok(Properties { max_charges: MAX_CHARGES, ..Properties::new(fields.window, &REDIS) })
}
