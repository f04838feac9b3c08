//! salvo: a hoop that `TowerLayerCompat` makes of the layer. A hoop before it inserts the address of the peer.

use ::salvo::{
    Listener, Request, Router, Server,
    conn::{Acceptor, TcpListener},
    handler,
    prelude::TowerLayerCompat,
};

use crate::support::{layer, verify};

#[handler]
async fn hello() -> &'static str {
    "hello"
}

#[handler]
async fn insert_peer(request: &mut Request) {
    if let Some(peer) = request.remote_addr().clone().into_std() {
        request.extensions_mut().insert(peer);
    }
}

#[tokio::test]
async fn salvo_router_is_limited() {
    let router = Router::new().hoop(insert_peer).hoop(layer().build().unwrap().compat()).get(hello);
    let acceptor = TcpListener::new("127.0.0.1:0").bind().await;
    let address = acceptor.holdings()[0].local_addr.clone().into_std().unwrap();
    let server = tokio::spawn(Server::new(acceptor).serve(router));
    verify(address).await;
    server.abort();
}
