//! Streams that settle the amount that they have used.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Extension, Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tower_sliding_window::{
    Limiter, PartitionKey, RateLimitLayer, Reservation, backend::Backend, settle::by_hand,
};

use crate::support::{Later, MINUTE, Site, client, memory, policy};

/// Sends five chunks of ten tokens. Each takes a permit.
async fn tokens(Extension(permits): Extension<Arc<Semaphore>>, reservation: Reservation) -> Body {
    let meter = reservation.meter();
    let chunks = stream::iter(0..5).then(move |_| {
        let permits = permits.clone();
        async move { permits.acquire().await.unwrap().forget() }
    });
    Body::from_stream(chunks.map(move |()| {
        meter.add(10);
        Ok::<_, Infallible>(Bytes::from("token"))
    }))
}

/// Drops the reservation.
async fn nothing(_: Reservation) -> &'static str {
    "nothing"
}

/// A server of streams that cost 60 tokens of 100 in advance.
async fn serve(backend: impl Backend, permits: &Arc<Semaphore>) -> (Site, Limiter) {
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("tokens", 100))
        .key_by(|_| user())
        .cost(60)
        .settle_by(by_hand)
        .deadline(MINUTE)
        .build()
        .unwrap();
    let limiter = limits.limiter().clone();
    let app = Router::new().route("/", get(tokens)).route("/nothing", get(nothing));
    (Site::serve(app.layer(limits).layer(Extension(permits.clone()))).await, limiter)
}

fn user() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

async fn remaining(limiter: &Limiter) -> u32 {
    limiter.peek((user(), 0)).await.unwrap().statuses()[0].remaining()
}

/// Waits until a settlement has changed the remaining quota.
async fn wait_for(limiter: &Limiter, expected: u32) {
    let settled = async {
        while remaining(limiter).await != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(MINUTE, settled).await.unwrap();
}

async fn end_of_stream_settles(backend: impl Backend) {
    let permits = Arc::new(Semaphore::new(5));
    let (site, limiter) = serve(backend, &permits).await;
    let body = client().get(site.url()).send().await.unwrap().text().await.unwrap();
    assert_eq!(body, "token".repeat(5));
    wait_for(&limiter, 50).await;
    let denied = client().get(site.url()).send().await.unwrap();
    assert_eq!(denied.status().as_u16(), 429);
}

async fn disconnect_settles(backend: impl Backend) {
    let permits = Arc::new(Semaphore::new(1));
    let (site, limiter) = serve(backend, &permits).await;
    let mut response = client().get(site.url()).send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "token");
    assert_eq!(remaining(&limiter).await, 40);
    drop(response);
    wait_for(&limiter, 90).await;
}

async fn unsettled_charge_stands(backend: impl Backend) {
    let permits = Arc::new(Semaphore::new(0));
    let (site, limiter) = serve(backend, &permits).await;
    client().get(site.url() + "nothing").send().await.unwrap();
    limiter.drain().await;
    assert_eq!(remaining(&limiter).await, 40);
}

#[tokio::test]
async fn stream_settles_at_its_end() {
    end_of_stream_settles(memory()).await;
    end_of_stream_settles(Later(memory())).await;
}

#[tokio::test]
async fn stream_settles_after_client_disconnects() {
    disconnect_settles(memory()).await;
    disconnect_settles(Later(memory())).await;
}

#[tokio::test]
async fn dropped_reservation_leaves_charge() {
    unsettled_charge_stands(memory()).await;
    unsettled_charge_stands(Later(memory())).await;
}
