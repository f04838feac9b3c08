//! A builder in place of a layer.

use axum::{Router, routing::get};
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    let app: Router = Router::new()
        .route("/", get(async || "hi"))
        .layer(RateLimitLayer::builder(MemoryBackend::new()).key(peer_ip())); //~ a `RateLimitLayerBuilder` is not a layer
        //~ note: call `.build()?` first
    Ok(())
}

fn main() {}
