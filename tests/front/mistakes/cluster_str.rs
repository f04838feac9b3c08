//! One node of a cluster in place of a list.

use tower_sliding_window::{ConfigError, RedisBackend, redis::RedisServers};

fn mistake() -> Result<(), ConfigError> {
    let nodes = RedisServers::cluster("redis://10.0.0.1/"); //~ `&str` is not a list of texts
    //~ note: for one text, write a list of one: `[".."]`
    RedisBackend::builder(nodes).lazy()?;
    Ok(())
}

fn main() {}
