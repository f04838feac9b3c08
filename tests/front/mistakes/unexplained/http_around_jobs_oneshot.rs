//! A layer for HTTP around a service that is not HTTP, where rustc reports the called method.

use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_sliding_window::{ConfigError, RateLimitLayer};

struct Job;

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    limits
        .layer(service_fn(work))
        .oneshot(Job); //~ the method `oneshot` exists for struct `RateLimit<
    Ok(())
}

fn main() {}
