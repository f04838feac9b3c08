//! The name of a header in place of an extractor.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, key};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key("x-api-key") //~ `&str` is not a key extractor
        //~ note: if it is the name of a header, write `header("..")?`
        .build()?;
    Ok(())
}

fn main() {}
