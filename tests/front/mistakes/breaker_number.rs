//! A number in place of the settings of the circuit breaker.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .breaker(5) //~ `{integer}` is not a `Breaker`
        //~ note: expected a `Breaker`, or `None` to disable it
        .build()?;
    Ok(())
}

fn main() {}
