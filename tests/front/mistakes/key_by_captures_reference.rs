//! A closure that borrows a local variable.

use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    let tenant = String::from("acme");
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(|_| PartitionKey::new("tenant", &tenant)) //~ closure may outlive the current function
        //~ note: use the `move` keyword
        .build()?;
    Ok(())
}

fn main() {}
