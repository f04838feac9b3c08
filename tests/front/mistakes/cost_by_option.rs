//! A closure that returns an optional cost.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost_by(|head| head.header("x-cost").and_then(|cost| cost.parse::<u32>().ok())) //~ `Option<u32>` is not an amount of quota units
        //~ note: for an `Option`, state the amount for `None`: `.unwrap_or(1)`
        .build()?;
    Ok(())
}

fn main() {}
