//! Every outcome of a request: its status, its header fields and its extensions, over HTTP and gRPC.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    Decision, Head, OutageRule, PartitionKey, RateLimitLayer, Rejection,
    answer::{Grpc, HttpOrGrpc},
    backend::{Backend, Pair, Reason},
    key::KeyError,
    outage::{LocalDecision, Share, Unchecked},
    protocol::Draft,
    testing::FakeBackend,
};

use super::{MINUTE, SECOND, policy};

/// Plans an outcome for each path.
fn plan(head: &Head<'_>) -> Result<Draft, KeyError> {
    let alice = PartitionKey::new("user", "alice");
    let local = |processes| OutageRule::LocalFallback(Share::among(processes).unwrap());
    let checked = Draft::check(alice.clone(), 2);
    match head.uri.path() {
        "/missing" => Err(KeyError::missing("")),
        "/malformed" => Err(KeyError::malformed("user", "two values")),
        "/unknown-peer" => Err(KeyError::misconfigured("no connect info")),
        "/misconfigured" => Ok(Draft::pairs(vec![Pair::new(alice, policy("twice", 9, MINUTE), 1); 2])),
        "/exempt" => Ok(Draft::exempt()),
        "/fail-open" => Ok(checked.outage(OutageRule::FailOpen)),
        "/local" => Ok(checked.outage(local(2))),
        "/local-fallback-denied" => Ok(checked.outage(local(11))),
        _ => Ok(checked),
    }
}

/// Builds a layer that answers over HTTP.
fn http_limits(backend: impl Backend) -> RateLimitLayer {
    RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE)).plan_by(plan).build().unwrap()
}

/// Builds a layer that answers over gRPC.
fn grpc_limits(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE));
    builder.answer(Grpc).plan_by(plan).build().unwrap()
}

/// Builds a layer that answers over HTTP or gRPC.
fn http_or_grpc_limits(backend: impl Backend) -> RateLimitLayer {
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE));
    builder.answer(HttpOrGrpc).plan_by(plan).build().unwrap()
}

/// Builds a layer whose rejections name their reason in the body.
fn limits_with_rejection(backend: impl Backend) -> RateLimitLayer {
    let reject = |rejection: &Rejection, _: &Head<'_>| {
        let response = Response::builder().status(418).header("ratelimit", r#""own";r=1"#);
        response.body(name(rejection)).unwrap()
    };
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE)).plan_by(plan);
    builder.rejection(reject).build().unwrap()
}

fn name(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Denied(_) => "denied",
        Rejection::Unavailable(_) => "unavailable",
        Rejection::LocalFallbackDenied(_) => "local fallback denied",
        Rejection::Key(KeyError::Missing { .. }) => "missing key",
        Rejection::Key(KeyError::Malformed { .. }) => "malformed key",
        Rejection::Key(KeyError::Misconfigured { .. }) => "unknown peer",
        Rejection::Misconfigured(_) => "misconfigured",
        other => panic!("{other:?}"),
    }
}

/// Path, status over HTTP, code over gRPC, and name of every rejection.
const REJECTIONS: [(&str, u16, &str, &str); 7] = [
    ("/denied", 429, "8", "denied"),
    ("/unavailable", 503, "14", "unavailable"),
    ("/local-fallback-denied", 503, "14", "local fallback denied"),
    ("/missing", 400, "3", "missing key"),
    ("/malformed", 400, "3", "malformed key"),
    ("/unknown-peer", 500, "13", "unknown peer"),
    ("/misconfigured", 500, "13", "misconfigured"),
];

/// Returns a backend that denies for `/denied`, and fails for other paths.
fn backend_for(path: &str) -> FakeBackend {
    match path {
        "/denied" => FakeBackend::denying(7 * SECOND),
        _ => FakeBackend::unavailable(Reason::Busy),
    }
}

/// The results of the layer in the extensions of a request or response.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    decision: Option<Decision>,
    local: Option<(u32, u32, Reason)>,
    unchecked: Option<Reason>,
}

impl Found {
    fn of(extensions: &http::Extensions) -> Self {
        let local = extensions.get::<LocalDecision>().map(|local| {
            let status = &local.decision().statuses()[0];
            (status.quota().unwrap(), status.remaining(), local.reason())
        });
        Self {
            decision: extensions.get().cloned(),
            local,
            unchecked: extensions.get::<Unchecked>().map(Unchecked::reason),
        }
    }
}

async fn handler(request: Request<()>) -> Result<Response<Bytes>, Infallible> {
    let mut response = Response::new(Bytes::from("handler"));
    response.extensions_mut().insert(Found::of(request.extensions()));
    Ok(response)
}

async fn send(limits: &RateLimitLayer, path: &str, content_type: &str) -> Response<Bytes> {
    let request = Request::post(path).header("content-type", content_type).body(()).unwrap();
    let response = limits.layer(service_fn(handler)).ready().await.unwrap().call(request).await.unwrap();
    let is_rejected = response.extensions().get::<Rejection>().is_some();
    response.map(|body| match body.into_inner() {
        Ok(of_handler) => {
            assert!(!is_rejected, "the handler's body is in a rejection");
            of_handler
        }
        Err(of_layer) => {
            assert!(is_rejected, "the layer's body is in an admitted response");
            of_layer
        }
    })
}

fn field<'a>(response: &'a Response<Bytes>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

fn reason(response: &Response<Bytes>) -> Option<&'static str> {
    response.extensions().get::<Rejection>().map(name)
}

/// Asserts that the handler did not run and that only a denial has a decision and header fields.
fn assert_rejected(response: &Response<Bytes>, expected: &str) {
    assert_eq!(reason(response), Some(expected));
    assert!(response.extensions().get::<Found>().is_none(), "{expected}: the handler ran");
    let is_denied = expected == "denied";
    let decision = response.extensions().get().and_then(Rejection::decision);
    assert_eq!(decision.is_some(), is_denied, "{expected}");
    for name in ["ratelimit-policy", "retry-after"] {
        assert_eq!(response.headers().contains_key(name), is_denied, "{expected}: {name}");
    }
}

#[tokio::test]
async fn every_rejection_has_http_status_and_reason() {
    for (path, status, _, expected) in REJECTIONS {
        let response = send(&http_limits(backend_for(path)), path, "text/plain").await;
        assert_eq!(response.status().as_u16(), status, "{expected}");
        assert_rejected(&response, expected);
        assert_eq!(response.headers().contains_key("ratelimit"), expected == "denied");
        assert_eq!(field(&response, "content-type"), Some("application/problem+json"));
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["status"], status, "{expected}");
        assert_eq!(body.get("detail").is_some(), status != 500, "{expected}");
    }
}

#[tokio::test]
async fn every_rejection_has_grpc_code_and_reason() {
    for (path, _, code, expected) in REJECTIONS {
        let response = send(&grpc_limits(backend_for(path)), path, "application/grpc").await;
        assert_eq!(response.status(), StatusCode::OK, "{expected}");
        assert_eq!(field(&response, "grpc-status"), Some(code), "{expected}");
        assert!(response.body().is_empty());
        assert_rejected(&response, expected);
        assert_eq!(response.headers().contains_key("grpc-retry-pushback-ms"), expected == "denied");
    }
}

#[tokio::test]
async fn custom_rejection_receives_every_reason() {
    for (path, _, _, expected) in REJECTIONS {
        let response = send(&limits_with_rejection(backend_for(path)), path, "text/plain").await;
        assert_eq!((response.status().as_u16(), &**response.body()), (418, expected.as_bytes()));
        assert_rejected(&response, expected);
        let joined = if expected == "denied" { r#""own";r=1, "ten";r=0;t=7"# } else { r#""own";r=1"# };
        assert_eq!(field(&response, "ratelimit"), Some(joined), "{expected}");
    }
    let limits = limits_with_rejection(FakeBackend::admitting());
    for path in ["/", "/exempt"] {
        let response = send(&limits, path, "text/plain").await;
        assert_eq!((response.status(), &**response.body()), (StatusCode::OK, &b"handler"[..]));
    }
}

#[tokio::test]
async fn content_type_chooses_protocol_of_rejection() {
    let denied = async |content_type: &str| {
        let response = send(&http_or_grpc_limits(backend_for("/denied")), "/denied", content_type).await;
        assert_rejected(&response, "denied");
        (response.status().as_u16(), field(&response, "grpc-status").map(str::to_owned))
    };
    for grpc in ["application/grpc", "application/grpc+proto", "Application/GRPC"] {
        assert_eq!(denied(grpc).await, (200, Some("8".to_owned())), "{grpc}");
    }
    for http in [
        "application/grpc-web+proto",
        "application/json",
        "application/grp",
        "",
        "text/plain; note=application/grpc",
    ] {
        assert_eq!(denied(http).await, (429, None), "{http}");
    }
}

#[tokio::test]
async fn admitted_request_holds_decision() {
    let admitted = async |response: Response<Bytes>| {
        let found = response.extensions().get::<Found>().unwrap();
        let decision = found.decision.as_ref().unwrap();
        assert!(decision.is_admitted());
        assert_eq!(decision.statuses()[0].remaining(), 8);
        assert_eq!(*found, Found { decision: Some(decision.clone()), ..Found::default() });
        assert_eq!(Found::of(response.extensions()), Found::default(), "the header fields state it");
        assert_eq!(reason(&response), None);
        assert_eq!(field(&response, "ratelimit"), Some(r#""ten";r=8;t=60"#));
    };
    let backend = FakeBackend::admitting;
    admitted(send(&http_limits(backend()), "/", "text/plain").await).await;
    admitted(send(&grpc_limits(backend()), "/", "application/grpc").await).await;
    for content_type in ["text/plain", "application/grpc"] {
        admitted(send(&http_or_grpc_limits(backend()), "/", content_type).await).await;
    }
}

#[tokio::test]
async fn request_and_response_hold_local_decision_or_unchecked() {
    let local = Found { local: Some((5, 3, Reason::Busy)), ..Found::default() };
    let unchecked = Found { unchecked: Some(Reason::Busy), ..Found::default() };
    let admitted = |response: Response<Bytes>, expected: &Found| {
        assert_eq!(response.extensions().get::<Found>(), Some(expected));
        assert_eq!(Found::of(response.extensions()), *expected);
        assert_eq!(reason(&response), None);
        assert!(!response.headers().keys().any(|name| name.as_str().starts_with("ratelimit")));
    };
    let backend = || FakeBackend::unavailable(Reason::Busy);
    for (path, expected) in [("/local", local), ("/fail-open", unchecked), ("/exempt", Found::default())] {
        admitted(send(&http_limits(backend()), path, "text/plain").await, &expected);
        admitted(send(&grpc_limits(backend()), path, "application/grpc").await, &expected);
        admitted(send(&http_or_grpc_limits(backend()), path, "text/plain").await, &expected);
    }
}
