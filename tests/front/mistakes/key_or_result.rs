//! The second of two keys without `?`.

use tower_sliding_window::{ConfigError, KeyExtractor, MemoryBackend, RateLimitLayer, header};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(header("x-tenant")?.or(header("x-user"))) //~ `Result<Header, ConfigError>` is not a key extractor
        //~ note: if the value is a `Result`, add `?`
        .build()?;
    Ok(())
}

fn main() {}
