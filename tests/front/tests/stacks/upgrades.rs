//! WebSocket upgrades through the layer.

use axum::{
    Router,
    extract::ws::{Message, WebSocketUpgrade},
    response::Response,
    routing::get,
};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    client_async,
    tungstenite::{self, Error},
};
use tower::ServiceBuilder;
use tower_http::trace::TraceLayer;

use crate::support::{Site, layers};

async fn echo(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message @ Message::Text(_))) = socket.recv().await {
            socket.send(message).await.unwrap();
        }
    })
}

#[tokio::test]
async fn websocket_upgrade_passes_layer() {
    for (limits, verdicts) in layers() {
        let stack = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(limits);
        let site = Site::serve(Router::new().route("/", get(echo)).layer(stack)).await;
        for is_admitted in verdicts {
            let stream = TcpStream::connect(site.address).await.unwrap();
            match client_async(format!("ws://{}/", site.address), stream).await {
                Ok((mut socket, response)) => {
                    assert!(is_admitted && response.headers().contains_key("ratelimit"));
                    socket.send(tungstenite::Message::text("hello")).await.unwrap();
                    let message = socket.next().await.unwrap().unwrap();
                    assert_eq!(message.into_text().unwrap().as_str(), "hello");
                }
                Err(Error::Http(response)) => {
                    assert!(!is_admitted && response.headers().contains_key("retry-after"));
                    assert_eq!(response.status().as_u16(), 429);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
