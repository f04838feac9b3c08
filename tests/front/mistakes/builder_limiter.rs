//! A limiter in place of a backend.

use tower_sliding_window::{ConfigError, Limiter, RateLimitLayer, peer_ip};

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    RateLimitLayer::builder(limiter) //~ `Limiter` is not a rate limit backend
        //~ note: to share a `Limiter` between layers, call `RateLimitLayer::with_limiter(limiter)`
        .key(peer_ip())
        .build()?;
    Ok(())
}

fn main() {}
