//! A shared pointer to a backend.

use std::sync::Arc;

use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer};

fn mistake(backend: Arc<MemoryBackend>) -> Result<(), ConfigError> {
    RateLimitLayer::builder(backend.clone()); //~ `Arc<MemoryBackend>` is not a rate limit backend or a limiter
    //~ note: if it is an `Arc`, pass a clone of the backend
    Ok(())
}

fn main() {}
