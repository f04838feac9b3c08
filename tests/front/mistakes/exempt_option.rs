//! An exemption that is no `bool`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .exempt(|head| Some(true)) //~ mismatched types
        //~ note: expected `bool`, found `Option<bool>`
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
