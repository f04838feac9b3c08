//! The call of a function in place of the function.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip, settle};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .settle_by(settle::actual_cost()) //~ this function takes 1 argument but 0 arguments were supplied
        .build()?;
    Ok(())
}

fn main() {}
