//! An inner service that is not `Clone`, where rustc reports the called method.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{ConfigError, RateLimitLayer};

struct Once;

impl Service<Request<Body>> for Once {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    limits
        .layer(Once)
        .oneshot(Request::new(Body::empty())); //~ the method `oneshot` exists for struct `RateLimit<Once>`
    Ok(())
}

fn main() {}
