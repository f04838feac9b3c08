//! A URL in place of a backend.

use tower_sliding_window::{ConfigError, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder("redis://10.0.0.1/"); //~ `&str` is not a rate limit backend or a limiter
    //~ note: if it is a URL, write `RedisBackend::lazy(url)?`
    Ok(())
}

fn main() {}
