//! A value for a method that takes a closure.

use tower_sliding_window::{ConfigError, MemoryBackend, OutageRule, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .outage_by(OutageRule::FailOpen) //~ expected a `Fn(&Head<'_>)` closure, found `OutageRule`
        .build()?;
    Ok(())
}

fn main() {}
