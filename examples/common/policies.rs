//! The policies of the service in `axum.rs`, whose usage `inspect.rs` reports.

use std::time::Duration;

use tower_sliding_window::{ConfigError, Policy};

/// The policies of an API key, or of the address of a request without one.
pub(crate) fn policies() -> Result<[Policy; 2], ConfigError> {
    Ok([
        Policy::new("burst", 10, Duration::from_secs(10))?,
        Policy::new("sustained", 30, Duration::from_secs(60))?,
    ])
}

/// The policy of the address of every request.
pub(crate) fn per_address() -> Result<Policy, ConfigError> {
    Policy::new("per-address", 1_000, Duration::from_secs(60))
}
