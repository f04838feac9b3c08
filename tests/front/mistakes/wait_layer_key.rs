//! A key for HTTP in place of a protocol.

use http::{Request, Response};
use tower::{BoxError, Layer, Service, service_fn};
use tower_sliding_window::{ConfigError, Limiter, peer_ip, wait::WaitLayer};

async fn work(_: Request<()>) -> Result<Response<()>, BoxError> {
    Ok(Response::new(()))
}

fn serve(_: impl Service<Request<()>>) {}

fn mistake(limiter: Limiter) -> Result<(), ConfigError> {
    let layer = WaitLayer::new(limiter, peer_ip()); //~ `PeerIp` is not a protocol
    //~ note: expected a protocol, such as `by(|request: &Request<_>| PartitionKey::new(..))`
    serve(layer.layer(service_fn(work)));
    Ok(())
}

fn main() {}
