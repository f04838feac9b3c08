//! A closure that returns an optional value of a key.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, extension};

#[derive(Clone)]
struct User {
    id: Option<String>,
}

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(extension("user", |user: &User| user.id.clone())) //~ `Option<String>` is not the value of a key
        //~ note: in `.key_by(|head| ..)`
        .build()?;
    Ok(())
}

fn main() {}
