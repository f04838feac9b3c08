//! A closure that is not thread-safe.

use std::rc::Rc;

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake(cost: Rc<u32>) -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .cost_by(move |_| *cost) //~ `Rc<u32>` cannot be sent between threads safely
        //~ note: the trait `Send` is not implemented for `Rc<u32>`
        .build()?;
    Ok(())
}

fn main() {}
