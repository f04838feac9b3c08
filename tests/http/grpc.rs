//! A tonic server on a socket, and an axum router that serves gRPC and HTTP.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{body::HttpBody as _, routing::get};
use http::{Method, Request};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{
    Code, Status,
    metadata::MetadataMap,
    service::Routes,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    ConfigError, Head, KeyExtractor, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer,
    RateLimitLayerBuilder, Rejection, Reservation, RouteCosts, Wait,
    answer::{Answer, Dialect, Grpc, HttpOrGrpc},
    backend::{Backend, Reason},
    by,
    key::constant,
    peer_ip,
    policy::Rate,
    protocol::Draft,
    settle::by_hand,
    testing::{
        FakeAnswer::{Admit, Deny, Unavailable},
        FakeBackend, ManualClock,
    },
    wait::{WaitError, WaitLayer},
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

/// A rate limited tonic server with the health service. It stops when this value is dropped.
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

/// Sends one call, and returns the metadata of its response.
async fn call(address: SocketAddr, key: Option<&'static str>) -> Result<MetadataMap, Status> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    // The timeout limits a hanging server to one failed test.
    let channel = channel.timeout(Duration::from_secs(30)).connect().await.unwrap();
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    if let Some(key) = key {
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    }
    let response = HealthClient::new(channel).check(request).await?;
    assert_eq!(response.get_ref().status, 1, "the health service reports SERVING");
    Ok(response.metadata().clone())
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn admitted_call_returns_limits_in_metadata() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    let metadata = call(site.address, Some("alice")).await.unwrap();
    assert_eq!(text(&metadata, "ratelimit-policy"), Some(r#""burst";q=2;w=1, "sustained";q=5;w=60"#));
    assert_eq!(text(&metadata, "ratelimit"), Some(r#""burst";r=1;t=1, "sustained";r=4;t=60"#));
    assert_eq!(text(&metadata, "grpc-retry-pushback-ms"), None);
}

#[tokio::test]
async fn denied_call_returns_retry_info_and_quota_failure() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    for _ in 0..2 {
        call(site.address, Some("alice")).await.unwrap();
    }
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Try again in 1 s."));
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND));
    let violations = status.get_details_quota_failure().unwrap().violations;
    let violations = violations.iter().map(|violation| (&*violation.subject, &*violation.description));
    assert_eq!(violations.collect::<Vec<_>>(), [("burst", "2 units in 1s")]);
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(text(status.metadata(), "retry-after"), Some("1"));
    assert_eq!(text(status.metadata(), "ratelimit"), Some(r#""burst";r=0;t=1, "sustained";r=3;t=60"#));
    call(site.address, Some("bob")).await.unwrap();
}

/// A handler that limits itself.
struct Handler(Limiter);

#[tonic::async_trait]
impl Health for Handler {
    type WatchStream = futures_util::stream::Empty<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        let _admission = self.0.admit(PartitionKey::new("service", &request.get_ref().service)).await?;
        Ok(tonic::Response::new(HealthCheckResponse { status: 1 }))
    }

    async fn watch(
        &self,
        _request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tokio::test]
async fn rejection_in_handler_becomes_status_of_layer() {
    let limiter = Limiter::builder(FakeBackend::scripted([
        Admit,
        Deny(Wait::For(SECOND)),
        Unavailable(Reason::Timeout),
    ]));
    let limiter = limiter.policy(policy("burst", 2, SECOND)).build().unwrap();
    // The client calls the server without a socket.
    let mut client = HealthClient::new(HealthServer::new(Handler(limiter.clone())));
    let check = || HealthCheckRequest { service: "shop".to_owned() };
    assert_eq!(client.check(check()).await.unwrap().get_ref().status, 1);
    let denied = client.check(check()).await.unwrap_err();
    assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "Try again in 1 s."));
    assert_eq!(denied.get_details_retry_info().unwrap().retry_delay, Some(SECOND));
    assert_eq!(denied.get_details_quota_failure().unwrap().violations[0].subject, "burst");
    assert_eq!(text(denied.metadata(), "grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::Unavailable);

    // In the process, the source is the rejection.
    let rejection = limiter.admit(PartitionKey::new("service", "shop")).await.map(drop).unwrap_err();
    let text = rejection.to_string();
    assert_eq!(Status::from(rejection).source().unwrap().to_string(), text);
}

/// Calls until the call is admitted, and waits as `grpc-retry-pushback-ms` states. Returns the waits.
async fn call_with_pushback(address: SocketAddr) -> Vec<Duration> {
    let mut waits = Vec::new();
    while let Err(status) = call(address, Some("alice")).await {
        assert_eq!(status.code(), Code::ResourceExhausted);
        let pushback: u64 = text(status.metadata(), "grpc-retry-pushback-ms").unwrap().parse().unwrap();
        waits.push(Duration::from_millis(pushback));
        // The client waits as it was told.
        tokio::time::sleep(Duration::from_millis(pushback)).await;
    }
    waits
}

#[tokio::test]
async fn client_is_admitted_after_one_pushback() {
    let window = Duration::from_millis(300);
    let builder = RateLimitLayer::builder(MemoryBackend::new()).policy(policy("one", 1, window));
    let site = GrpcSite::serve(builder.key(api_key()).answer(Grpc).build().unwrap()).await;
    // A busy machine may send some calls in a later window.
    for _ in 0..30 {
        let waits = call_with_pushback(site.address).await;
        if !waits.is_empty() {
            assert!(waits.len() == 1 && waits[0] <= window, "{waits:?}");
            return;
        }
    }
    panic!("the server has admitted every call");
}

#[test]
fn status_states_lower_bound_of_long_wait() {
    let head = Request::new(());
    let reject = |rejection: &Rejection| {
        let response = Grpc.reject(rejection, &(&head).into());
        Status::from_header_map(response.headers()).unwrap()
    };
    let longest = Duration::from_millis(i32::MAX as u64);
    for (at_least, millis) in [
        (Duration::ZERO, "1000"),
        (Duration::from_micros(7_000_001), "7001"),
        (longest, "2147483647"),
        // A pushback is an integer of 32 bits. For a longer wait, it forbids a retry.
        (longest + Duration::from_micros(1), "-1"),
        (30 * 1_440 * MINUTE, "-1"),
    ] {
        let status = reject(&Rejection::wait_too_long(at_least));
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), Some(millis));
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(at_least.max(SECOND)));
    }
    assert_eq!(reject(&Rejection::too_many_waiting(9, false)).code(), Code::Unavailable);
}

#[test]
fn rejection_over_grpc_forbids_caching() {
    let head = Request::new(());
    let response = Grpc.reject(&Rejection::too_many_waiting(9, false), &(&head).into());
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn quota_failure_describes_each_type_of_policy() {
    for (policy, expected) in [
        (policy("p", 2, SECOND), "2 units in 1s"),
        (Policy::in_flight("p", 2).unwrap(), "2 units at the same time"),
        (Policy::token_bucket("p", 2, Rate::per_second(1)).unwrap(), "2 units"),
    ] {
        let backend = MemoryBackend::new().with_clock(&ManualClock::new());
        let limiter = Limiter::builder(backend).policy(policy).build().unwrap();
        let key = || PartitionKey::new("user", "alice");
        let _admission = limiter.admit((key(), 2)).await.unwrap();
        let status = Status::from(limiter.admit(key()).await.map(drop).unwrap_err());
        let violations = status.get_details_quota_failure().unwrap().violations;
        assert_eq!((violations.len(), &*violations[0].description), (1, expected));
    }
}

#[tokio::test]
async fn delayed_backend_produces_same_status_and_rounded_wait() {
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
async fn denial_without_wait_forbids_retry() {
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
async fn outage_returns_unavailable_status() {
    let site = GrpcSite::serve(limits(FakeBackend::unavailable(Reason::Connection))).await;
    let status = call(site.address, Some("alice")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the rate limit could not be checked"));
    assert!(status.get_details_retry_info().is_none());
    assert_eq!(text(status.metadata(), "grpc-retry-pushback-ms"), None);
    assert_eq!(text(status.metadata(), "ratelimit"), None);
}

#[tokio::test]
async fn peer_ip_reads_connect_info_of_tonic() {
    let backend = FakeBackend::admitting();
    let site = GrpcSite::serve(limits(backend.clone())).await;
    call(site.address, None).await.unwrap();
    assert_eq!(backend.checks()[0].pairs[0].key, PartitionKey::new("peer-ip", "127.0.0.1"));
}

#[tokio::test]
async fn malformed_key_and_unknown_peer_return_different_codes() {
    let inner = || {
        service_fn(
            async |_: Request<()>| -> Result<http::Response<tonic::body::Body>, std::convert::Infallible> {
                panic!("the inner service was called")
            },
        )
    };
    let rejected = async |request: Request<()>| {
        let response = limits(FakeBackend::admitting()).layer(inner()).oneshot(request).await.unwrap();
        let status = Status::from_header_map(response.headers()).unwrap();
        (status.code(), status.message().to_owned())
    };

    let twice = Request::get("/").header(ALICE.0, "alice").header(ALICE.0, "bob").body(()).unwrap();
    let malformed = "malformed rate limit key: header x-api-key: the header occurs more than once".to_owned();
    assert_eq!(rejected(twice).await, (Code::InvalidArgument, malformed));
    // This request has no connection, so its peer is unknown. The client does not read this cause.
    assert_eq!(rejected(Request::new(())).await, (Code::Internal, "internal error".to_owned()));
}

#[tokio::test]
async fn rejection_has_headers_and_no_body() {
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(tonic::body::Body::empty()))
    });
    let request = Request::get("/").header(ALICE.0, ALICE.1).body(()).unwrap();
    let response = limits(FakeBackend::denying(SECOND)).layer(inner).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert_eq!(response.headers()["cache-control"], "no-store");
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
async fn layer_answers_each_request_in_its_protocol() {
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

/// A gRPC client cannot read the response of the closure.
#[tokio::test]
async fn rejection_closure_answers_only_requests_over_http() {
    type Build = fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;
    fn own(_: &Rejection, _: &Head<'_>) -> http::Response<&'static str> {
        http::Response::new("own")
    }
    let builds: [Build; 4] = [
        |builder| builder.answer(HttpOrGrpc).rejection(own),
        |builder| builder.rejection(own).answer(HttpOrGrpc),
        |builder| builder.rejection(own).answer(Arc::new(HttpOrGrpc)),
        |builder| builder.rejection(own).answer(HttpOrGrpc).dialect(Dialect::Draft7),
    ];
    for build in builds {
        let builder =
            RateLimitLayer::builder(FakeBackend::denying(SECOND)).policy(policy("burst", 2, SECOND));
        let limits = build(builder.key(api_key())).build().unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let app = Routes::new(health).into_axum_router().route("/", get(async || "hello")).layer(limits);
        let site = Site::serve(app).await;
        let status = call(site.address(), Some("alice")).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Try again in 1 s."));
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!((answer.status, &*answer.body, answer.header("retry-after")), (429, "own", Some("1")));
    }
}

#[test]
fn rejection_closure_without_requests_is_an_error() {
    let builder = || RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("burst", 2, SECOND));
    let own = |_: &Rejection, _: &Head<'_>| http::Response::new("own");
    for builder in [builder().answer(Grpc).rejection(own), builder().rejection(own).answer(Grpc)] {
        let error = builder.key(api_key()).build().unwrap_err();
        assert!(matches!(error, ConfigError::RejectionOverGrpc), "{error}");
    }
    // The last answer counts.
    builder().rejection(own).answer(Grpc).answer(HttpOrGrpc).key(api_key()).build().unwrap();
}

/// A gRPC call is a POST. A cache would keep a 200 to a GET, and a 200 to CONNECT begins a tunnel.
#[tokio::test]
async fn only_post_request_is_answered_over_grpc() {
    let app = http_or_grpc(FakeBackend::denying(SECOND));
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::CONNECT, Method::POST] {
        let request = Request::builder().method(&method).uri("/").header(ALICE.0, ALICE.1);
        let request = request.header("content-type", "application/grpc").body(axum::body::Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        let is_grpc = method == Method::POST;
        let expected = if is_grpc { (200, "application/grpc") } else { (429, "application/problem+json") };
        let headers = response.headers();
        assert_eq!(
            (response.status().as_u16(), headers["content-type"].to_str().unwrap()),
            expected,
            "{method}"
        );
        assert_eq!(headers.get("grpc-status").is_some_and(|code| code == "8"), is_grpc, "{method}");
        assert_eq!(headers["cache-control"], "no-store", "{method}");
    }
}

#[tokio::test]
async fn grpc_and_http_requests_share_one_limit() {
    let site = Site::serve(http_or_grpc(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    call(site.address(), Some("alice")).await.unwrap();
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(site.get("/", &[ALICE]).await.status, 429);
    assert_eq!(call(site.address(), Some("alice")).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// A service that settles the reservation of each call at two units, and forwards the call.
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
async fn service_settles_call_by_reservation_in_extensions() {
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
async fn grpc_method_has_its_own_cost() {
    let service = "grpc.health.v1.Health";
    for (costs, expected) in [
        (RouteCosts::new().grpc(service, "Check", 3).unwrap().grpc_service(service, 2).unwrap(), 3),
        (RouteCosts::new().grpc(service, "Watch", 3).unwrap().grpc_service(service, 2).unwrap(), 2),
        (RouteCosts::new().grpc("grpc.health.v2.Health", "Check", 3).unwrap(), 1),
    ] {
        let backend = FakeBackend::admitting();
        let limits = RateLimitLayer::builder(backend.clone())
            .policy(policy("units", 10, MINUTE))
            .key(peer_ip())
            .cost(costs)
            .answer(Grpc)
            .build()
            .unwrap();
        let site = GrpcSite::serve(limits).await;
        call(site.address, None).await.unwrap();
        assert_eq!(backend.checks()[0].pairs[0].cost, expected);
    }
}

#[tokio::test]
async fn invalid_plan_returns_internal_error() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting())
        .answer(Grpc)
        .plan_by(|_| Draft::check(PartitionKey::new("user", "alice"), 1))
        .build()
        .unwrap();
    let inner = service_fn(
        async |_: Request<()>| -> Result<http::Response<tonic::body::Body>, std::convert::Infallible> {
            panic!("the inner service was called")
        },
    );
    let response = limits.layer(inner).oneshot(Request::new(())).await.unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
}

async fn connect(site: &GrpcSite) -> Channel {
    let channel = Channel::from_shared(format!("http://{}", site.address)).unwrap();
    channel.timeout(Duration::from_secs(30)).connect().await.unwrap()
}

#[tokio::test]
async fn status_of_waiting_client_has_rejection_as_source() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy("calls", 1, MINUTE)).build().unwrap();
    let account = by(|_: &Request<tonic::body::Body>| PartitionKey::new("account", "ours"));
    let waits = WaitLayer::new(limiter, account).at_most(SECOND);
    let mut client = HealthClient::new(waits.layer(connect(&site).await));
    client.check(HealthCheckRequest::default()).await.unwrap();
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    let error: &WaitError<tonic::transport::Error> = status.source().unwrap().downcast_ref().unwrap();
    assert!(matches!(error.rejection(), Some(Rejection::Denied(_))), "{error:?}");
}

#[tokio::test]
async fn layer_of_client_holds_units_until_stream_has_ended() {
    let site = GrpcSite::serve(limits(MemoryBackend::new().with_clock(&ManualClock::new()))).await;
    let limits = RateLimitLayer::builder(MemoryBackend::new())
        .policy(Policy::in_flight("streams", 1).unwrap())
        .key(constant("account", "ours"))
        .answer(Grpc)
        .build()
        .unwrap();
    let mut client = HealthClient::new(limits.layer(connect(&site).await));
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Try again in 1 s."));
    drop(stream);
    client.check(HealthCheckRequest::default()).await.unwrap();
}
