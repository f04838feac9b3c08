//! poem: a middleware that calls a `Limiter`.

use ::poem::{
    Endpoint, EndpointExt, IntoResponse, Request, Response, Result, Route, Server, get, handler,
    http::StatusCode,
    listener::{Acceptor, Listener, TcpListener},
};
use tower_sliding_window::{Limiter, PartitionKey, answer::Dialect};

use crate::support::{limiter, verify};

#[handler]
async fn hello() -> &'static str {
    "hello"
}

async fn limit(next: impl Endpoint, request: Request, limiter: Limiter) -> Result<Response> {
    let Some(peer) = request.remote_addr().as_socket_addr().map(|peer| peer.ip()) else {
        return Err(StatusCode::INTERNAL_SERVER_ERROR.into());
    };
    match limiter.admit(PartitionKey::peer_ip(peer)).await {
        Ok(admission) => {
            let mut response = next.call(request).await?.into_response();
            if let Some(decision) = admission.decision() {
                Dialect::Draft11.add_fields(decision, response.headers_mut());
            }
            Ok(response)
        }
        Err(rejection) => {
            let (head, body) = rejection.to_response().into_parts();
            Ok((head.status, head.headers, body).into_response())
        }
    }
}

#[tokio::test]
async fn poem_route_is_limited() {
    let limiter = limiter();
    let app =
        Route::new().at("/", get(hello)).around(move |next, request| limit(next, request, limiter.clone()));
    let acceptor = TcpListener::bind("127.0.0.1:0").into_acceptor().await.unwrap();
    let address = *acceptor.local_addr()[0].as_socket_addr().unwrap();
    let server = tokio::spawn(Server::new_with_acceptor(acceptor).run(app));
    verify(address).await;
    server.abort();
}
