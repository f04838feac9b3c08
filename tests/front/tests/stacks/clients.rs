//! HTTP clients that limit their own requests.

use std::time::{Duration, Instant};

use axum::{Router, body::Body, routing::get};
use http::{Request, Response};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};
use tower_http::trace::TraceLayer;
use tower_sliding_window::{
    Limiter, MemoryBackend, PartitionKey, Policy, RateLimit, RateLimitLayer, Rejection, by,
    protocol::{By, RejectWith},
    wait::{WaitAtMost, WaitLayer},
};

use crate::support::{Site, client, each, hello, limiters};

/// A limited client as the field of a struct.
struct Api {
    client: RateLimit<
        reqwest::Client,
        By<reqwest::Request, RejectWith<reqwest::Request, reqwest::Response, reqwest::Error>>,
    >,
}

impl Api {
    fn new(limiter: Limiter) -> Self {
        let by_host = by(|request: &reqwest::Request| {
            PartitionKey::new("host", request.url().host_str().unwrap_or_default())
        });
        // An error of reqwest cannot be created, so the rejection is a response.
        let by_host = by_host.reject_with(|_, rejection| {
            Ok(Response::builder().status(429).body(rejection.to_string()).unwrap().into())
        });
        Self { client: RateLimitLayer::new(limiter, by_host).layer(client()) }
    }
}

#[tokio::test]
async fn reqwest_client_is_limited() {
    let site = Site::serve(Router::new().route("/", get(hello))).await;
    for (limiter, verdicts) in limiters() {
        let mut api = Api::new(limiter);
        for is_admitted in verdicts {
            let request = client().get(site.url()).build().unwrap();
            let response = api.client.ready().await.unwrap().call(request).await.unwrap();
            assert_eq!(response.status().as_u16(), if is_admitted { 200 } else { 429 });
            let start = if is_admitted { "hello" } else { "rate limit exceeded" };
            assert!(response.text().await.unwrap().starts_with(start));
        }
    }
}

/// The error of reqwest cannot implement `From<Rejection>`, so it is boxed inside the limit.
#[tokio::test]
async fn reqwest_client_rejects_with_boxed_error() {
    let site = Site::serve(Router::new().route("/", get(hello))).await;
    for (limiter, verdicts) in limiters() {
        let host = by(|request: &reqwest::Request| {
            PartitionKey::new("host", request.url().host_str().unwrap_or_default())
        });
        let limits = RateLimitLayer::new(limiter, host);
        let mut api = ServiceBuilder::new().layer(limits).map_err(BoxError::from).service(client());
        for is_admitted in verdicts {
            let request = client().get(site.url()).build().unwrap();
            match api.ready().await.unwrap().call(request).await {
                Ok(response) => assert!(is_admitted && response.status() == 200),
                Err(error) => assert!(!is_admitted && error.is::<Rejection>(), "{error}"),
            }
        }
    }
}

/// A waiting client as the field of a struct.
struct Patient {
    client: RateLimit<reqwest::Client, By<reqwest::Request>, WaitAtMost>,
}

#[tokio::test]
async fn reqwest_client_waits_for_its_quota() {
    let site = Site::serve(Router::new().route("/", get(hello))).await;
    let window = Duration::from_millis(200);
    let calls = Policy::new("calls", 2, window).unwrap();
    let limiter = Limiter::builder(MemoryBackend::new()).policy(calls).build().unwrap();

    let host = by(|request: &reqwest::Request| {
        PartitionKey::new("host", request.url().host_str().unwrap_or_default())
    });
    let limits = WaitLayer::new(limiter, host).at_most(Duration::from_secs(10));
    let mut api = Patient { client: ServiceBuilder::new().layer(limits).service(client()) };

    let start = Instant::now();
    for _ in 0..5 {
        let request = client().get(site.url()).build().unwrap();
        let response = api.client.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert!(start.elapsed() >= 2 * window);
}

#[tokio::test]
async fn hyper_client_is_limited() {
    let site = Site::serve(Router::new().route("/", get(hello))).await;
    each(|limits| {
        let url: http::Uri = site.url().parse().unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let client = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(limits).service(client);
        client.map_request(move |mut request: Request<Body>| {
            *request.uri_mut() = url.clone();
            request
        })
    })
    .await;
}
