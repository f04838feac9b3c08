//! An optional key in place of a draft.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .plan_by(|head| head.header("x-tenant").map(|tenant| PartitionKey::new("tenant", tenant))) //~ `Option<PartitionKey>` does not state what to check
        //~ note: `Draft::exempt()` to let the request pass
        .build()?;
    Ok(())
}

fn main() {}
