//! A settlement by another type than the response of the service.

use tower::{BoxError, Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, Limiter, RateLimitLayer, by, protocol::By};

struct Job;

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn serve(_: impl Service<Job>) {}

fn mistake(limiter: Limiter, by: By<Job>) -> Result<(), ConfigError> {
    let by_response = by.settle_by(|response: &u64| Some(1));
    serve(RateLimitLayer::new(limiter, by_response).layer(service_fn(work))); //~ `.settle_by(..)` or `.learn_by(..)` cannot read a response of the type `()`
    //~ note: write `by(..).settle_by(|response: &()| ..)`
    Ok(())
}

fn main() {}
