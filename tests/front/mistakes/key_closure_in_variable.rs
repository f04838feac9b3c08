//! A closure in a variable, with a parameter of unknown type.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    let by_path = |head| PartitionKey::new("path", head.uri.path()); //~ type annotations needed
    //~ note: consider giving this closure parameter an explicit type
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(by_path)
        .build()?;
    Ok(())
}

fn main() {}
