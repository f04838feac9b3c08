//! The sliding log: each charge counts for one window from its own instant.

use std::time::Duration;

use super::properties::{Expiry, Properties, RedisProperties};
use crate::error::ConfigError;

/// The largest number of charges in a sliding log.
pub(crate) const MAX_CHARGES: u32 = 1 << 20;

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(_name: &str, _window: Duration) -> Result<Properties, ConfigError> {
    Ok(Properties {
        bucket_micros: None,
        max_charges: MAX_CHARGES,
        quotas_in_window: 1,
        expiry: Expiry::InOrder,
        redis: RedisProperties { key_letters: b"dhmsiu", script_number: 0, optional_commands: &[] },
    })
}
