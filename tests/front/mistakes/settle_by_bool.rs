//! A condition in place of an amount.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .settle_by(|r| r.status.is_success()) //~ `bool` is not the amount that a request has used
        //~ note: or `None` to leave the charge: `.then_some(0)` on a condition makes a request free
        .build()?;
    Ok(())
}

fn main() {}
