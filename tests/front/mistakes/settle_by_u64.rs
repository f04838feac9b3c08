//! A settlement that is no `u32`.

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .settle_by(|response| response.headers.get("x-used")?.to_str().ok()?.parse::<u64>().ok()) //~ `u64` is not an amount of quota units
        //~ note: quota units are `u32`: convert the number
        .build()?;
    Ok(())
}

fn main() {}
