//! A closure that lacks the head.

use http::Response;
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .rejection(|rejection| Response::new("slow down")) //~ closure is expected to take 2 arguments, but it takes 1 argument
        .build()?;
    Ok(())
}

fn main() {}
