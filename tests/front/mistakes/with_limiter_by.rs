//! A protocol for the constructor of a layer for HTTP.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer, by};

struct Job;

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    RateLimitLayer::with_limiter(limiter, by(|_: &Job| PartitionKey::new("tenant", "acme"))); //~ no function or associated item named `with_limiter` found for struct `RateLimitLayer<P>`
    //~ note: consider using `RateLimitLayer::<P>::new` which returns `RateLimitLayer<_>`
    Ok(())
}

fn main() {}
