//! tonic: a layer of the server. A client of gRPC gets the status `RESOURCE_EXHAUSTED`: a plain 429 would reach it as
//! `UNAVAILABLE`, without its headers.

use ::tonic::{
    Code,
    transport::{Channel, Server, server::TcpIncoming},
};
use tokio::net::TcpListener;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower_sliding_window::answer::Grpc;

use crate::support::layer;

#[tokio::test]
async fn tonic_server_is_limited() {
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer().answer(Grpc).build().unwrap()).add_service(service);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server =
        tokio::spawn(async { server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap() });

    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let admitted = client.check(HealthCheckRequest::default()).await.unwrap();
    assert!(admitted.metadata().contains_key("ratelimit"));
    let denied = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let retry_after: u64 = denied.metadata().get("retry-after").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    server.abort();
}
