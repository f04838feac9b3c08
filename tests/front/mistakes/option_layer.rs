//! An optional layer that changes the body.

use axum::{Router, routing::get};
use tower::util::option_layer;
use tower_sliding_window::{ConfigError, RateLimitLayer};

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    let app: Router = Router::new()
        .route("/", get(async || "hi"))
        .layer(option_layer(Some(limits))); //~ type mismatch resolving
    //~ note: expected `Response<LimitedBody<Body>>`, found `Response<Body>`
    Ok(())
}

fn main() {}
