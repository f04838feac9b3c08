//! One route in place of a list.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, key};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(key::path_param("id", "/users/{id}")?) //~ `&str` is not a list of texts
        //~ note: for one text, write a list of one: `[".."]`
        .build()?;
    Ok(())
}

fn main() {}
