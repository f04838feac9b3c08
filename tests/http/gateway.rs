//! A gateway of language models: its provider exceeds time-outs, and its clients disconnect. No unit stays held.

use std::{env, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, extract::Query, routing::get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, StatusCode};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_sliding_window::{PartitionKey, Policy, RateLimitLayer, RedisBackend};

use super::{SECOND, api_key, wire::Site};
use crate::support::server::{Engine, Server};

const CLIENTS: u32 = 8;
const AT_ONCE: u32 = 3;

/// How the provider answers: at once, not at all, or with a part of the body.
#[derive(Deserialize)]
struct Answer {
    answer: u32,
}

async fn provide(Query(Answer { answer }): Query<Answer>) -> Body {
    let chunk = || Ok::<_, std::io::Error>(Bytes::from("token "));
    match answer {
        0 => Body::from_stream(stream::iter([chunk(), chunk()])),
        1 => std::future::pending().await,
        _ => Body::from_stream(stream::iter([chunk()]).chain(stream::pending())),
    }
}

/// Returns the gateway: it forwards a request, and answers 504 if the provider does not begin in time.
fn gateway(provider: SocketAddr, limits: RateLimitLayer) -> Router {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let forward = async move |Query(Answer { answer }): Query<Answer>| {
        let request = Request::get(format!("http://{provider}/?answer={answer}"));
        let response = client.request(request.body(Body::empty()).unwrap());
        match timeout(Duration::from_millis(100), response).await {
            Ok(Ok(response)) => Ok(Body::new(response.into_body())),
            Ok(Err(_)) => Err(StatusCode::BAD_GATEWAY),
            Err(_) => Err(StatusCode::GATEWAY_TIMEOUT),
        }
    };
    Router::new().route("/", get(forward)).layer(limits)
}

/// Sends a request, disconnects after at most this time, and returns what has arrived.
async fn send(gateway: SocketAddr, client: u32, answer: u32, patience: Duration) -> String {
    let mut connection = TcpStream::connect(gateway).await.unwrap();
    let request = format!(
        "GET /?answer={answer} HTTP/1.1\r\nhost: gateway\r\nx-api-key: {client}\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = timeout(patience, connection.read_to_end(&mut response)).await;
    String::from_utf8_lossy(&response).into_owned()
}

/// `GATEWAY_REQUESTS` sets another number of requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_with_timeouts_locks_no_key() {
    let requests = env::var("GATEWAY_REQUESTS").map_or(400, |number| number.parse().unwrap());
    let server = Server::start(Engine::Redis);
    let limits = RateLimitLayer::builder(RedisBackend::connect(&server.url()).await.unwrap())
        .policy(Policy::new("requests", 1_000, SECOND).unwrap())
        .policy(Policy::in_flight("parallel", AT_ONCE).unwrap())
        .key(api_key())
        .build()
        .unwrap();
    let provider = Site::serve_without_connect_info(Router::new().route("/", get(provide))).await;
    let site = Site::serve_without_connect_info(gateway(provider.address(), limits.clone())).await;
    let gateway = site.address();
    let (mut sent, mut seen) = (JoinSet::<String>::new(), [0_u32; 4]);
    for number in 0..requests {
        // Twice as many at once as all clients may have.
        if sent.len() as u32 >= 2 * CLIENTS * AT_ONCE {
            tally(&mut seen, &sent.join_next().await.unwrap().unwrap());
        }
        let patience = Duration::from_millis(if number % 2 == 0 { 500 } else { u64::from(number % 7) * 10 });
        sent.spawn(async move { send(gateway, number % CLIENTS, number / CLIENTS % 3, patience).await });
    }
    while let Some(response) = sent.join_next().await {
        tally(&mut seen, &response.unwrap());
    }
    assert!(seen.iter().all(|responses| *responses > 0), "200, 429, 504, none: {seen:?}");
    println!("200, 429, 504, none: {seen:?}");
    // Time-outs of requests whose clients have gone.
    sleep(Duration::from_millis(200)).await;
    limits.limiter().drain().await;
    for client in 0..CLIENTS {
        let key = PartitionKey::new("x-api-key", client.to_string());
        let decision = limits.limiter().peek((key, 0)).await.unwrap();
        assert_eq!(decision.statuses()[1].remaining(), AT_ONCE, "client {client}");
    }
}

fn tally(seen: &mut [u32; 4], response: &str) {
    let place =
        ["200", "429", "504"].iter().position(|status| response.starts_with(&format!("HTTP/1.1 {status}")));
    seen[place.unwrap_or(3)] += 1;
}
