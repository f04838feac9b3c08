//! A settlement over the whole response.

use axum::body::Body;
use http::Response;
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .settle_by(|response: &Response<Body>| Some(1)) //~ type mismatch in closure arguments
        //~ note: expected closure signature `for<'a, 'b> fn(&'a ResponseHead<'b>) -> _`
        .build()?;
    Ok(())
}

fn main() {}
