//! A closure over the whole request.

use axum::body::Body;
use http::Request;
use tower_sliding_window::{ConfigError, MemoryBackend, PartitionKey, RateLimitLayer};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key_by(|request: &Request<Body>| PartitionKey::new("path", request.uri().path())) //~ type mismatch in closure arguments
        //~ note: expected closure signature `for<'a, 'b> fn(&'a Head<'b>) -> _`
        .build()?;
    Ok(())
}

fn main() {}
