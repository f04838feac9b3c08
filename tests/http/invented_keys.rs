//! A client that invents a key for every request.

use std::net::SocketAddr;

use axum::{Router, body::Body, extract::connect_info::MockConnectInfo, routing::get};
use http::Request;
use tower::{Service, ServiceExt};
use tower_sliding_window::{
    KeyExtractor, MemoryBackend, RateLimitLayer, header, limit, peer_ip, testing::ManualClock,
};

use super::{MINUTE, SECOND, policy, readme};

const REQUESTS: usize = 20_000;

/// Sends requests with a new key each, from one address, and counts those that are admitted.
async fn admitted(limits: RateLimitLayer) -> usize {
    let address = MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1234)));
    let mut app = Router::new().route("/", get(async || "hello")).layer(limits).layer(address).into_service();
    let mut admitted = 0;
    for number in 0..REQUESTS {
        let request = Request::get("/").header("x-api-key", format!("invented {number}"));
        let request = request.body(Body::empty()).unwrap();
        let response =
            ServiceExt::<Request<Body>>::ready(&mut app).await.unwrap().call(request).await.unwrap();
        admitted += usize::from(response.status() == 200);
    }
    admitted
}

/// A mistake, as the docs of `header` state: a limit by an unverified header alone.
#[tokio::test]
async fn invented_keys_cause_no_outage_for_new_customer() {
    let backend = MemoryBackend::with_max_keys(1_000).unwrap().with_clock(&ManualClock::new());
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("per-key", 10, MINUTE))
        .key(header("x-api-key").unwrap())
        .build()
        .unwrap();
    // Each request has a new key, as that of a new customer would be.
    assert_eq!(admitted(limits).await, REQUESTS);
    let evicted = (REQUESTS - 1_000) as u64;
    assert_eq!((backend.keys(), backend.evicted_keys(), backend.evicted_units()), (1_000, evicted, evicted));
}

#[tokio::test]
async fn readme_limits_invented_keys_by_address() {
    assert_eq!(admitted(readme::limits()).await, 10);
}

/// The limits of the example `axum`, on a stopped clock.
#[tokio::test]
async fn example_limits_invented_keys_by_address() {
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("burst", 10, 10 * SECOND))
        .policy(policy("sustained", 30, MINUTE))
        .key(header("x-api-key").unwrap().or(peer_ip()))
        .also(limit(peer_ip()).policy(policy("per-address", 1_000, MINUTE)))
        .build()
        .unwrap();
    assert_eq!(admitted(limits).await, 1_000);
}
