//! A backend in place of a limiter.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, by, protocol::By};

fn mistake(by: By<String>) -> Result<(), ConfigError> {
    RateLimitLayer::new(MemoryBackend::new(), by); //~ mismatched types
    //~ note: expected `Limiter`, found `MemoryBackend`
    Ok(())
}

fn main() {}
