//! A layer for one type of request around a service of another type.

use axum::{Router, routing::get};
use http::Request;
use tower_sliding_window::{ConfigError, RateLimitLayer, protocol::By};

fn mistake(limits: RateLimitLayer<By<Request<()>>>) -> Result<(), ConfigError> {
    let app: Router = Router::new()
        .route("/", get(async || "hi"))
        .layer(limits); //~ cannot limit a service from
    //~ note: for any other service, write `RateLimitLayer::new(limiter, by(|request: &Request| ..))`
    Ok(())
}

fn main() {}
