//! Clients that know nothing of this crate, and honour `Retry-After`, over a socket.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::{Service, ServiceBuilder, ServiceExt, retry::Policy};
use tower_sliding_window::{MemoryBackend, RateLimitLayer};

use super::{ALICE, SECOND, api_key, policy, wire::Site};

/// Repeats a request after the `Retry-After` of a 429, and records the waits.
#[derive(Clone, Default)]
struct HonourRetryAfter(Arc<Mutex<Vec<Duration>>>);

impl<B, E> Policy<Request<String>, Response<B>, E> for HonourRetryAfter {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(
        &mut self,
        _: &mut Request<String>,
        result: &mut Result<Response<B>, E>,
    ) -> Option<Self::Future> {
        let response =
            result.as_ref().ok().filter(|response| response.status() == StatusCode::TOO_MANY_REQUESTS)?;
        let wait = Duration::from_secs(response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?);
        self.0.lock().unwrap().push(wait);
        // The client waits as it was told.
        Some(Box::pin(tokio::time::sleep(wait)))
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

#[tokio::test]
async fn client_is_admitted_after_one_retry_after() {
    let limits = RateLimitLayer::builder(MemoryBackend::new()).policy(policy("two", 2, SECOND));
    let limits = limits.key(api_key()).build().unwrap();
    let site = Site::serve(Router::new().route("/", get(async || "hello")).layer(limits)).await;

    let retries = HonourRetryAfter::default();
    let mut client = ServiceBuilder::new()
        .retry(retries.clone())
        .map_request(|request: Request<String>| request.map(Body::from))
        .service(Client::builder(TokioExecutor::new()).build_http());
    // A busy machine may send some requests in a later window.
    for _ in 0..30 {
        let url = format!("http://{}/", site.address());
        let request = Request::get(url).header(ALICE.0, ALICE.1).body(String::new()).unwrap();
        let response = client.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let waits = retries.0.lock().unwrap();
        if !waits.is_empty() {
            assert_eq!(*waits, [SECOND]);
            return;
        }
    }
    panic!("the server has admitted every request");
}
