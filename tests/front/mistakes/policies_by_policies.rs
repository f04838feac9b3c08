//! Policies that are no `Option`.

use tower_sliding_window::{ConfigError, MemoryBackend, Policies, RateLimitLayer, peer_ip};

fn mistake(daily: Policies) -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .policies_by(move |head| daily.clone()) //~ mismatched types
        //~ note: try wrapping the expression in `Some`
        .build()?;
    Ok(())
}

fn main() {}
