//! A service whose error cannot be a rejection.

use std::convert::Infallible;

use tower::{Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, RateLimitLayer, protocol::By};

struct Job;

async fn work(_: Job) -> Result<(), Infallible> {
    Ok(())
}

fn serve(_: impl Service<Job>) {}

fn mistake(limits: RateLimitLayer<By<Job>>) -> Result<(), ConfigError> {
    serve(limits.layer(service_fn(work))); //~ a rejection cannot become the result of a service from `Job` to `()` with the error `Infallible`
    //~ note: implement `From<Rejection>` for `Infallible`
    //~ note: if the error belongs to another crate, box it inside the limit: `.layer(limits).map_err(BoxError::from)`
    Ok(())
}

fn main() {}
