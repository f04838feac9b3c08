//! A backend without `.await`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

async fn connect() -> Result<MemoryBackend, ConfigError> {
    MemoryBackend::with_max_keys(1_000)
}

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(connect()) //~ is not a rate limit backend
        //~ note: if it is a future, add `.await`
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
