//! A fallible backend without `?`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    let memory = MemoryBackend::with_max_keys(1_000);
    RateLimitLayer::builder(memory) //~ `Result<MemoryBackend, ConfigError>` is not a rate limit backend
        //~ note: if the value is a `Result`, add `?`
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
