//! A built layer without `?`.

use axum::{Router, routing::get};
use tower_sliding_window::{ConfigError, MemoryBackend, RateLimitLayer, peer_ip};

fn mistake() -> Result<(), ConfigError> {
    let limits = RateLimitLayer::builder(MemoryBackend::new()).key(peer_ip()).build();
    let app: Router = Router::new()
        .route("/", get(async || "hi"))
        .layer(limits); //~ `Result<RateLimitLayer, ConfigError>: tower_layer::Layer<
    Ok(())
}

fn main() {}
