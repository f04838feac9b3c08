//! A closure that returns a number that is no `u32`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost_by(|head| head.uri.path().len()) //~ `usize` is not an amount of quota units
        //~ note: quota units are `u32`: convert the number
        .build()?;
    Ok(())
}

fn main() {}
