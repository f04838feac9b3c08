//! Two keys without the trait in scope.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, header, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(header("x-api-key")?.or(peer_ip())) //~ no method named `or` found for struct `Header`
        //~ note: trait `KeyExtractor` which provides `or` is implemented but not in scope
        .build()?;
    Ok(())
}

fn main() {}
