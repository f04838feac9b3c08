//! A header value in place of a key.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(|head| head.headers.get("x-tenant")) //~ a key closure must return a `PartitionKey`, but this one returns `Option<&
        //~ note: return `PartitionKey::new("tenant", value)`, or an `Option` of it
        .build()?;
    Ok(())
}

fn main() {}
