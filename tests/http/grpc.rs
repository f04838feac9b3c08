//! A tonic server on a socket, and an axum router that serves gRPC and HTTP.

use std::{net::SocketAddr, time::Duration};

use axum::{body::HttpBody as _, routing::get};
use http::Request;
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{
    Code, Status,
    metadata::MetadataMap,
    service::Routes,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    KeyExtractor, MemoryBackend, PartitionKey, RateLimitLayer, Reservation, Wait,
    answer::{Grpc, HttpOrGrpc},
    backend::{Backend, Reason},
    peer_ip,
    protocol::Draft,
    settle::by_hand,
    testing::{
        FakeAnswer::{Admit, Deny},
        FakeBackend, ManualClock,
    },
};

use super::{ALICE, Later, MINUTE, SECOND, api_key, policy, wire::Site};

fn limits(backend: impl Backend) -> RateLimitLayer {
    RateLimitLayer::builder(backend)
        .policy(policy("burst", 2, SECOND))
        .policy(policy("sustained", 5, MINUTE))
        .key(api_key().or(peer_ip()))
        .answer(Grpc)
        .build()
        .unwrap()
}

/// A tonic server with the health service, limited, until this is dropped.
struct GrpcSite {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl GrpcSite {
    async fn serve(limits: RateLimitLayer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let server = Server::builder().layer(limits).add_service(health);
        let server = tokio::spawn(async {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { address, server }
    }
}

impl Drop for GrpcSite {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// One call; the metadata of its answer.
async fn call(address: SocketAddr, key: Option<&'static str>) -> Result<MetadataMap, Status> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    // So that a server that hangs fails its test and does not stop all of them.
    let channel = channel.timeout(Duration::from_secs(30)).connect().await.unwrap();
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    if let Some(key) = key {
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    }
    let response = HealthClient::new(channel).check(request).await?;
    assert_eq!(response.get_ref().status, 1, "SERVING, which only the service itself says");
    Ok(response.metadata().clone())
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn an_admitted_call_is_answered_and_tells_its_limits_in_the_metadata() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    let metadata = call(site.address, Some("alice")).await.unwrap();
    assert_eq!(text(&metadata, "ratelimit-policy"), Some(r#""burst";q=2;w=1, "sustained";q=5;w=60"#));
    assert_eq!(text(&metadata, "ratelimit"), Some(r#""burst";r=1;t=1, "sustained";r=4;t=60"#));
    assert_eq!(text(&metadata, "grpc-retry-pushback-ms"), None);
}

#[tokio::test]
async fn a_denial_is_resource_exhausted_with_how_long_to_wait_and_what_was_violated() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    for _ in 0..2 {
        call(site.address, Some("alice")).await.unwrap();
    }
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Try again in 1 s."));
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND));
    let violations = status.get_details_quota_failure().unwrap().violations;
    let told: Vec<_> = violations.iter().map(|it| (it.subject.as_str(), it.description.as_str())).collect();
    assert_eq!(told, [("burst", "2 units in 1s")]);
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(text(status.metadata(), "retry-after"), Some("1"));
    assert_eq!(text(status.metadata(), "ratelimit"), Some(r#""burst";r=0;t=1, "sustained";r=3;t=60"#));
    call(site.address, Some("bob")).await.unwrap();
}

#[tokio::test]
async fn a_backend_that_decides_later_is_answered_in_the_same_words_and_waits_are_rounded_up() {
    let wait = Duration::from_micros(7_000_001);
    let site = GrpcSite::serve(limits(Later(FakeBackend::scripted([Admit, Deny(Wait::For(wait))])))).await;
    let metadata = call(site.address, Some("alice")).await.unwrap();
    assert_eq!(text(&metadata, "ratelimit"), Some(r#""burst";r=1;t=1, "sustained";r=4;t=60"#));
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(wait));
    assert_eq!(status.get_details_quota_failure().unwrap().violations.len(), 2);
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), Some("7001"));
}

#[tokio::test]
async fn where_no_wait_helps_the_client_is_told_not_to_try_again() {
    let site = GrpcSite::serve(limits(FakeBackend::scripted([Deny(Wait::Never)]))).await;
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "This request costs more than the whole quota.");
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(status.get_details_quota_failure().unwrap().violations.len(), 2);
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), Some("-1"));
    assert_eq!(text(status.metadata(), "retry-after"), None);
}

#[tokio::test]
async fn an_outage_is_unavailable_and_never_resource_exhausted() {
    let site = GrpcSite::serve(limits(FakeBackend::unavailable(Reason::Connection))).await;
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the rate limit could not be checked"));
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), None);
    assert_eq!(text(status.metadata(), "ratelimit"), None);
}

#[tokio::test]
async fn the_peers_address_is_read_from_what_tonic_knows_of_the_connection() {
    let backend = FakeBackend::admitting();
    let site = GrpcSite::serve(limits(backend.clone())).await;
    call(site.address, None).await.unwrap();
    assert_eq!(backend.checks()[0].pairs[0].key, PartitionKey::new("peer-ip", "127.0.0.1"));
}

#[tokio::test]
async fn a_key_that_cannot_be_read_is_an_invalid_argument_and_an_unknown_peer_an_internal_error() {
    let inner = || {
        service_fn(
            async |_: Request<()>| -> Result<http::Response<tonic::body::Body>, std::convert::Infallible> {
                panic!("it was let through")
            },
        )
    };
    let refused = async |request: Request<()>| {
        let response = limits(FakeBackend::admitting()).layer(inner()).oneshot(request).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        (status.code(), status.message().to_owned())
    };

    let twice = Request::get("/").header(ALICE.0, "alice").header(ALICE.0, "bob").body(()).unwrap();
    let malformed = "malformed rate limit key: header x-api-key: the header occurs more than once".to_owned();
    assert_eq!(refused(twice).await, (Code::InvalidArgument, malformed));
    // No connection here, so no peer: and the client does not read what is wrong with the server.
    assert_eq!(refused(Request::new(())).await, (Code::Internal, "internal error".to_owned()));
}

#[tokio::test]
async fn a_refusal_is_one_frame_of_headers_without_a_body() {
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(tonic::body::Body::empty()))
    });
    let request = Request::get("/").header(ALICE.0, ALICE.1).body(()).unwrap();
    let response = limits(FakeBackend::denying(SECOND)).layer(inner).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(response.body().is_end_stream());
}

fn http_or_grpc(backend: impl Backend) -> axum::Router {
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("burst", 2, SECOND))
        .key(api_key().or(peer_ip()))
        .answer(HttpOrGrpc)
        .build()
        .unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    Routes::new(health).into_axum_router().route("/", get(async || "hello")).layer(limits)
}

#[tokio::test]
async fn one_layer_answers_each_in_its_own_protocol() {
    let admitting = Site::serve(http_or_grpc(FakeBackend::admitting())).await;
    call(admitting.address(), Some("alice")).await.unwrap();
    assert_eq!(admitting.get("/", &[ALICE]).await.body, "hello");

    let denying = Site::serve(http_or_grpc(FakeBackend::denying(7 * SECOND))).await;
    let status = call(denying.address(), Some("alice")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(7 * SECOND));
    let answer = denying.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
    assert_eq!(answer.json()["status"], 429);
    assert_eq!(answer.header("grpc-status"), None);

    let broken = Site::serve(http_or_grpc(FakeBackend::unavailable(Reason::Connection))).await;
    assert_eq!(call(broken.address(), Some("alice")).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(broken.get("/", &[ALICE]).await.status, 503);
}

#[tokio::test]
async fn grpc_and_http_of_one_client_are_one_limit() {
    let site = Site::serve(http_or_grpc(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    call(site.address(), Some("alice")).await.unwrap();
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
    assert_eq!(call(site.address(), Some("alice")).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// Answers as the health service does, and settles what was reserved for the call.
#[derive(Clone)]
struct Settles<S>(S);

impl<S, B> tower::Service<Request<B>> for Settles<S>
where
    S: tower::Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        request.extensions().get::<Reservation>().unwrap().settle(2);
        self.0.call(request)
    }
}

#[tokio::test]
async fn a_call_is_settled_by_the_reservation_in_its_requests_extensions() {
    let backend = MemoryBackend::new().with_clock(&ManualClock::new());
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("units", 10, MINUTE))
        .key(api_key())
        .cost(7)
        .answer(Grpc)
        .settle_by(by_hand)
        .build()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits).layer(tower::layer::layer_fn(Settles)).add_service(health);
    let server = tokio::spawn(async {
        server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
    });
    let site = GrpcSite { address, server };
    for left in [3, 1] {
        let metadata = call(site.address, Some("alice")).await.unwrap();
        assert_eq!(text(&metadata, "ratelimit"), Some(&*format!(r#""units";r={left};t=60"#)));
    }
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!(
        (status.code(), text(status.metadata(), "ratelimit")),
        (Code::ResourceExhausted, Some(r#""units";r=6;t=60"#))
    );
}

#[tokio::test]
async fn a_plan_that_is_no_check_is_an_internal_error() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .answer(Grpc)
        .plan_by(|_| Draft::check(PartitionKey::new("user", "alice"), 1))
        .build()
        .unwrap();
    let inner = service_fn(
        async |_: Request<()>| -> Result<http::Response<tonic::body::Body>, std::convert::Infallible> {
            panic!("it was let through")
        },
    );
    let response = limits.layer(inner).oneshot(Request::new(())).await.unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
}
