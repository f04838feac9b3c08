//! An inner service that is not `Clone`.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, Service};
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

fn serve(_: impl Service<Request<Body>>) {}

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    serve(limits.layer(Once)); //~ the trait bound `Once: Clone` is not satisfied
    Ok(())
}

fn main() {}
