//! A key in place of an extractor.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(PartitionKey::new("service", "search")) //~ `PartitionKey` is not a key extractor
        //~ note: call `.key_by(move |_| key.clone())`
        .build()?;
    Ok(())
}

fn main() {}
