//! A protocol for the builder of a layer for HTTP, where rustc proposes to remove it.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer, by};

struct Job;

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    RateLimitLayer::builder(limiter, by(|_: &Job| PartitionKey::new("tenant", "acme"))); //~ this function takes 1 argument but 2 arguments were supplied
    //~ note: unexpected argument #2 of type `By<Job>`
    Ok(())
}

fn main() {}
