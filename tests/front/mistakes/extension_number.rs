//! A closure that returns a number as the value of a key.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, extension};

#[derive(Clone)]
struct User {
    id: u64,
}

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(extension("user", |user: &User| user.id)) //~ `u64` is not the value of a key
        //~ note: write a number, an identifier, a `Cow<str>` or an `Arc<str>` as text: `.to_string()`
        .build()?;
    Ok(())
}

fn main() {}
