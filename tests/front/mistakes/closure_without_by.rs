//! A closure in place of a protocol.

use tower::{BoxError, Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, Limiter, PartitionKey, RateLimitLayer};

struct Job {
    tenant: String,
}

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn serve(_: impl Service<Job>) {}

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    let limits = RateLimitLayer::new(limiter, |job: &Job| PartitionKey::new("tenant", &job.tenant)); //~ is not a protocol
    //~ note: if it is a closure, write `by(|request: &Request| ..)`
    serve(limits.layer(service_fn(work)));
    Ok(())
}

fn main() {}
