//! A service whose error cannot be a rejection, where the service is called in the same expression.

use std::convert::Infallible;

use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{ConfigError, RateLimitLayer, protocol::By};

struct Job;

async fn work(_: Job) -> Result<(), Infallible> {
    Ok(())
}

fn mistake(limits: RateLimitLayer<By<Job>>) -> Result<(), ConfigError> {
    limits
        .layer(service_fn(work)) //~ a rejection cannot become the result of a service from `Job` to `()` with the error `Infallible`
        //~ note: implement `From<Rejection>` for `Infallible`
        .oneshot(Job);
    Ok(())
}

fn main() {}
