//! The sliding counter: the charges of a calendar window, and a share of those of the window before it.

use std::time::Duration;

use super::properties::{Expiry, Properties};
use crate::error::ConfigError;

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(_name: &str, _window: Duration) -> Result<Properties, ConfigError> {
    Ok(Properties { expiry: Expiry::Gradual, ..Properties::CALENDAR })
}
