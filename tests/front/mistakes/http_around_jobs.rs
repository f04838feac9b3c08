//! A layer for HTTP around a service that is not HTTP.

use tower::{BoxError, Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, RateLimitLayer};

struct Job;

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn serve(_: impl Service<Job>) {}

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    serve(limits.layer(service_fn(work))); //~ `Http` cannot limit a service from `Job` to `()`
    //~ note: for any other service, write `RateLimitLayer::new(limiter, by(|request: &Request| ..))`
    Ok(())
}

fn main() {}
