//! hyper: a tower service for each connection. An outer layer inserts the address of the peer.

use std::convert::Infallible;

use ::hyper::{body::Incoming, server::conn::http1};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};

use crate::support::{layer, verify};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn hyper_service_is_limited() {
    let limits = layer().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    request
                })
                .layer(limits.clone()) // connections share the limit
                .service(service_fn(hello));
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(async { connection.await.unwrap() });
        }
    });
    verify(address).await;
    server.abort();
}
