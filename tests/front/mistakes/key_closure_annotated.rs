//! A closure for a method that takes a value.

use tower_sliding_window::{ConfigError, Head, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(|head: &Head<'_>| PartitionKey::new("path", head.uri.path())) //~ is not a key extractor
        //~ note: if it is a closure, call `.key_by(|head| ..)` instead
        .build()?;
    Ok(())
}

fn main() {}
