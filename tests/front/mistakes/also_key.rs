//! A key in place of a limit.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .also(peer_ip()) //~ `PeerIp` is not a limit
        //~ note: write `limit(key).policy(
        .build()?;
    Ok(())
}

fn main() {}
