//! The policies of the service in `axum.rs`, which `inspect.rs` looks at.

use std::time::Duration;

use tower_sliding_window::{ConfigError, Policy};

pub(crate) fn policies() -> Result<[Policy; 2], ConfigError> {
    Ok([
        Policy::new("burst", 10, Duration::from_secs(10))?,
        Policy::new("sustained", 30, Duration::from_secs(60))?,
    ])
}
