//! A boxed service that names its body.

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, service_fn, util::BoxCloneService};
use tower_sliding_window::{ConfigError, RateLimitLayer};

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let boxed: BoxCloneService<Request<Body>, Response<Body>, Infallible> =
        BoxCloneService::new(limits.layer(inner)); //~ mismatched types
    //~ note: expected `Body`, found `LimitedBody<Body>`
    Ok(())
}

fn main() {}
