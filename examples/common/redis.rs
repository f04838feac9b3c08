//! The Redis of an example, at the URL of the variable `REDIS_URL`.

use std::env;

use tower_sliding_window::RedisBackend;

/// Connects to Redis. Returns `None` if the variable is not set.
pub(crate) async fn redis() -> Result<Option<RedisBackend>, String> {
    let url = match env::var("REDIS_URL") {
        Ok(url) => url,
        Err(env::VarError::NotPresent) => return Ok(None),
        // The error would repeat the URL, and the URL may hold a password.
        Err(env::VarError::NotUnicode(_)) => return Err("REDIS_URL: the value is not UTF-8".to_owned()),
    };
    RedisBackend::connect(&url).await.map(Some).map_err(|error| format!("REDIS_URL: {error}"))
}
