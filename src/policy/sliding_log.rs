//! The sliding log: each charge counts for one window from its own instant.

use std::time::Duration;

use super::properties::Properties;
use crate::error::ConfigError;

/// The largest number of charges in a sliding log.
pub(crate) const MAX_CHARGES: u32 = 1 << 20;

/// Returns the properties of a policy. Any window is possible.
pub(super) fn properties(_name: &str, _window: Duration) -> Result<Properties, ConfigError> {
    Ok(Properties { max_charges: MAX_CHARGES, ..Properties::SLIDING })
}
