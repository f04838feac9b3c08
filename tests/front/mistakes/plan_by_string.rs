//! A value without its kind.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .plan_by(|head| head.uri.path().to_owned()) //~ `String` does not state what to check
        //~ note: return `PartitionKey::new("tenant", value)`
        .build()?;
    Ok(())
}

fn main() {}
