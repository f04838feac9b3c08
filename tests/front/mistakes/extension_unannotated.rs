//! A closure over an extension of unknown type.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, extension};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(extension("user", |user| user.clone())) //~ type annotations needed
        //~ note: consider giving this closure parameter an explicit type
        .build()?;
    Ok(())
}

fn main() {}
