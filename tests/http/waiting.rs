//! The wait layer around clients, over a socket and over a probe.

use std::{
    convert::Infallible,
    error::Error,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, response::IntoResponse, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::task::{JoinSet, yield_now};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, RateLimit, Rejection, Wait, by,
    key::KeyError,
    protocol::{By, Draft},
    testing::{FakeAnswer, FakeBackend, ManualClock},
    wait::{WaitAtMost, WaitError, WaitLayer},
};

use super::{
    MINUTE, SECOND, policy,
    probe::{Probe, is_ready, request_of},
    wire::Site,
};

#[tokio::test]
async fn hyper_client_waits_for_its_quota() {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let arrivals = arrivals.clone();
        async move || arrivals.lock().unwrap().push(Instant::now())
    };
    let site = Site::serve(Router::new().route("/", get(handler))).await;

    let window = Duration::from_millis(200);
    let limiter = Limiter::builder(MemoryBackend::new()).policy(policy("calls", 5, window)).build().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let host =
        by(|request: &Request<Body>| PartitionKey::new("host", request.uri().host().unwrap_or_default()));
    let limits = WaitLayer::new(limiter, host).at_most(10 * SECOND);
    let client = ServiceBuilder::new().layer(limits).service(client);

    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for _ in 0..18 {
        let request = Request::get(format!("http://{}/", site.address())).body(Body::empty()).unwrap();
        calls.spawn(client.clone().oneshot(request));
    }
    for response in calls.join_all().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert!(start.elapsed() >= 3 * window, "5 calls at once, and 5 after each of three windows");
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 18);
    let early = arrivals.iter().filter(|arrival| **arrival - start < window).count();
    assert!(early <= 5, "the client sends no call before its instant: {early}");
}

type ByUser = By<Request<()>>;

/// Builds a client of one unit per second, with one request at a time. A request without a user is exempt.
fn one_at_a_time(at_most: Duration) -> RateLimit<ConcurrencyLimit<Probe>, ByUser, WaitAtMost> {
    let backend =
        FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(Wait::For(SECOND)), FakeAnswer::Admit]);
    layer(backend, at_most).layer(ConcurrencyLimit::new(Probe::new().0, 1))
}

fn layer(backend: FakeBackend, at_most: Duration) -> WaitLayer<ByUser> {
    let limiter = Limiter::builder(backend).policy(policy("one", 1, SECOND)).build().unwrap();
    let plan = |request: &Request<()>| match request.headers()["x-api-key"].to_str() {
        Ok("") => Err(KeyError::missing("user")),
        Ok("root") => Ok(Draft::exempt()),
        user => Ok(Draft::check(PartitionKey::new("user", user.unwrap()), 1)),
    };
    WaitLayer::new(limiter, by(plan)).at_most(at_most)
}

#[tokio::test(start_paused = true)]
async fn wait_service_calls_ready_service_and_no_clone() {
    // Both the probe and the concurrency limit panic if the service calls them unready.
    let mut service = one_at_a_time(MINUTE);
    let start = tokio::time::Instant::now();
    for (user, seconds) in [("alice", 0), ("root", 0), ("alice", 1), ("root", 1), ("alice", 1)] {
        let response = service.ready().await.unwrap().call(request_of(user)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(start.elapsed().as_secs(), seconds, "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_request_keeps_permit_until_it_is_dropped() {
    let mut service = one_at_a_time(MINUTE);
    service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
    let mut other = service.clone();
    let waiting = tokio::spawn(service.ready().await.unwrap().call(request_of("alice")));
    yield_now().await;
    assert!(!is_ready(&mut other).await, "the request uses the permit when it is admitted");
    waiting.abort();
    yield_now().await;
    assert!(is_ready(&mut other).await);
}

#[tokio::test(start_paused = true)]
async fn rejected_request_returns_permit_and_typed_error() {
    let mut service = one_at_a_time(SECOND / 2);
    service.ready().await.unwrap().call(request_of("alice")).await.unwrap();
    let mut other = service.clone();
    let error = service.ready().await.unwrap().call(request_of("alice")).await.unwrap_err();
    assert!(matches!(error.rejection(), Some(Rejection::Denied(_))), "{error:?}");
    assert_eq!(error.to_string(), r#"rate limit exceeded: policy "one"; retry after 1s"#);
    assert!(is_ready(&mut other).await);
    let error = other.call(request_of("")).await.unwrap_err();
    assert!(matches!(error, WaitError::Rejected(Rejection::Key(_))), "{error:?}");
    assert!(is_ready(&mut service).await);
}

#[tokio::test]
async fn wait_service_passes_error_of_inner_service() {
    let failing = service_fn(async |_: Request<()>| {
        let source = std::io::Error::other("connection reset");
        Err::<Response<Bytes>, _>(tonic::Status::from_error(Box::new(source)))
    });
    let service = layer(FakeBackend::admitting(), MINUTE).layer(failing);
    let error = service.oneshot(request_of("alice")).await.unwrap_err();
    assert!(error.rejection().is_none());
    assert!(error.source().is_some(), "{error:?}");
    assert!(matches!(error, WaitError::Inner(_)));
}

#[tokio::test(start_paused = true)]
async fn wait_error_of_boxed_error_becomes_boxed_error() {
    let call = async |answer| {
        let service = ServiceBuilder::new()
            .timeout(MINUTE)
            .map_err(WaitError::into_boxed)
            .layer(layer(FakeBackend::scripted([answer]), SECOND))
            .timeout(SECOND)
            .service(service_fn(async |_: Request<()>| {
                std::future::pending::<Result<(), Infallible>>().await
            }));
        service.oneshot(request_of("alice")).await.unwrap_err()
    };
    assert!(call(FakeAnswer::Admit).await.is::<tower::timeout::error::Elapsed>());
    let error = call(FakeAnswer::Deny(Wait::Never)).await;
    assert!(matches!(error.downcast_ref(), Some(Rejection::Denied(_))), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn protocol_passes_admission_and_settles_by_response() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    let limiter = Limiter::builder(backend).policy(policy("units", 10, MINUTE)).build().unwrap();
    let protocol = by(|cost: &u32| (PartitionKey::new("user", "alice"), *cost))
        .admit_with(|cost: &mut u32, admission| {
            *cost += admission.decision().unwrap().statuses()[0].remaining()
        })
        .settle_by(|response: &u32| Some(*response / 10))
        .reject_with(|_, rejection| match rejection.decision().map(Decision::retry_after) {
            Some(Wait::For(wait)) => Ok(wait.as_secs() as u32),
            _ => Ok(0),
        });
    let layer = WaitLayer::new(limiter, protocol).at_most(SECOND);
    let mut client = layer.layer(service_fn(async |units: u32| Ok::<_, Infallible>(units)));
    // The layer adds the remaining 2 units to the request, and settles 10 units as 1.
    assert_eq!(client.ready().await.unwrap().call(8).await.unwrap(), 10);
    assert_eq!(client.ready().await.unwrap().call(9).await.unwrap(), 9);
    // The second charge was settled as 0.
    assert_eq!(client.ready().await.unwrap().call(10).await.unwrap(), 60);
    assert_eq!(client.ready().await.unwrap().call(11).await.unwrap(), 0);
}

#[tokio::test]
async fn responses_to_requests_that_gave_up_state_their_cause() {
    let too_long = |at_least| Rejection::wait_too_long(at_least).into_response();
    for (at_least, seconds) in [(Duration::ZERO, "1"), (SECOND + Duration::from_micros(1), "2")] {
        let response = too_long(at_least);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], seconds);
    }
    let body = axum::body::to_bytes(too_long(7 * SECOND).into_body(), 1_000).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["detail"], "Try again in 7 s.");
    let too_many = |is_per_key| Rejection::too_many_waiting(9, is_per_key);
    let response = too_many(false).into_response();
    assert_eq!(
        (response.status(), response.headers().get("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, None)
    );

    let text = |rejection: Rejection| rejection.to_string();
    assert_eq!(
        text(Rejection::wait_too_long(SECOND)),
        "rate limit wait is too long: the requests ahead need at least 1s"
    );
    for (is_per_key, bound) in [(false, "max_waiting"), (true, "max_waiting_per_key")] {
        let expected =
            format!("too many requests wait for a rate limit: 9 wait, which is the bound `{bound}`");
        assert_eq!(text(too_many(is_per_key)), expected);
    }
}
