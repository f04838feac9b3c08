//! The fixed window: the charges of a calendar window.

use std::time::Duration;

use super::properties::Properties;
use crate::error::ConfigError;

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(_name: &str, _window: Duration) -> Result<Properties, ConfigError> {
    Ok(Properties::CALENDAR)
}
