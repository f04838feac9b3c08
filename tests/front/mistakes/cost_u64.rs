//! A number that is no `u32`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost(5_u64) //~ `u64` is not a cost
        //~ note: quota units are `u32`: convert other numbers
        .build()?;
    Ok(())
}

fn main() {}
