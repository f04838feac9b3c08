//! A policy without `?`.

use std::time::Duration;

use tower_sliding_window::{ConfigError, MemoryBackend, Policy, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .policy(Policy::new("daily", 100, Duration::from_secs(86_400))) //~ mismatched types
        //~ note: use the `?` operator
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
