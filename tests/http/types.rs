//! The public types: their names and auto traits. Most of these tests fail at compile time.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    routing::get,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    Admission, Algorithm, ConfigError, CostFunction, Costs, Decision, Head, KeyExtractor, Limit, LimitedBody,
    Limiter, LimiterBuilder, MemoryBackend, OutageRule, PartitionKey, Policies, Policy, PolicyTable,
    RateLimit, RateLimitLayer, RateLimitLayerBuilder, RedisBackend, Rejection, Reservation, ResponseHead,
    RouteCosts, Status, Wait,
    answer::{Answer, Grpc, HttpOrGrpc, NoDecision, NoReservation, ProblemDetails},
    backend::{BackendError, Check, Pair, Purpose, Reason, Refund},
    by,
    future::{LimiterFuture, ResponseFuture, Settlement},
    key::{self, Header, KeyError, MissingKey, PeerIp},
    outage::{Breaker, DenyCacheConfig, LocalDecision, Share, Unchecked},
    peer_ip,
    policy::{PolicySelector, Tier},
    protocol::{AnyProtocol, AsError, By, ByResponse, Draft, Fits, Http, Protocol, RejectWith, SameBody},
    settle::{ActualCost, Settled, by_hand},
    testing::{FakeAnswer, FakeBackend, ManualClock, RecordedCheck, RecordedRefund},
};

use super::{
    ALICE, MINUTE, SECOND, api_key, policy,
    probe::{Probe, now, request_of},
};

#[test]
fn every_extractor_is_clone() {
    fn is_clone(_: impl KeyExtractor + Clone) {}
    struct NotClone;
    let owned = NotClone;
    let closure = move |_: &Head<'_>| {
        let _ = &owned;
        PartitionKey::new("user", "alice")
    };
    let own = key::from_fn(closure);
    is_clone(own.clone());
    is_clone(own.clone().or(peer_ip()));
    is_clone(own.clone().and(own));
    let owned = NotClone;
    is_clone(tower_sliding_window::extension("user", move |user: &String| {
        let _ = &owned;
        user.clone()
    }));
}

/// A job whose protocol is named.
struct Job(&'static str);

/// The protocol of a service that rejects by its own error and settles by its response.
type ByJob = By<Job, RejectWith<Job, u32, Rejection>, ByResponse<u32, Costs>>;

/// An application that keeps its layers.
struct App {
    limits: RateLimitLayer,
    health: RateLimitLayer,
    jobs: RateLimitLayer<ByJob>,
    plain_jobs: RateLimitLayer<By<Job>>,
    same_body: RateLimitLayer<SameBody>,
}

/// A custom service around a limited one.
struct Around {
    limited: RateLimit<Router>,
    under_way: Option<ResponseFuture<Router, Request<Body>>>,
}

impl App {
    fn new() -> Self {
        // Every part is a closure that owns something.
        let (tenant, path) = ("acme".to_owned(), "/health".to_owned());
        let (expensive, of_gold) = ("/export".to_owned(), Policies::from(policy("gold", 100, MINUTE)));
        let limits = RateLimitLayer::builder(MemoryBackend::new())
            .policy(policy("ten", 10, MINUTE))
            .key_by(move |head| head.header("x-api-key").map(|user| PartitionKey::new(&tenant, user)))
            .cost_by({
                let expensive = expensive.clone();
                move |head| if head.uri.path() == expensive { 5 } else { 1 }
            })
            .policies_by(move |head| match head.headers.contains_key("x-gold") {
                true => Tier::Limited(of_gold.clone()),
                false => Tier::Unlimited,
            })
            .exempt(move |head| head.uri.path() == path)
            .outage_by(move |head| match head.uri.path() == expensive {
                true => OutageRule::FailClosed,
                false => OutageRule::FailOpen,
            })
            .settle_by(|response| response.status.is_server_error().then_some(0))
            .rejection(|rejection, _| Response::new(rejection.to_string()))
            .build()
            .unwrap();
        let health = RateLimitLayer::builder(FakeBackend::denying(SECOND))
            .policy(policy("ten", 10, MINUTE))
            .answer(HttpOrGrpc)
            .key(api_key().or(api_key().and(peer_ip())))
            .cost(RouteCosts::new())
            .exempt(|head| head.uri.path() == "/health")
            .build()
            .unwrap();
        let limiter = limits.limiter().clone();
        let plan = |job: &Job| PartitionKey::new("job", job.0);
        let reject = |_: &Job, rejection: &Rejection| Err(rejection.clone());
        let jobs = by(plan).reject_with(reject).settle_by(|used: &u32| Some(*used));
        Self {
            jobs: RateLimitLayer::new(limiter.clone(), jobs),
            plain_jobs: RateLimitLayer::new(limiter, by(plan)),
            same_body: health.same_body().unwrap(),
            limits,
            health,
        }
    }
}

#[tokio::test]
async fn application_names_layer_service_and_future() {
    let app = App::new();
    let router = Router::new().route("/", get(async || "hello")).route("/health", get(async || "well"));
    let request = |path: &str| Request::get(path).header("x-api-key", "alice").body(Body::empty()).unwrap();

    let mut around = Around { limited: app.limits.layer(router.clone()), under_way: None };
    let ready = ServiceExt::<Request<Body>>::ready(&mut around.limited).await.unwrap();
    around.under_way = Some(ready.call(request("/")));
    let response: Response<LimitedBody<Body>> = around.under_way.take().unwrap().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);

    let service = app.health.layer(router.clone());
    assert_eq!(service.oneshot(request("/health")).await.unwrap().status(), StatusCode::OK);

    let service: RateLimit<Router, SameBody> = app.same_body.layer(router);
    let response: Response<Body> = service.oneshot(request("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);

    let work = async |_: Job| Ok::<_, Rejection>(3);
    assert_eq!(app.jobs.layer(service_fn(work)).oneshot(Job("a")).await.unwrap(), 3);
    assert_eq!(app.plain_jobs.layer(service_fn(work)).oneshot(Job("a")).await.unwrap(), 3);
}

#[test]
fn public_types_implement_send_sync_and_clone() {
    fn handle<T: Clone + Send + Sync + 'static>() {}
    fn sent_and_shared<T: ?Sized + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}

    handle::<RateLimitLayer>();
    handle::<RateLimitLayer<SameBody>>();
    handle::<RateLimitLayer<By<Job>>>();
    handle::<RateLimitLayer<ByJob>>();
    handle::<RateLimit<Router>>();
    handle::<RateLimit<Router, SameBody>>();
    handle::<RateLimit<Probe>>();
    handle::<RateLimit<Probe, ByJob>>();
    handle::<RateLimitLayerBuilder>();
    handle::<Limit>();
    handle::<Limiter>();
    handle::<LimiterBuilder>();
    handle::<MemoryBackend>();
    handle::<RedisBackend>();
    handle::<FakeBackend>();
    handle::<Policy>();
    handle::<PartitionKey>();
    handle::<Decision>();
    handle::<BackendError>();
    handle::<(Admission, Rejection, KeyError)>();
    handle::<(Http, SameBody, By<Job>, ByJob, AsError, Draft)>();
    handle::<(ProblemDetails, Grpc, HttpOrGrpc, NoDecision, NoReservation)>();
    handle::<(Costs, Policies, PolicyTable, Reservation, Settled, ActualCost, RouteCosts)>();
    handle::<(Header, PeerIp, MissingKey, Algorithm, Status, Wait)>();
    handle::<(OutageRule, Share, Breaker, DenyCacheConfig, LocalDecision, Unchecked)>();
    handle::<(Check, Pair, Purpose, Reason, Refund)>();
    handle::<(FakeAnswer, ManualClock, RecordedCheck, RecordedRefund)>();
    handle::<(Head<'static>, ResponseHead<'static>)>();
    sent_and_shared::<ConfigError>();
    sent_and_shared::<LimitedBody<Bytes>>();
    sent_and_shared::<dyn KeyExtractor>();
    sent_and_shared::<dyn CostFunction>();
    sent_and_shared::<dyn PolicySelector>();
    sent_and_shared::<dyn Answer>();
    sent::<LimitedBody<Body>>();
    sent::<ResponseFuture<Router, Request<Body>>>();
    sent::<ResponseFuture<Router, Request<Body>, SameBody>>();
    sent::<ResponseFuture<Probe, Request<()>>>();
    sent::<(LimiterFuture<()>, Settlement)>();
}

#[test]
fn layer_holds_parts_behind_dyn() {
    let key: Arc<dyn KeyExtractor> = Arc::new(api_key().or(peer_ip()));
    let cost: Arc<dyn CostFunction> = Arc::new(7);
    let policies: Arc<dyn PolicySelector> = Arc::new(Policies::from(policy("ten", 10, MINUTE)));
    let answer: Arc<dyn Answer> = Arc::new(ProblemDetails);
    let backend = FakeBackend::denying(SECOND);
    let builder = RateLimitLayer::builder(backend.clone()).key(key).cost(cost).policies(policies);
    let limits = builder.answer(answer).build().unwrap();
    let response = now(limits.layer(Probe::new().0).oneshot(request_of("alice"))).unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((backend.checks()[0].pairs[0].cost, backend.checks()[0].pairs[0].policy.name()), (7, "ten"));
}

/// A custom protocol: it rejects with a text, and adds nothing to responses.
#[derive(Clone)]
struct Terse;

impl AnyProtocol for Terse {}

impl<S> Fits<S> for Terse {}

impl Protocol<Request<()>, Response<Bytes>, Infallible> for Terse {
    type Response = Result<Response<Bytes>, String>;

    fn plan(&self, request: &Request<()>) -> Result<Draft, KeyError> {
        match Head::from(request).header(ALICE.0) {
            Some(user) => Ok(Draft::check(PartitionKey::new("user", user), 1)),
            None => Err(KeyError::missing("user")),
        }
    }

    fn reject(&self, _: &Request<()>, rejection: Rejection) -> Result<Self::Response, Infallible> {
        Ok(Err(rejection.to_string()))
    }

    fn respond(&self, response: Response<Bytes>, admission: Option<&Admission>) -> Self::Response {
        assert!(admission.is_some_and(|admission| admission.decision().is_some()));
        Ok(response)
    }
}

#[test]
fn custom_protocol_changes_response_type() {
    let limiter = |backend| Limiter::builder(backend).policy(policy("ten", 10, MINUTE)).build().unwrap();
    let send = |backend: FakeBackend, request| {
        now(RateLimitLayer::new(limiter(backend), Terse).layer(Probe::new().0).oneshot(request)).unwrap()
    };
    let admitted = send(FakeBackend::admitting(), request_of("alice")).unwrap();
    assert!(admitted.headers().is_empty() && admitted.extensions().get::<Decision>().is_none());
    let denied = send(FakeBackend::denying(7 * SECOND), request_of("alice")).unwrap_err();
    assert_eq!(denied, r#"rate limit exceeded: policy "ten"; retry after 7s"#);
    let missing = send(FakeBackend::admitting(), Request::new(())).unwrap_err();
    assert_eq!(missing, "missing rate limit key: user not found");
}

/// Reads a response's body to its end.
async fn text(body: impl axum::body::HttpBody<Data = Bytes, Error = axum::Error> + Send + 'static) -> String {
    String::from_utf8(axum::body::to_bytes(Body::new(body), 1_000).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn limited_body_holds_body_of_inner_service_or_of_layer() {
    let router = Router::new().route("/", get(async || "hello"));
    let send = async |backend: FakeBackend| {
        let limits = RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE)).key(api_key());
        let limits = limits.rejection(|_, _| Response::new("slow down")).build().unwrap();
        let request = || Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
        let send = async || limits.layer(router.clone()).oneshot(request()).await.unwrap().into_body();
        (send().await, send().await)
    };
    let (one, other) = send(FakeBackend::admitting()).await;
    assert_eq!((one.size_hint().exact(), one.is_end_stream()), (Some(5), false));
    assert_eq!(text(one).await, "hello");
    assert_eq!(text(other.into_inner().unwrap()).await, "hello");

    let (one, other) = send(FakeBackend::denying(SECOND)).await;
    assert_eq!((one.size_hint().exact(), one.is_end_stream()), (Some(9), false));
    assert_eq!(text(one).await, "slow down");
    assert_eq!(other.into_inner().unwrap_err(), "slow down");

    let empty = LimitedBody::<Body>::default();
    assert_eq!((empty.size_hint().exact(), empty.is_end_stream()), (Some(0), true));
    assert_eq!(text(empty).await, "");
}

#[tokio::test]
async fn layer_with_same_body_shares_limiter_and_settings() {
    let backend = FakeBackend::scripted([FakeAnswer::Admit, FakeAnswer::Deny(Wait::For(SECOND))]);
    let limits = RateLimitLayer::builder(backend.clone())
        .policy(policy("ten", 10, MINUTE))
        .key(api_key())
        .cost(4)
        .exempt(|head| head.uri.path() == "/health")
        .settle_by(|_| Some(1))
        .build()
        .unwrap();
    let router = Router::new().route("/", get(async || "hello")).route("/health", get(async || "well"));
    // The optional layer needs one response type for both of its cases.
    let layer = tower::util::option_layer(Some(limits.same_body().unwrap()));
    let mut answers = Vec::new();
    for (path, user) in [("/health", ""), ("/", "alice"), ("/", ""), ("/", "alice")] {
        let request = Request::get(path).header(ALICE.0, user).body(Body::empty()).unwrap();
        let response = layer.layer(router.clone()).oneshot(request).await.unwrap();
        let field = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let fields = (field("ratelimit"), field("retry-after"));
        let is_rejected = response.extensions().get::<Rejection>().is_some();
        let status = response.status().as_u16();
        answers.push((status, fields.0, fields.1, is_rejected, text(response.into_body()).await));
    }
    assert_eq!(answers[0], (200, None, None, false, "well".to_owned()));
    assert_eq!(answers[1], (200, Some(r#""ten";r=6;t=60"#.to_owned()), None, false, "hello".to_owned()));
    let (status, fields, retry_after, is_rejected, body) = &answers[2];
    assert_eq!((*status, fields, retry_after, *is_rejected), (400, &None, &None, true));
    assert!(body.contains("missing rate limit key"), "{body}");
    let (status, fields, retry_after, is_rejected, body) = &answers[3];
    assert_eq!((*status, fields.as_deref(), *is_rejected), (429, Some(r#""ten";r=0;t=1"#), true));
    assert_eq!(retry_after.as_deref(), Some("1"));
    assert!(body.contains("quota-exceeded"), "{body}");
    assert_eq!(backend.refunds()[0].pairs[0].units, 3);
}

#[tokio::test]
async fn layer_accepts_closures_without_clone() {
    struct NoClone;
    let secret = NoClone;
    let limits = RateLimitLayer::builder(FakeBackend::denying(SECOND))
        .policy(policy("ten", 10, MINUTE))
        .key_by(move |_| {
            let _ = &secret;
            PartitionKey::new("all", "all")
        })
        .rejection({
            let secret = NoClone;
            move |_, _| {
                let _ = &secret;
                Response::new(Body::empty())
            }
        })
        .build()
        .unwrap();
    // axum clones the layer and the services that it makes.
    let app = Router::new().route("/", get(async || "")).layer(limits.clone()).layer(limits);
    let response = app.clone().oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test]
async fn layer_with_same_body_passes_decision_and_reservation() {
    let backend = FakeBackend::admitting();
    let builder = RateLimitLayer::builder(backend.clone()).policy(policy("ten", 10, MINUTE)).key(api_key());
    let limits = builder.cost(4).settle_by(by_hand).build().unwrap();
    let handler = async |decision: Decision, reservation: Reservation| {
        reservation.settle(1);
        decision.statuses()[0].remaining().to_string()
    };
    let router = Router::new().route("/", get(handler));
    let request = Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
    let response = limits.same_body().unwrap().layer(router).oneshot(request).await.unwrap();
    assert_eq!((response.status(), &*text(response.into_body()).await), (StatusCode::OK, "6"));
    assert_eq!(backend.refunds()[0].pairs[0].units, 3);
}

#[tokio::test]
async fn limited_body_ends_with_body_of_inner_service() {
    let limits = RateLimitLayer::builder(FakeBackend::admitting()).policy(policy("ten", 10, MINUTE));
    let limits = limits.key(api_key()).build().unwrap();
    for (content, is_end) in [("", true), ("hello", false)] {
        let router = Router::new().route("/", get(async move || content));
        let request = Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
        let body = limits.layer(router).oneshot(request).await.unwrap().into_body();
        assert_eq!((body.is_end_stream(), body.size_hint().exact()), (is_end, Some(content.len() as u64)));
        assert_eq!(text(body).await, content);
    }
}
