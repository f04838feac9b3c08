//! The sliding counter: the charges of a calendar window, and a share of those of the window before it.

use std::time::Duration;

use super::properties::{Expiry, Properties, RedisProperties};
use crate::error::ConfigError;

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(_name: &str, _window: Duration) -> Result<Properties, ConfigError> {
    Ok(Properties {
        bucket_micros: None,
        max_charges: u32::MAX,
        quotas_in_window: 2,
        expiry: Expiry::Gradual,
        redis: RedisProperties {
            key_letters: b"jklnop",
            script_number: -1,
            optional_commands: &["get", "set", "setrange"],
        },
    })
}
