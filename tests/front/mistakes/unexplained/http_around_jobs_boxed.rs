//! A layer for HTTP around a service that is not HTTP, where rustc reports an outer layer.

use tower::{BoxError, ServiceBuilder, service_fn, util::BoxService};
use tower_sliding_window::{ConfigError, RateLimitLayer};

struct Job;

async fn work(_: Job) -> Result<(), BoxError> {
    Ok(())
}

fn mistake(limits: RateLimitLayer) -> Result<(), ConfigError> {
    let jobs: BoxService<Job, (), BoxError> = ServiceBuilder::new()
        .boxed() //~ type mismatch in function arguments
        //~ note: found function signature `fn(Job) -> _`
        .layer(limits)
        .service(service_fn(work));
    Ok(())
}

fn main() {}
