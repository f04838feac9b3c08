//! axum: a layer of the router. The feature `axum` lets `peer_ip` read `ConnectInfo`.

use std::net::SocketAddr;

use ::axum::{Router, routing::get};
use tokio::net::TcpListener;

use crate::support::{layer, verify};

async fn hello() -> &'static str {
    "hello"
}

#[tokio::test]
async fn axum_router_is_limited() {
    let app = Router::new().route("/", get(hello)).layer(layer().build().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async { ::axum::serve(listener, service).await.unwrap() });
    verify(address).await;
    server.abort();
}
