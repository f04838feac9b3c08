//! A closure for a method that takes a value.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost(|head| 5) //~ is not a cost
        //~ note: if it is a closure, call `.cost_by(|head| ..)` instead
        .build()?;
    Ok(())
}

fn main() {}
