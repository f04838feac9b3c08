//! A builder in place of a backend.

use tower_sliding_window::{ConfigError, RateLimitLayer, RedisBackend, redis::RedisServers};

fn mistake(servers: RedisServers) -> Result<(), ConfigError> {
    RateLimitLayer::builder(RedisBackend::builder(servers)); //~ `RedisBackendBuilder` is not a rate limit backend or a limiter
    //~ note: if it is a `RedisBackendBuilder`, call `.lazy()?` or `.connect().await?`
    Ok(())
}

fn main() {}
