//! A backend in place of a limiter.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::with_limiter(MemoryBackend::new()) //~ mismatched types
        //~ note: expected `Limiter`, found `MemoryBackend`
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
