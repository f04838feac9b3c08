//! An optional value of a key.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(|head| PartitionKey::new("tenant", head.header("x-tenant"))) //~ `Option<&str>` is not the value of a key
        //~ note: for an `Option`, map its value to a key: `value.map(|value| PartitionKey::new(..))`
        .build()?;
    Ok(())
}

fn main() {}
