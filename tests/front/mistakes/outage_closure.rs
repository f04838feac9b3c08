//! A closure for a method that takes a value.

use tower_sliding_window::{ConfigError, MemoryBackend, OutageRule, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .outage(|head| OutageRule::FailOpen) //~ mismatched types
        //~ note: expected `OutageRule`, found closure
        .build()?;
    Ok(())
}

fn main() {}
