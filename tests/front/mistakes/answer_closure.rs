//! A closure in place of an answer.

use http::Response;
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .answer(|rejection, head| Response::new("slow down")) //~ is not an answer
        //~ note: if it is a closure, call `.rejection(|rejection, head| ..)` instead
        .build()?;
    Ok(())
}

fn main() {}
