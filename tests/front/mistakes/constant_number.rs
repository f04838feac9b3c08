//! A number as the value of a key for all requests.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, key};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(key::constant("shard", 7)) //~ `{integer}` is not the value of a key
        //~ note: write a number, an identifier, a `Cow<str>` or an `Arc<str>` as text: `.to_string()`
        .build()?;
    Ok(())
}

fn main() {}
