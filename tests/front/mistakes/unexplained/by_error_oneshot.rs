//! A service whose error cannot be a rejection, where rustc reports the called method.

use std::convert::Infallible;

use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{ConfigError, RateLimitLayer, protocol::By};

struct Job;

async fn work(_: Job) -> Result<(), Infallible> {
    Ok(())
}

fn mistake(limits: RateLimitLayer<By<Job>>) -> Result<(), ConfigError> {
    limits
        .layer(service_fn(work))
        .oneshot(Job); //~ the method `oneshot` exists for struct `RateLimit<
    Ok(())
}

fn main() {}
