//! The limit, and the requests that meet it.

use std::{net::SocketAddr, time::Duration};

use http::header;
use tower_sliding_window::{Limiter, MemoryBackend, Policy, RateLimitLayer, RateLimitLayerBuilder, peer_ip};

fn policy() -> Policy {
    Policy::new("requests", 1, Duration::from_secs(60)).unwrap()
}

/// A layer that counts by the address of the peer.
pub(crate) fn layer() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(MemoryBackend::new()).policy(policy()).key(peer_ip())
}

/// A limiter for a framework without tower.
pub(crate) fn limiter() -> Limiter {
    Limiter::builder(MemoryBackend::new()).policy(policy()).build().unwrap()
}

/// Sends two requests. The second one exceeds the quota.
pub(crate) async fn verify(server: SocketAddr) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (i, status) in [200, 429].into_iter().enumerate() {
        let response = client.get(format!("http://{server}/")).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "request {i}");
        let headers = response.headers().clone();
        assert!(headers.contains_key("ratelimit"), "request {i}: {headers:?}");
        let body = response.text().await.unwrap();
        if status == 200 {
            assert!(body.contains("hello"), "{body}");
            assert!(!headers.contains_key(header::RETRY_AFTER), "{headers:?}");
        } else {
            let retry_after: u64 = headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
            assert!((1..=60).contains(&retry_after), "{retry_after}");
            assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
            assert!(body.contains("quota-exceeded"), "{body}");
        }
    }
}
