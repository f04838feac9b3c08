//! `axum::serve` around a limited router.

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower::{Layer, make::Shared};
use tower_sliding_window::{ConfigError, RateLimitLayer};

fn mistake(limits: RateLimitLayer, listener: TcpListener) -> Result<(), ConfigError> {
    let app = limits.layer(Router::new().route("/", get(async || "hi")));
    axum::serve(listener, Shared::new(app)); //~ type mismatch resolving
    //~ note: expected `Response<Body>`, found `Response<LimitedBody<Body>>`
    Ok(())
}

fn main() {}
