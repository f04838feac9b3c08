//! tonic: servers, clients, and gRPC beside HTTP on one port.

use axum::{Router, routing::get};
use tonic::{
    Code, Status,
    metadata::MetadataMap,
    service::Routes,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient, health_server::HealthServer};
use tower::Layer;
use tower_sliding_window::answer::{Grpc, HttpOrGrpc};

use crate::support::{Site, builders, client, hello};

fn health() -> HealthServer<impl tonic_health::pb::health_server::Health> {
    tonic_health::server::health_reporter().1
}

async fn channel(site: &Site) -> Channel {
    Channel::from_shared(site.url()).unwrap().connect().await.unwrap()
}

/// Verifies the status of a call, and the fields in the metadata of its response or of its error.
fn verify<T>(result: Result<tonic::Response<T>, Status>, is_admitted: bool) {
    let is_limited = |metadata: &MetadataMap| metadata.contains_key("ratelimit");
    match result {
        Ok(response) => assert!(is_admitted && is_limited(response.metadata())),
        Err(status) => {
            assert!(!is_admitted && is_limited(status.metadata()));
            assert_eq!(status.code(), Code::ResourceExhausted);
        }
    }
}

#[tokio::test]
async fn server_of_tonic_is_limited() {
    for (builder, verdicts) in builders() {
        let server = Server::builder().layer(builder.answer(Grpc).build().unwrap()).add_service(health());
        let serve = async |listener| server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        let site = Site::spawn(serve).await;
        let mut client = HealthClient::new(channel(&site).await);
        for is_admitted in verdicts {
            verify(client.check(HealthCheckRequest::default()).await, is_admitted);
        }
    }
}

#[tokio::test]
async fn client_of_tonic_is_limited() {
    let site = Site::serve(Routes::new(health()).into_axum_router()).await;
    for (builder, verdicts) in builders() {
        let limits = builder.answer(Grpc).build().unwrap();
        let mut client = HealthClient::new(limits.layer(channel(&site).await));
        for is_admitted in verdicts {
            verify(client.check(HealthCheckRequest::default()).await, is_admitted);
        }
    }
}

#[tokio::test]
async fn grpc_and_http_share_port_and_layer() {
    for (builder, verdicts) in builders() {
        let app: Router = Routes::new(health()).into_axum_router().route("/", get(hello));
        let site = Site::serve(app.layer(builder.answer(HttpOrGrpc).build().unwrap())).await;
        let mut grpc = HealthClient::new(channel(&site).await);
        for (i, is_admitted) in verdicts.into_iter().enumerate() {
            if i < 2 {
                verify(grpc.check(HealthCheckRequest::default()).await, is_admitted);
            } else {
                let response = client().get(site.url()).send().await.unwrap();
                crate::support::verify(http::Response::<reqwest::Body>::from(response), is_admitted).await;
            }
        }
    }
}
