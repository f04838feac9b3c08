//! One Sentinel in place of a list.

use tower_sliding_window::{ConfigError, RedisBackend, redis::RedisServers};

fn mistake() -> Result<(), ConfigError> {
    let servers = RedisServers::sentinel("redis://primary/", "redis://10.0.0.1:26379"); //~ `&str` is not a list of texts
    //~ note: for one text, write a list of one: `[".."]`
    RedisBackend::builder(servers).lazy()?;
    Ok(())
}

fn main() {}
