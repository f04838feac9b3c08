//! A further limit by a fallible extractor without `?`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, header, key, limit, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .also(limit(header("x-api-key"))) //~ `Result<Header, ConfigError>` is not a key extractor
        //~ note: if the value is a `Result`, add `?`
        .build()?;
    Ok(())
}

fn main() {}
