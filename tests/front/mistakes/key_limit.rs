//! A limit in place of a key.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, limit, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(limit(peer_ip())) //~ `Limit` is not a key extractor
        //~ note: if it is a `Limit`, add it with `.also(limit(..))`
        .build()?;
    Ok(())
}

fn main() {}
