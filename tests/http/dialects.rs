//! The dialects of the rate limit fields, hidden policies, and `Retry-After` with jitter, over a socket.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderName, HeaderValue, Response},
    response::IntoResponse,
    routing::{any, get},
};
use serde_json::json;
use tower::{Service, ServiceBuilder, ServiceExt, retry, service_fn};
use tower_http::cors::CorsLayer;
use tower_sliding_window::{
    Algorithm, Costs, Limiter, MemoryBackend, PartitionKey, RateLimitLayer, RateLimitLayerBuilder, Rejection,
    Wait,
    answer::{Dialect, HttpOrGrpc, OpenAiError, Reset},
    backend::Reason,
    key::KeyError,
    testing::{
        FakeAnswer::{Admit, Deny, Unavailable},
        FakeBackend, ManualClock,
    },
};

use super::{
    ALICE, MINUTE, SECOND, api_key, policy,
    wire::{Answer, Site, request},
};

const DIALECTS: [Dialect; 8] = [
    Dialect::Draft11,
    Dialect::DraftNext,
    Dialect::Draft7,
    Dialect::Draft6,
    Dialect::XRateLimit(Reset::Seconds),
    Dialect::XRateLimit(Reset::UnixTime),
    Dialect::XRateLimitByPolicy,
    Dialect::Off,
];

/// A builder with limits of two requests per second and five per minute, on a stopped clock.
fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("burst", 2, SECOND))
        .policy(policy("sustained", 5, MINUTE))
        .key(api_key())
}

async fn serve(builder: RateLimitLayerBuilder) -> Site {
    Site::serve(Router::new().route("/", any(async || "hello")).layer(builder.build().unwrap())).await
}

/// Returns the fields of an answer that state a limit, by name.
fn limit_fields(answer: &Answer) -> Vec<(&str, &str)> {
    let is_of_limit = |name: &str| name.contains("ratelimit") || name == "retry-after";
    let fields = answer.headers.iter().filter(|(name, _)| is_of_limit(name));
    let mut fields: Vec<_> = fields.map(|(name, value)| (&**name, &**value)).collect();
    fields.sort_unstable();
    fields
}

#[tokio::test]
async fn legacy_fields_state_most_limiting_policy() {
    let site = serve(builder().dialect(Dialect::XRateLimit(Reset::Seconds))).await;
    let fields = |limit, remaining, reset| {
        [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", reset)]
    };
    for remaining in ["1", "0"] {
        assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), fields("2", remaining, "1"));
    }
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!(denied.status, 429);
    assert_eq!(limit_fields(&denied), [&[("retry-after", "1")][..], &fields("2", "0", "1")].concat());

    // One policy denies a cost of 2 for longer, although the other has less remaining.
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("long", 3, MINUTE))
        .policy(policy("short", 2, SECOND))
        .key(api_key())
        .cost(2)
        .dialect(Dialect::XRateLimit(Reset::Seconds));
    let site = serve(limits).await;
    assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), fields("2", "0", "1"));
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!(limit_fields(&denied), [&[("retry-after", "60")][..], &fields("3", "1", "60")].concat());
}

#[tokio::test]
async fn legacy_reset_is_time_until_nothing_is_used() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&clock))
        .policy(policy("two", 2, MINUTE))
        .key(api_key())
        .dialect(Dialect::XRateLimit(Reset::Seconds));
    let site = serve(limits).await;
    site.get("/", &[ALICE]).await;
    clock.advance(20 * SECOND + Duration::from_micros(1));
    site.get("/", &[ALICE]).await;
    clock.advance(Duration::from_micros(1));
    let denied = site.get("/", &[ALICE]).await;
    // The first charge leaves after 40 s, the second after 60 s. Both round up.
    assert_eq!((denied.header("retry-after"), denied.header("x-ratelimit-reset")), (Some("40"), Some("60")));
}

#[tokio::test]
async fn legacy_reset_as_unix_time_is_never_too_early() {
    let site = serve(builder().dialect(Dialect::XRateLimit(Reset::UnixTime))).await;
    for _ in 0..3 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let before = now();
        let answer = site.get("/", &[ALICE]).await;
        let reset: f64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
        // The window is one second, and the field rounds up.
        assert!((before + 1.0..=now() + 2.0).contains(&reset), "{before} {answer:?}");
    }
}

/// The fields of the drafts before structured names of policies: two requests per second and five per minute, and one policy whose
/// window these drafts cannot state.
#[tokio::test]
async fn early_drafts_state_most_limiting_policy() {
    let limits =
        |dialect| builder().policy(policy("millis", 9, Duration::from_millis(1_500))).dialect(dialect);
    let policies = ("ratelimit-policy", "2;w=1, 5;w=60");
    let site = serve(limits(Dialect::Draft6)).await;
    let fields = |remaining| {
        [("ratelimit-limit", "2"), policies, ("ratelimit-remaining", remaining), ("ratelimit-reset", "1")]
    };
    for remaining in ["1", "0"] {
        assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), fields(remaining), "admitted");
    }
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!(limit_fields(&denied), [&fields("0")[..], &[("retry-after", "1")]].concat(), "denied");

    let site = serve(limits(Dialect::Draft7)).await;
    for value in ["limit=2, remaining=1, reset=1", "limit=2, remaining=0, reset=1"] {
        let answer = site.get("/", &[ALICE]).await;
        assert_eq!(limit_fields(&answer), [("ratelimit", value), policies], "admitted");
    }
    let denied = site.get("/", &[ALICE]).await;
    let value = ("ratelimit", "limit=2, remaining=0, reset=1");
    assert_eq!(limit_fields(&denied), [value, policies, ("retry-after", "1")], "denied");
}

#[tokio::test]
async fn next_draft_states_available_units_and_cost() {
    let site = serve(builder().cost(2).dialect(Dialect::DraftNext)).await;
    let admitted = site.get("/", &[ALICE]).await;
    let policies = ("ratelimit-policy", r#""burst";q=2;w=1, "sustained";q=5;w=60"#);
    let limits = ("ratelimit", r#""burst";a=0;w=1;c=2, "sustained";a=3;w=60;c=2"#);
    assert_eq!(limit_fields(&admitted), [limits, policies]);
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!(limit_fields(&denied), [limits, policies, ("retry-after", "1")]);
}

#[tokio::test]
async fn fields_by_policy_state_requests_and_tokens() {
    let tokens = policy("tokens", 40_000, 6 * MINUTE);
    let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
        .policy(policy("Requests", 2, SECOND))
        .policy(tokens.with_algorithm(Algorithm::SlidingLog).unwrap())
        .policy(policy("not a token", 9, MINUTE))
        .key(api_key())
        .cost_by(|_| Costs::new().policy("tokens", 1_500))
        .dialect(Dialect::XRateLimitByPolicy);
    let site = serve(limits).await;
    let fields = |requests, tokens| {
        [
            ("x-ratelimit-limit-requests", "2"),
            ("x-ratelimit-limit-tokens", "40000"),
            ("x-ratelimit-remaining-requests", requests),
            ("x-ratelimit-remaining-tokens", tokens),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ]
    };
    assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), fields("1", "38500"));
    assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), fields("0", "37000"));
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!((denied.status, &denied.json()["violated-policies"]), (429, &json!(["Requests"])));
    assert_eq!(limit_fields(&denied), [&[("retry-after", "1")][..], &fields("0", "37000")].concat());
}

#[tokio::test]
async fn dialect_off_leaves_retry_after_only() {
    let site = serve(builder().dialect(Dialect::Off)).await;
    for _ in 0..2 {
        assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), []);
    }
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!((denied.status, limit_fields(&denied)), (429, vec![("retry-after", "1")]));
    assert_eq!(denied.json()["violated-policies"], json!(["burst"]));
}

#[tokio::test]
async fn default_dialect_is_draft_11() {
    let (default, draft) = (serve(builder()).await, serve(builder().dialect(Dialect::default())).await);
    for _ in 0..3 {
        let (default, draft) = (default.get("/", &[ALICE]).await, draft.get("/", &[ALICE]).await);
        assert!(default.has_limit_fields());
        assert_eq!(limit_fields(&default), limit_fields(&draft));
    }
}

#[tokio::test]
async fn dialect_sets_metadata_over_grpc() {
    let limits = builder().answer(HttpOrGrpc).dialect(Dialect::XRateLimit(Reset::Seconds));
    let site = serve(limits).await;
    let grpc = [ALICE, ("content-type", "application/grpc")];
    for _ in 0..2 {
        assert_eq!(site.send("POST", "/", &grpc).await.header("x-ratelimit-limit"), Some("2"));
    }
    let denied = site.send("POST", "/", &grpc).await;
    assert_eq!((denied.status, denied.header("grpc-status")), (200, Some("8")));
    assert_eq!((denied.header("x-ratelimit-remaining"), denied.header("ratelimit")), (Some("0"), None));
}

#[tokio::test]
async fn nested_layers_keep_smaller_remaining_quota() {
    for dialect in
        [Dialect::XRateLimit(Reset::Seconds), Dialect::XRateLimitByPolicy, Dialect::Draft7, Dialect::Draft6]
    {
        for (inner, outer) in [(3, 7), (7, 3)] {
            let layer = |quota| {
                let builder = RateLimitLayer::builder(FakeBackend::admitting()).key(api_key());
                builder.policy(policy("requests", quota, MINUTE)).dialect(dialect).build().unwrap()
            };
            let app = Router::new().route("/", get(async || "")).layer(layer(inner)).layer(layer(outer));
            let answer = Site::serve(app).await.get("/", &[ALICE]).await;
            let fields = limit_fields(&answer).into_iter().filter(|(name, _)| *name != "ratelimit-policy");
            let values: Vec<&str> = fields.map(|(_, value)| value).collect();
            match dialect {
                Dialect::Draft7 => assert_eq!(values, ["limit=3, remaining=2, reset=60"], "{answer:?}"),
                _ => assert_eq!((&values[..2], values.len()), (&["3", "2"][..], 3), "{dialect:?} {answer:?}"),
            }
            if matches!(dialect, Dialect::Draft7 | Dialect::Draft6) {
                let policies = format!("{inner};w=60, {outer};w=60");
                assert_eq!(answer.header("ratelimit-policy"), Some(&*policies), "{dialect:?}");
            }
        }
    }
}

#[tokio::test]
async fn hidden_policy_never_appears_in_response() {
    for dialect in DIALECTS {
        let limits = |by_address: u32| {
            RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
                .policy(policy("logins", 1, MINUTE).hidden())
                .policy(policy("visible", by_address, SECOND))
                .key(api_key())
                .answer(HttpOrGrpc)
                .dialect(dialect)
        };
        let site = serve(limits(9)).await;
        for (method, kind) in [("GET", None), ("POST", Some(("content-type", "application/grpc")))] {
            let headers: Vec<_> = [Some(ALICE), kind].into_iter().flatten().collect();
            let admitted = site.send(method, "/", &headers).await;
            let denied = site.send(method, "/", &headers).await;
            assert_eq!(denied.header("retry-after"), Some("60"), "{dialect:?}");
            for answer in [&admitted, &denied] {
                let text = format!("{answer:?}");
                assert!(!text.contains("logins") && !text.contains("violated"), "{text}");
                // "logins" in the details of a gRPC status, at each of the three positions in base64.
                assert!(!["bG9naW5z", "xvZ2luc", "sb2dpbn"].iter().any(|part| text.contains(part)), "{text}");
                assert_ne!(answer.header("x-ratelimit-limit"), Some("1"));
            }
        }
        // The texts of other answers.
        let texts: [fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder; 2] = [
            |builder| builder.answer(OpenAiError),
            |builder| builder.rejection(|rejection, _| Response::new(rejection.client_text().into_owned())),
        ];
        for set in texts {
            let site = serve(set(limits(9))).await;
            site.get("/", &[ALICE]).await;
            let denied = site.get("/", &[ALICE]).await;
            assert!(denied.body.contains("Too many requests. Try again in 60 s."), "{denied:?}");
            assert!(!format!("{denied:?}").contains("logins"), "{denied:?}");
        }
        // A visible policy is named beside the hidden one.
        let site = serve(limits(1)).await;
        site.get("/", &[ALICE]).await;
        assert_eq!(site.get("/", &[ALICE]).await.json()["violated-policies"], json!(["visible"]));
    }
}

#[tokio::test]
async fn response_of_hidden_policies_has_no_limit_fields() {
    for dialect in DIALECTS {
        let limits = RateLimitLayer::builder(MemoryBackend::new().with_clock(&ManualClock::new()))
            .policy(
                policy("logins", 1, MINUTE)
                    .headroom_percent(0)
                    .unwrap()
                    .hidden()
                    .headroom_percent(0)
                    .unwrap(),
            )
            .key(api_key())
            .dialect(dialect);
        let site = serve(limits).await;
        assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), []);
        assert_eq!(limit_fields(&site.get("/", &[ALICE]).await), [("retry-after", "60")]);
    }
}

#[tokio::test]
async fn jitter_only_lengthens_retry_after() {
    let limits = builder().retry_after_jitter(10 * SECOND);
    let site = serve(limits).await;
    for _ in 0..2 {
        assert_eq!(site.get("/", &[ALICE]).await.header("retry-after"), None);
    }
    let mut waits = BTreeSet::new();
    for _ in 0..60 {
        let denied = site.get("/", &[ALICE]).await;
        assert_eq!(denied.header("ratelimit"), Some(r#""burst";r=0;t=1, "sustained";r=3;t=60"#));
        waits.insert(denied.header("retry-after").unwrap().parse::<u64>().unwrap());
    }
    // From 1 s, and less than 11 s, rounded up.
    assert!(waits.iter().all(|wait| (1..=11).contains(wait)), "{waits:?}");
    assert!(waits.len() > 3, "{waits:?}");
    let never = serve(
        RateLimitLayer::builder(FakeBackend::scripted([Deny(Wait::Never)]))
            .policy(policy("ten", 10, MINUTE))
            .key(api_key())
            .retry_after_jitter(10 * SECOND),
    );
    assert_eq!(never.await.get("/", &[ALICE]).await.header("retry-after"), None);
}

#[tokio::test]
async fn retry_after_ms_states_same_wait_in_milliseconds() {
    let wait = Duration::from_micros(1_500_001);
    for (answer, seconds, millis) in [
        (Deny(Wait::For(wait)), Some("2"), Some("1501")),
        (Deny(Wait::Never), None, None),
        (Admit, None, None),
    ] {
        let limits = RateLimitLayer::builder(FakeBackend::scripted([answer]))
            .policy(policy("ten", 10, MINUTE))
            .key(api_key())
            .retry_after_ms();
        let answer = serve(limits).await.get("/", &[ALICE]).await;
        let waits = (answer.header("retry-after"), answer.header("retry-after-ms"));
        assert_eq!(waits, (seconds, millis), "{answer:?}");
        assert!(answer.header("ratelimit").is_some(), "the dialect is the default: {answer:?}");
    }
    let error = builder().retry_after_jitter(367 * 86_400 * SECOND).build().unwrap_err();
    assert_eq!(error.to_string(), "retry_after_jitter 31708800s: it must be 0 s to 366 days");
    // Both fields state the same random time.
    let limits = RateLimitLayer::builder(FakeBackend::denying(wait))
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .retry_after_ms()
        .retry_after_jitter(10 * SECOND);
    let site = serve(limits).await;
    for _ in 0..20 {
        let answer = site.get("/", &[ALICE]).await;
        let [seconds, millis] = ["retry-after", "retry-after-ms"]
            .map(|name| answer.header(name).and_then(|value| value.parse::<u64>().ok()).unwrap());
        assert!((1_501..=11_501).contains(&millis), "{answer:?}");
        assert_eq!(seconds, millis.div_ceil(1_000), "{answer:?}");
    }
    // A longer wait that the response has already holds for both fields.
    for (stated, millis) in [(None, "60000"), (Some("59500"), "59500"), (Some("2000"), "60000")] {
        let longer = RateLimitLayer::builder(FakeBackend::denying(wait))
            .policy(policy("ten", 10, MINUTE))
            .key(api_key())
            .rejection(move |rejection, _| {
                let mut response = Response::new(rejection.client_text().into_owned());
                response.headers_mut().insert("retry-after", HeaderValue::from_static("60"));
                if let Some(millis) = stated {
                    response.headers_mut().insert("retry-after-ms", HeaderValue::from_static(millis));
                }
                response
            })
            .retry_after_ms();
        let answer = serve(longer).await.get("/", &[ALICE]).await;
        let waits = (answer.header("retry-after"), answer.header("retry-after-ms"));
        assert_eq!(waits, (Some("60"), Some(millis)), "{answer:?}");
    }
    let default = serve(builder()).await;
    for _ in 0..3 {
        assert_eq!(default.get("/", &[ALICE]).await.header("retry-after-ms"), None, "only on request");
    }
}

/// A script of another origin reads only the fields that CORS exposes: those of the table in the guide.
#[tokio::test]
async fn cors_exposes_every_field_of_each_dialect() {
    const BY_POLICY: [&str; 7] = [
        "retry-after",
        "x-ratelimit-limit-burst",
        "x-ratelimit-limit-sustained",
        "x-ratelimit-remaining-burst",
        "x-ratelimit-remaining-sustained",
        "x-ratelimit-reset-burst",
        "x-ratelimit-reset-sustained",
    ];
    let legacy = ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let structured = ["ratelimit", "ratelimit-policy", "retry-after"];
    let draft_6 =
        ["ratelimit-limit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset", "retry-after"];
    let exposed: [&[&'static str]; 8] =
        [&structured, &structured, &structured, &draft_6, &legacy, &legacy, &BY_POLICY, &["retry-after"]];
    for (dialect, exposed) in DIALECTS.into_iter().zip(exposed) {
        let cors = CorsLayer::new()
            .allow_origin(HeaderValue::from_static("https://shop.example"))
            .expose_headers(exposed.iter().map(|name| HeaderName::from_static(name)).collect::<Vec<_>>());
        let limits = builder().dialect(dialect).build().unwrap();
        let app = Router::new().route("/", get(async || "hello")).layer(limits).layer(cors);
        let site = Site::serve(app).await;
        let mut answer = site.get("/", &[ALICE, ("origin", "https://shop.example")]).await;
        while answer.status == 200 {
            answer = site.get("/", &[ALICE, ("origin", "https://shop.example")]).await;
        }
        let names: Vec<&str> = limit_fields(&answer).into_iter().map(|(name, _)| name).collect();
        assert_eq!((answer.status, &*names), (429, exposed), "{dialect:?}");
        let readable = answer.header("access-control-expose-headers").unwrap();
        assert_eq!(readable.split(',').collect::<Vec<_>>(), exposed, "{dialect:?}");
    }
}

/// Retries a 429 once its `Retry-After` has passed, as common clients do.
#[derive(Clone, Default)]
struct HonourRetryAfter {
    waits: usize,
}

impl retry::Policy<(), Answer, Infallible> for HonourRetryAfter {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _: &mut (), result: &mut Result<Answer, Infallible>) -> Option<Self::Future> {
        let answer = result.as_ref().ok()?;
        let seconds = answer.header("retry-after").filter(|_| answer.status == 429)?.parse().ok()?;
        self.waits += 1;
        assert!(self.waits <= 1, "a second wait: {answer:?}");
        // The client waits as it was told.
        Some(tokio::time::sleep(Duration::from_secs(seconds)))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test]
async fn client_of_each_dialect_is_admitted_after_one_wait() {
    let clients = DIALECTS.map(|dialect| async move {
        // The wall clock: 2 requests in each second.
        let limits =
            RateLimitLayer::builder(MemoryBackend::new()).policy(policy("burst", 2, SECOND)).key(api_key());
        let site = serve(limits.dialect(dialect)).await;
        let address = site.address();
        let send =
            service_fn(
                move |()| async move { Ok::<_, Infallible>(request(address, "GET", "/", &[ALICE]).await) },
            );
        let mut client = ServiceBuilder::new().retry(HonourRetryAfter::default()).service(send);
        for _ in 0..3 {
            assert_eq!(client.ready().await.unwrap().call(()).await.unwrap().status, 200, "{dialect:?}");
        }
    });
    for client in clients.map(tokio::spawn) {
        client.await.unwrap();
    }
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

async fn export(State(exports): State<Limiter>) -> Result<&'static str, Rejection> {
    let _ = exports.admit(alice()).await?;
    Ok("exported")
}

#[tokio::test]
async fn handler_returns_rejection_as_layer_does() {
    let exports = |backend| Limiter::builder(backend).policy(policy("exports", 9, MINUTE)).build().unwrap();
    let layer = |backend| {
        let builder = RateLimitLayer::builder(backend).policy(policy("exports", 9, MINUTE));
        builder.key_by(|_| alice()).build().unwrap()
    };
    for (answer, status) in [
        (Deny(Wait::For(7 * SECOND)), 429),
        (Deny(Wait::Never), 429),
        (Admit, 200),
        (Unavailable(Reason::Connection), 503),
    ] {
        let backend = || FakeBackend::scripted([answer]);
        let app = Router::new().route("/", get(export)).with_state(exports(backend()));
        let by_handler = Site::serve(app).await.get("/", &[]).await;
        let app = Router::new().route("/", get(async || "exported")).layer(layer(backend()));
        let by_layer = Site::serve(app).await.get("/", &[]).await;
        assert_eq!((by_handler.status, by_layer.status), (status, status));
        assert_eq!(by_handler.body, by_layer.body);
        if status != 200 {
            assert_eq!(limit_fields(&by_handler), limit_fields(&by_layer));
            for name in ["content-type", "cache-control"] {
                assert!(by_handler.header(name).is_some());
                assert_eq!(by_handler.header(name), by_layer.header(name));
            }
        }
    }
    assert_eq!(Rejection::Key(KeyError::missing("header")).into_response().status(), 400);
}

#[tokio::test]
async fn layer_joins_fields_of_rejection_in_handler() {
    let exports = Limiter::builder(FakeBackend::denying(7 * SECOND)).policy(policy("exports", 9, MINUTE));
    let app = Router::new().route("/", get(export)).with_state(exports.build().unwrap());
    let answer = Site::serve(app.clone().layer(builder().build().unwrap())).await.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""exports";q=9;w=60, "burst";q=2;w=1, "sustained";q=5;w=60"#)
    );
    // The outer layer keeps the extension of the denial.
    let request = axum::http::Request::get("/").body(axum::body::Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert!(matches!(response.extensions().get(), Some(Rejection::Denied(_))));
}
