//! A response as an axum handler returns it.

use http::StatusCode;
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    RateLimitLayer::builder(MemoryBackend::new())
        .key(peer_ip())
        .rejection(|_, _| (StatusCode::TOO_MANY_REQUESTS, "slow down")) //~ `(StatusCode, &str)` is not a response to a rejected request
        //~ note: in axum (feature `axum`), add `.into_response()`
        .build()?;
    Ok(())
}

fn main() {}
