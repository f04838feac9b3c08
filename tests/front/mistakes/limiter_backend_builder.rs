//! A builder in place of the backend of a limiter.

use tower_sliding_window::{ConfigError, Limiter, RedisBackend, redis::RedisServers};

fn mistake(servers: RedisServers) -> Result<(), ConfigError> {
    Limiter::builder(RedisBackend::builder(servers)); //~ `RedisBackendBuilder` is not a rate limit backend
    //~ note: if it is a `RedisBackendBuilder`, call `.lazy()?` or `.connect().await?`
    Ok(())
}

fn main() {}
