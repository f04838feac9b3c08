//! A value without its kind.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(|head| head.header("x-tenant").map(str::to_owned)) //~ a key closure must return a `PartitionKey`, but this one returns `Option<String>`
        //~ note: return `PartitionKey::new("tenant", value)`, or an `Option` of it
        .build()?;
    Ok(())
}

fn main() {}
