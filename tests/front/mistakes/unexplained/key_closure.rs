//! A closure for a method that takes a value, with a parameter of unknown type.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(|head| PartitionKey::new("path", head.uri.path())) //~ type annotations needed
        //~ note: consider giving this closure parameter an explicit type
        .build()?;
    Ok(())
}

fn main() {}
