//! A fallible extractor without `?`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, header, key};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(header("x-api-key")) //~ `Result<Header, ConfigError>` is not a key extractor
        //~ note: if the value is a `Result`, add `?`
        .build()?;
    Ok(())
}

fn main() {}
