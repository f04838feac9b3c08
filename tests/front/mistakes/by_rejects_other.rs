//! A response of another type for rejected jobs.

use tower::{BoxError, Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer, by};

struct Job;

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn serve(_: impl Service<Job>) {}

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    let by_response = by(|_: &Job| PartitionKey::new("tenant", "acme")).reject_with(|_, _| Ok::<_, BoxError>(429));
    serve(RateLimitLayer::new(limiter, by_response).layer(service_fn(work))); //~ a rejection cannot become the result of a service from `Job` to `()`
    //~ note: or `.reject_with(..)` returns another type
    Ok(())
}

fn main() {}
