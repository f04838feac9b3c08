//! A settlement that is no `Option`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .settle_by(|response| 0) //~ mismatched types
        //~ note: try wrapping the expression in `Some`
        .build()?;
    Ok(())
}

fn main() {}
