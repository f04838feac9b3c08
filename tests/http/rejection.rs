//! Custom rejections, and the header fields that the layer adds to them.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{Json, Router, body::Body, response::IntoResponse, routing::get};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;
use tower_sliding_window::{
    Decision, Head, Limiter, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, Rejection, Wait,
    answer::{Answer, OpenAiError},
    backend::Reason,
    testing::{FakeAnswer, FakeBackend},
};

use super::{ALICE, MINUTE, SECOND, api_key, policy, wire::Site};

fn reject(rejection: &Rejection, _: &Head<'_>) -> Response<Body> {
    let (status, text) = match rejection {
        Rejection::Denied(_) => (StatusCode::IM_A_TEAPOT, "later"),
        Rejection::Key(_) => (StatusCode::UNAUTHORIZED, "who are you?"),
        _ => (StatusCode::BAD_GATEWAY, "broken"),
    };
    Response::builder().status(status).header("x-own", "yes").body(text.into()).unwrap()
}

async fn site(backend: FakeBackend) -> Site {
    site_with(backend, |builder| builder.rejection(reject)).await
}

/// Serves the same app with a rejection that this function sets.
async fn site_with(
    backend: FakeBackend,
    set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
) -> Site {
    let builder = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE)).key(api_key());
    let limits = set(builder).build().unwrap();
    Site::serve(Router::new().route("/", get(async || "hello")).layer(limits)).await
}

#[tokio::test]
async fn custom_denial_keeps_header_fields_of_layer() {
    let answer = site(FakeBackend::denying(7 * SECOND)).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (418, "later"));
    assert_eq!(answer.header("x-own"), Some("yes"));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""ten";q=10;w=60"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""ten";r=0;t=7"#));
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.header("content-type"), None, "the layer sets no content type");
}

#[tokio::test]
async fn closure_answers_every_rejection_and_no_admission() {
    let site = site(FakeBackend::scripted([FakeAnswer::Unavailable(Reason::Busy), FakeAnswer::Admit])).await;
    let answer = site.get("/", &[]).await;
    assert_eq!((answer.status, &*answer.body), (401, "who are you?"));
    assert!(!answer.has_limit_fields(), "{answer:?}");
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (502, "broken"));
    assert!(!answer.has_limit_fields(), "{answer:?}");
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, &*answer.body), (200, "hello"));
    assert_eq!(answer.header("ratelimit"), Some(r#""ten";r=9;t=60"#));
}

#[tokio::test]
async fn layer_keeps_longer_retry_after_of_closure() {
    for (own, expected) in [("3", "7"), ("7", "7"), ("120", "120")] {
        let limits = RateLimitLayer::builder(FakeBackend::denying(7 * SECOND))
            .policy(policy("ten", 10, MINUTE))
            .key(api_key())
            .rejection(move |_, _| {
                Response::builder().status(429).header("retry-after", own).body(Body::empty()).unwrap()
            })
            .build()
            .unwrap();
        let site = Site::serve(Router::new().route("/", get(async || "")).layer(limits)).await;
        assert_eq!(site.get("/", &[ALICE]).await.header("retry-after"), Some(expected), "{own}");
    }
}

#[tokio::test]
async fn custom_denial_without_wait_omits_retry_after() {
    let answer = site(FakeBackend::scripted([FakeAnswer::Deny(Wait::Never)])).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (418, None));
}

#[tokio::test]
async fn rejection_reads_head_of_request() {
    let site = site_with(FakeBackend::denying(SECOND), |builder| {
        builder.rejection(|_, head| {
            Response::new(format!("{} {} as {:?}", head.method, head.uri.path(), head.header("accept")))
        })
    })
    .await;
    let answer = site.get("/", &[ALICE, ("accept", "text/plain")]).await;
    assert_eq!((answer.status, &*answer.body), (429, r#"GET / as Some("text/plain")"#));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn rejection_returns_response_of_every_complete_body() {
    let answer = async |set: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
        let answer = site_with(FakeBackend::denying(SECOND), set).await.get("/", &[ALICE]).await;
        assert_eq!(
            (answer.header("ratelimit"), answer.header("retry-after")),
            (Some(r#""ten";r=0;t=1"#), Some("1"))
        );
        (answer.status, answer.body)
    };
    // A response without a status has that of the rejection.
    let text = || (429, "slow down".to_owned());
    assert_eq!(answer(|builder| builder.rejection(|_, _| Response::new("slow down"))).await, text());
    assert_eq!(
        answer(|builder| builder.rejection(|_, _| Response::new("slow down".to_owned()))).await,
        text()
    );
    assert_eq!(
        answer(|builder| builder.rejection(|_, _| Response::new(b"slow down".to_vec()))).await,
        text()
    );
    assert_eq!(
        answer(|builder| builder.rejection(|_, _| Response::new(Bytes::from("slow down")))).await,
        text()
    );
    assert_eq!(answer(|builder| builder.rejection(|_, _| Response::new(()))).await, (429, String::new()));
    let json: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder = |builder| {
        builder.rejection(|_, _| (StatusCode::TOO_MANY_REQUESTS, Json("slow down")).into_response())
    };
    assert_eq!(answer(json).await, (429, r#""slow down""#.to_owned()));
}

/// A client, a cache or a monitor would take a 200 for the response of the handler.
#[tokio::test]
async fn rejection_without_status_has_that_of_built_in_answer() {
    for (decided, headers, status) in [
        (FakeAnswer::Deny(Wait::For(SECOND)), &[ALICE][..], 429),
        (FakeAnswer::Unavailable(Reason::Connection), &[ALICE], 503),
        (FakeAnswer::Unavailable(Reason::Misconfigured), &[ALICE], 503),
        (FakeAnswer::Admit, &[], 400),
    ] {
        let backend = FakeBackend::scripted([decided]);
        let site = site_with(backend, |builder| builder.rejection(|_, _| "slow down".into_response())).await;
        let answer = site.get("/", headers).await;
        assert_eq!((answer.status, &*answer.body), (status, "slow down"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    // Any other status, a gRPC status, and that of an answer are kept.
    let kept = async |set: fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder| {
        site_with(FakeBackend::denying(SECOND), set).await.get("/", &[ALICE]).await.status
    };
    assert_eq!(
        kept(|builder| builder.rejection(|_, _| (StatusCode::ACCEPTED, "later").into_response())).await,
        202
    );
    assert_eq!(
        kept(|builder| builder.rejection(|_, _| ([("grpc-status", "8")], "").into_response())).await,
        200
    );
    assert_eq!(kept(|builder| builder.answer(ErrorIn200)).await, 200);
}

/// An answer of a protocol that states errors in its bodies.
struct ErrorIn200;

impl Answer for ErrorIn200 {
    fn reject(&self, _rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        Response::new(r#"{"errors":[]}"#.into())
    }
}

#[tokio::test]
async fn layer_keeps_cache_control_of_closure() {
    let site = site_with(FakeBackend::denying(SECOND), |builder| {
        builder.rejection(|_, _| ([("cache-control", "private")], "slow down").into_response())
    })
    .await;
    assert_eq!(site.get("/", &[ALICE]).await.header("cache-control"), Some("private"));
}

/// A body of these frames. `None` is a frame that is not available yet.
struct Frames(Vec<Option<&'static str>>, http_body::SizeHint);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let next = self.0.remove(0);
        next.map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(http_body::Frame::data(bytes.into())))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.1
    }
}

/// Returns status, body and `Retry-After` of a rejection whose closure returns these frames.
async fn framed(frames: &[Option<&'static str>], length: Option<u64>) -> (u16, String, Option<String>) {
    let (frames, hint) = (frames.to_vec(), length.map(http_body::SizeHint::with_exact).unwrap_or_default());
    let site = site_with(FakeBackend::denying(SECOND), |builder| {
        builder.rejection(move |_, _| {
            let body = Body::new(Frames(frames.clone(), hint));
            Response::builder().status(429).body(body).unwrap()
        })
    })
    .await;
    let answer = site.get("/", &[ALICE]).await;
    (answer.status, answer.body.clone(), answer.header("retry-after").map(str::to_owned))
}

#[tokio::test]
async fn rejection_with_streaming_body_is_empty() {
    let empty = (429, String::new(), Some("1".to_owned()));
    // The frames of the second body are available, but its length is unknown.
    for (frames, length) in
        [(&[None][..], None), (&[Some("slow "), Some("down")], None), (&[Some("slow "), None], Some(9))]
    {
        assert_eq!(framed(frames, length).await, empty);
    }
}

#[tokio::test]
async fn rejection_joins_frames_of_complete_body() {
    let expected = (429, "slow down".to_owned(), Some("1".to_owned()));
    assert_eq!(framed(&[Some("slow "), Some(""), Some("down")], Some(9)).await, expected);
}

/// An answer with header fields of its own.
struct OwnFields;

impl Answer for OwnFields {
    fn reject(&self, _rejection: &Rejection, _head: &Head<'_>) -> Response<Bytes> {
        Response::builder().status(420).body("own".into()).unwrap()
    }

    fn fields(&self, decision: &Decision, headers: &mut HeaderMap) {
        headers.insert("x-remaining", decision.statuses()[0].remaining().into());
    }
}

#[tokio::test]
async fn custom_answer_replaces_header_fields() {
    let shared: Arc<dyn Answer> = Arc::new(OwnFields);
    let sets: [&dyn Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder; 2] =
        [&|builder| builder.answer(OwnFields), &|builder| builder.answer(shared.clone())];
    for set in sets {
        let backend = FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(Wait::For(SECOND))]);
        let site = site_with(backend, set).await;
        for expected in [(200, "hello", Some("9")), (420, "own", Some("0"))] {
            let answer = site.get("/", &[ALICE]).await;
            assert_eq!((answer.status, &*answer.body, answer.header("x-remaining")), expected);
            assert!(!answer.has_limit_fields(), "{answer:?}");
        }
        let answer = site.get("/", &[]).await;
        assert_eq!((answer.status, answer.header("x-remaining")), (420, None));
    }
}

/// The text for clients, and the error object that contains it, of each rejection. No text names the store, or the cause of its error.
#[tokio::test]
async fn client_text_and_error_object_state_rejection() {
    let denial = |policy: &'static str, advice: &'static str| {
        (429, format!("Too many requests. {advice}"), policy, json!("rate_limit_exceeded"))
    };
    let unchecked = "The rate limit of the request could not be checked.".to_owned();
    for (decided, headers, (status, text, kind, code)) in [
        (FakeAnswer::Deny(Wait::For(7 * SECOND)), &[ALICE][..], denial("ten", "Try again in 7 s.")),
        (
            FakeAnswer::Deny(Wait::Never),
            &[ALICE],
            denial("ten", "This request costs more than the whole quota."),
        ),
        (
            FakeAnswer::Unavailable(Reason::Connection),
            &[ALICE],
            (503, unchecked, "server_error", json!(null)),
        ),
        (
            FakeAnswer::Admit,
            &[],
            (
                400,
                r#"missing rate limit key: header "x-api-key" not found"#.to_owned(),
                "invalid_request_error",
                json!(null),
            ),
        ),
    ] {
        let site = site_with(FakeBackend::scripted([decided]), |builder| builder.answer(OpenAiError)).await;
        let answer = site.get("/", headers).await;
        let error = json!({ "message": text, "type": kind, "param": null, "code": code });
        assert_eq!((answer.status, answer.json()), (status, json!({ "error": error })), "the error object");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("retry-after").is_some(), text.contains(" 7 s"), "{answer:?}");

        let rejection: fn(&Rejection, &Head<'_>) -> Response<String> = |rejection, _| {
            let seconds = rejection.retry_after().and_then(Wait::whole_seconds);
            let mut response = Response::new(format!("{} {seconds:?}", rejection.client_text()));
            *response.status_mut() = rejection.status();
            response
        };
        let backend = FakeBackend::scripted([decided]);
        let site = site_with(backend, |builder| builder.rejection(rejection)).await;
        let custom = site.get("/", headers).await;
        let seconds: Option<u64> = answer.header("retry-after").map(|seconds| seconds.parse().unwrap());
        assert_eq!(
            (custom.status, custom.body),
            (status, format!("{text} {seconds:?}")),
            "the text for clients"
        );
    }
}

/// A middleware without a layer has the response of a layer with default settings, which does not name the hidden policy.
#[tokio::test]
async fn response_of_rejection_equals_that_of_layer() {
    let policies = || [policy("ten", 10, MINUTE), policy("secret", 10, MINUTE).hidden()];
    for decided in [
        FakeAnswer::Deny(Wait::For(7 * SECOND)),
        FakeAnswer::Deny(Wait::Never),
        FakeAnswer::Unavailable(Reason::Connection),
        FakeAnswer::Unavailable(Reason::Misconfigured),
    ] {
        let [ten, secret] = policies();
        let builder = RateLimitLayer::builder(FakeBackend::scripted([decided])).policy(ten).policy(secret);
        let limits = builder.key(api_key()).build().unwrap();
        let site = Site::serve(Router::new().route("/", get(async || "hello")).layer(limits)).await;
        let of_layer = site.get("/", &[ALICE]).await;

        let [ten, secret] = policies();
        let limiter = Limiter::builder(FakeBackend::scripted([decided])).policy(ten).policy(secret);
        let rejection = limiter.build().unwrap().admit(PartitionKey::header("x-api-key", "alice")).await;
        let response = rejection.unwrap_err().to_response();
        assert_eq!(response.status(), of_layer.status);
        assert_eq!(response.body(), of_layer.body.as_bytes());
        for (name, value) in response.headers() {
            assert_eq!(of_layer.header(name.as_str()), value.to_str().ok(), "{name}");
        }
        let is_denied = matches!(decided, FakeAnswer::Deny(_));
        assert_eq!(response.headers().contains_key("ratelimit"), is_denied, "{response:?}");
        assert_eq!(of_layer.has_limit_fields(), is_denied);
        assert_eq!(response.headers().contains_key("retry-after"), of_layer.header("retry-after").is_some());
        assert!(!format!("{response:?}").contains("secret"), "{response:?}");
    }
}
