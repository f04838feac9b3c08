//! A closure that does not name its request.

use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer, by};

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    RateLimitLayer::new(limiter, by(|job| PartitionKey::new("tenant", &job.tenant))); //~ type annotations needed
    //~ note: consider giving this closure parameter an explicit type
    Ok(())
}

fn main() {}
