//! A service whose error cannot be a rejection, where the service is made ready.

use std::convert::Infallible;

use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer, by};

struct Job;

async fn work(_: Job) -> Result<(), Infallible> {
    Ok(())
}

async fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    let limits = RateLimitLayer::new(limiter, by(|_: &Job| PartitionKey::new("tenant", "acme")));
    let mut service = limits.layer(service_fn(work)); //~ a rejection cannot become the result of a service from `Job` to `()` with the error `Infallible`
    //~ note: implement `From<Rejection>` for `Infallible`
    service.ready().await;
    Ok(())
}

fn main() {}
