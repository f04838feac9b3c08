//! A closure for a method that takes a value.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies(|head| None) //~ does not choose policies
        //~ note: if it is a closure, call `.policies_by(|head| ..)` instead
        .build()?;
    Ok(())
}

fn main() {}
