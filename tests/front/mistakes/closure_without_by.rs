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
    let limits = RateLimitLayer::new(limiter, |job: &Job| PartitionKey::new("tenant", &job.tenant));
    serve(limits.layer(service_fn(work))); //~ cannot limit a service from `Job` to `()`
    //~ note: for any other service, write `RateLimitLayer::new(limiter, by(|request: &Request| ..))`
    Ok(())
}

fn main() {}
