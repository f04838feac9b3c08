//! Settlements: the layer replaces the charge of a request by its actual cost.

use std::{
    convert::Infallible,
    future::{self, Future, pending},
    panic::AssertUnwindSafe,
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::{Extension, Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::{
    ConfigError, Costs, Decision, Head, Limiter, MemoryBackend, PartitionKey, RateLimitLayer,
    RateLimitLayerBuilder, Rejection, Reservation, ResponseHead,
    backend::{Backend, BackendError, Check, Purpose, Reason},
    by,
    cost::IntoCosts,
    header, limit,
    protocol::Draft,
    settle::{ActualCost, actual_cost, by_hand},
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

use super::{
    ALICE, Later, MINUTE, SECOND, api_key, policy,
    probe::{now, request_of},
    wire::Site,
};

fn builder(backend: impl Backend) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(backend).policy(policy("ten", 10, MINUTE)).key(api_key()).cost(5)
}

fn memory() -> (ManualClock, MemoryBackend) {
    let clock = ManualClock::new();
    (clock.clone(), MemoryBackend::new().with_clock(&clock))
}

/// Builds a layer of two keys that settles by these costs.
fn limits_of_two_keys(backend: impl Backend, used: Costs) -> RateLimitLayer {
    let per_user = limit(header("x-user").unwrap()).policy(policy("per-user", 20, MINUTE)).cost(7);
    let builder = builder(backend).policy(policy("twenty", 20, MINUTE)).also(per_user);
    builder.settle_by(move |_| Some(used.clone())).build().unwrap()
}

/// Returns the remaining units of Alice, after all settlements.
async fn left(limiter: &Limiter) -> u32 {
    limiter.drain().await;
    let key = PartitionKey::new("header:x-api-key", "alice");
    limiter.peek((key, 0)).await.unwrap().statuses()[0].remaining()
}

/// Returns the refunded units.
fn refunded(backend: &FakeBackend) -> Vec<u32> {
    backend.refunds().iter().flat_map(|refund| &refund.pairs).map(|pair| pair.units).collect()
}

fn overages(backend: &FakeBackend) -> Vec<u32> {
    let overages = backend.checks().into_iter().filter(|check| check.purpose == Purpose::Overage);
    overages.flat_map(|check| check.pairs).map(|pair| pair.cost).collect()
}

#[tokio::test]
async fn settlement_refunds_successful_login() {
    let (_clock, backend) = memory();
    let limits = RateLimitLayer::builder(backend)
        .policy(policy("failed", 2, MINUTE))
        .key(api_key())
        .settle_by(|response| response.status.is_success().then_some(0))
        .build()
        .unwrap();
    let app = Router::new()
        .route("/good", get(async || "welcome"))
        .route("/bad", get(async || StatusCode::UNAUTHORIZED))
        .layer(limits);
    let site = Site::serve(app).await;
    let mut statuses = Vec::new();
    for path in ["/good", "/good", "/good", "/bad", "/good", "/bad", "/good", "/bad"] {
        statuses.push(site.get(path, &[ALICE]).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 401, 200, 401, 429, 429]);
}

#[tokio::test]
async fn closure_or_handler_sets_actual_cost() {
    async fn used<C: IntoCosts>(
        settle: impl Fn(&ResponseHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> (Vec<u32>, Vec<u32>) {
        let backend = FakeBackend::admitting();
        let limits = builder(backend.clone()).settle_by(settle).build().unwrap();
        let app = Router::new()
            .route("/free", get(async || StatusCode::NOT_MODIFIED))
            .route("/less", get(async || (Extension(ActualCost::new(3)), "three")))
            .route("/more", get(async || (Extension(ActualCost::new(Costs::new().policy("ten", 9))), "nine")))
            .route("/silent", get(async || "no actual cost"))
            .layer(limits);
        for path in ["/free", "/less", "/more", "/silent"] {
            let request = Request::get(path).header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
            app.clone().oneshot(request).await.unwrap();
        }
        let checks = backend.checks();
        assert_eq!(checks.iter().filter(|check| check.purpose == Purpose::Reserve).count(), 4);
        (refunded(&backend), overages(&backend))
    }
    let not_modified = |status: StatusCode| (status == StatusCode::NOT_MODIFIED).then_some(0);
    assert_eq!(used(move |response| not_modified(response.status)).await, (vec![5], vec![]));
    let of_body = |response: &ResponseHead<'_>| response.extensions.get::<ActualCost>().map(|_| 1);
    assert_eq!(used(of_body).await, (vec![4, 4], vec![]));
    assert_eq!(used(actual_cost).await, (vec![2], vec![4]));
    assert_eq!(used(by_hand).await, (vec![], vec![]));
    let by_type = |response: &ResponseHead<'_>| {
        response.headers.contains_key("content-type").then(|| Costs::new().otherwise(4))
    };
    assert_eq!(used(by_type).await, (vec![1, 1, 1], vec![]));
}

#[tokio::test]
async fn header_fields_report_charge_before_settlement() {
    let (_clock, backend) = memory();
    let limits = builder(backend).settle_by(actual_cost).build().unwrap();
    let app = Router::new().route("/", get(async || (Extension(ActualCost::new(1)), "")));
    let site = Site::serve(app.layer(limits)).await;
    for fields in [r#""ten";r=5;t=60"#, r#""ten";r=4;t=60"#, r#""ten";r=3;t=60"#] {
        assert_eq!(site.get("/", &[ALICE]).await.header("ratelimit"), Some(fields));
    }
}

#[tokio::test]
async fn delayed_backend_settles_after_response() {
    let (_clock, backend) = memory();
    let limits = builder(Later(backend)).settle_by(actual_cost).build().unwrap();
    let limiter = limits.limiter().clone();
    let app = Router::new().route("/", get(async || (Extension(ActualCost::new(1)), "")));
    let site = Site::serve(app.layer(limits)).await;
    site.get("/", &[ALICE]).await;
    assert_eq!((left(&limiter).await, limiter.lost_settlements()), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn response_does_not_wait_for_settlement() {
    let backend = FakeBackend::admitting().hanging_settlements();
    let limits = builder(backend.clone()).settle_by(actual_cost).deadline(SECOND).build().unwrap();
    let limiter = limits.limiter().clone();
    let inner = service_fn(async |_: Request<()>| {
        let mut response = Response::new(Bytes::new());
        response.extensions_mut().insert(ActualCost::new(0));
        Ok::<_, Infallible>(response)
    });
    let start = tokio::time::Instant::now();
    limits.layer(inner).oneshot(request_of("alice")).await.unwrap();
    assert_eq!(start.elapsed().as_micros(), 0);
    assert_eq!(limiter.lost_settlements(), 0);
    limiter.drain().await;
    assert_eq!((start.elapsed().as_secs(), refunded(&backend), limiter.lost_settlements()), (5, vec![5], 1));
}

/// Builds a layer that settles every response at a cost of 0.
fn free(backend: FakeBackend) -> RateLimitLayer {
    builder(backend).settle_by(|_| Some(0)).build().unwrap()
}

#[tokio::test]
async fn error_of_inner_service_keeps_charge() {
    let backend = FakeBackend::admitting();
    let inner =
        service_fn(async |_: Request<()>| Err::<Response<Bytes>, BoxError>("the service is broken".into()));
    free(backend.clone()).layer(inner).oneshot(request_of("alice")).await.unwrap_err();
    assert_eq!((refunded(&backend), backend.checks().len()), (vec![], 1));
}

#[test]
fn panic_of_inner_service_keeps_charge() {
    let backend = FakeBackend::admitting();
    let inner = service_fn(async |_: Request<()>| -> Result<Response<Bytes>, Infallible> {
        panic!("intended panic")
    });
    let answer = free(backend.clone()).layer(inner).oneshot(request_of("alice"));
    std::panic::catch_unwind(AssertUnwindSafe(|| now(answer))).unwrap_err();
    assert_eq!((refunded(&backend), backend.checks().len()), (vec![], 1));
}

#[test]
fn dropped_request_keeps_charge() {
    let backend = FakeBackend::admitting();
    let limits = free(backend.clone());
    let limiter = limits.limiter().clone();
    let inner = service_fn(|_: Request<()>| pending::<Result<Response<Bytes>, Infallible>>());
    {
        let mut answer = pin!(limits.layer(inner).oneshot(request_of("alice")));
        assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!((refunded(&backend), backend.checks().len(), limiter.lost_settlements()), (vec![], 1, 0));
}

#[tokio::test]
async fn layer_settles_no_rejected_or_exempt_request() {
    let settled = |backend: FakeBackend| async move {
        let limits = builder(backend.clone())
            .exempt(|head| head.uri.path() == "/exempt")
            .settle_by(|_| Some(0))
            .build()
            .unwrap();
        let app = Router::new()
            .route("/", get(async || ""))
            .route(
                "/exempt",
                get(async |reservation: Option<Reservation>| reservation.map_or("", |_| "reserved")),
            )
            .layer(limits);
        let site = Site::serve(app).await;
        let statuses = [site.get("/", &[ALICE]).await.status, site.get("/", &[]).await.status];
        assert_eq!(site.get("/exempt", &[ALICE]).await.body, "");
        (statuses, refunded(&backend))
    };
    assert_eq!(settled(FakeBackend::denying(SECOND)).await, ([429, 400], vec![]));
    assert_eq!(settled(FakeBackend::unavailable(Reason::Busy)).await, ([503, 400], vec![]));
    assert_eq!(settled(FakeBackend::admitting()).await, ([200, 400], vec![5]));
}

#[tokio::test]
async fn first_settlement_by_handler_or_layer_takes_effect() {
    let backend = FakeBackend::admitting();
    let limits = builder(backend.clone()).settle_by(|_| Some(4)).build().unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let app = Router::new()
        .route(
            "/at-once",
            get(async |reservation: Reservation| {
                reservation.settle(1);
            }),
        )
        .route("/later", get(async move |reservation: Reservation| sender.send(reservation).unwrap()))
        .layer(limits);
    let site = Site::serve(app).await;
    assert_eq!(site.get("/at-once", &[ALICE]).await.status, 200);
    assert_eq!(refunded(&backend), [4]);
    assert_eq!(site.get("/later", &[ALICE]).await.status, 200);
    let reservation = receiver.recv().await.unwrap();
    assert!(reservation.is_settled());
    reservation.settle(0);
    assert_eq!(refunded(&backend), [4, 1]);
}

#[tokio::test]
async fn streamed_body_settles_at_its_end_or_keeps_charge() {
    /// A body that counts its frames, and settles at its end.
    struct Counted {
        left: u32,
        sent: u32,
        reservation: Reservation,
    }
    impl axum::body::HttpBody for Counted {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _cx: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                self.reservation.settle(self.sent);
                return Poll::Ready(None);
            }
            (self.left, self.sent) = (self.left - 1, self.sent + 1);
            Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"token ")))))
        }
    }
    let (_clock, backend) = memory();
    let limits = builder(backend).settle_by(by_hand).build().unwrap();
    let limiter = limits.limiter().clone();
    let stream = async |reservation: Reservation| Body::new(Counted { left: 2, sent: 0, reservation });
    let app = Router::new().route("/", get(stream)).layer(limits);
    let request = || Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();

    let response = app.clone().oneshot(request()).await.unwrap();
    assert_eq!(left(&limiter).await, 5, "the charge is the estimate until the body ends");
    assert_eq!(axum::body::to_bytes(response.into_body(), 100).await.unwrap(), "token token ");
    assert_eq!(left(&limiter).await, 8);

    drop(app.oneshot(request()).await.unwrap());
    assert_eq!((left(&limiter).await, limiter.lost_settlements()), (3, 0));
}

#[tokio::test]
async fn custom_rejection_does_not_change_settlement() {
    let reject = |_: &Rejection, _: &Head<'_>| Response::new(Body::from("no"));
    let free = |_: &ResponseHead<'_>| Some(0);
    let fake = FakeBackend::admitting;
    let (before, after, send) = (fake(), fake(), |layer: Router| async {
        let request = Request::get("/").header(ALICE.0, ALICE.1).body(Body::empty()).unwrap();
        layer.oneshot(request).await.unwrap()
    });
    let route = || Router::new().route("/", get(async |_: Reservation| ""));
    let response =
        send(route().layer(builder(before.clone()).rejection(reject).settle_by(free).build().unwrap()));
    assert_eq!(response.await.status(), StatusCode::OK);
    let response =
        send(route().layer(builder(after.clone()).settle_by(free).rejection(reject).build().unwrap()));
    assert_eq!(response.await.status(), StatusCode::OK);
    assert_eq!((refunded(&before), refunded(&after)), (vec![5], vec![5]));

    let denying = builder(FakeBackend::denying(SECOND)).rejection(reject).settle_by(free).build().unwrap();
    let response = send(route().layer(denying)).await;
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(axum::body::to_bytes(response.into_body(), 100).await.unwrap(), "no");
}

#[tokio::test]
async fn service_without_http_settles_by_response() {
    let backend = FakeBackend::admitting();
    let limiter = Limiter::builder(backend.clone()).policy(policy("rows", 100, MINUTE)).build().unwrap();
    let protocol = by(|tenant: &String| (PartitionKey::new("tenant", tenant), 50))
        .reject_with(|_, rejection| Err(format!("{rejection:?}")))
        .settle_by(|rows: &Vec<u8>| Some(rows.len() as u32));
    let limits = RateLimitLayer::new(limiter, protocol);
    let inner = service_fn(|_: String| future::ready(Ok::<_, String>(vec![0; 3])));
    let mut service = limits.layer(inner);
    assert_eq!(service.ready().await.unwrap().call("acme".to_owned()).await.unwrap().len(), 3);
    assert_eq!(refunded(&backend), [47]);
}

#[tokio::test]
async fn settling_layer_requires_backend_that_settles() {
    struct OnlyCharges;
    impl Backend for OnlyCharges {
        async fn check(&self, _: &Check) -> Result<Decision, BackendError> {
            panic!("the backend was called")
        }
    }
    let limiter = Limiter::builder(OnlyCharges).policy(policy("ten", 10, MINUTE)).build().unwrap();
    let own = builder(OnlyCharges).settle_by(actual_cost).build();
    let shared = RateLimitLayer::builder(limiter.clone()).key(api_key()).settle_by(actual_cost).build();
    for built in [own, shared] {
        let error = built.map(drop).unwrap_err();
        assert!(matches!(error, ConfigError::CannotSettle));
        assert_eq!(error.to_string(), "the backend cannot settle: it cannot change charges");
    }

    // A plan may reserve for a single request. The layer then rejects the request, and does not call the backend.
    let alice = || PartitionKey::new("user", "alice");
    let limits = RateLimitLayer::builder(limiter.clone());
    let limits = limits.plan_by(move |_| Draft::check(alice(), 1).reserve()).build().unwrap();
    let inner = service_fn(async |_: Request<()>| -> Result<Response<Bytes>, Infallible> {
        panic!("the inner service was called")
    });
    let response = limits.layer(inner).oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), 503);
    let is_unsupported = |rejection: &Rejection| matches!(rejection, Rejection::Unavailable(error) if error.reason() == Reason::Unsupported);
    assert!(is_unsupported(response.extensions().get::<Rejection>().unwrap()));

    // The same applies to a service that is not HTTP.
    let protocol = by(move |_: &u32| alice()).settle_by(|used: &u32| Some(*used));
    let protocol = protocol.reject_with(|_, rejection: &Rejection| Err::<u32, _>(rejection.clone()));
    let inner =
        service_fn(async |_: u32| -> Result<u32, Rejection> { panic!("the inner service was called") });
    let rejection = RateLimitLayer::new(limiter, protocol).layer(inner).oneshot(1).await.unwrap_err();
    assert!(is_unsupported(&rejection), "{rejection:?}");
}

#[tokio::test]
async fn layer_without_settlement_creates_no_reservation() {
    let backend = FakeBackend::scripted([FakeAnswer::Admit]);
    let app = Router::new()
        .route("/", get(async |reservation: Option<Reservation>| reservation.map_or("none", |_| "one")));
    let site = Site::serve(app.layer(builder(backend.clone()).build().unwrap())).await;
    assert_eq!(site.get("/", &[ALICE]).await.body, "none");
    assert_eq!(backend.checks()[0].purpose, Purpose::Charge);
}

#[tokio::test]
async fn nested_layers_settle_their_own_charges() {
    let (outer, inner) = (FakeBackend::admitting(), FakeBackend::admitting());
    let layer = |backend: &FakeBackend, used: u32| {
        builder(backend.clone()).settle_by(move |_| Some(used)).build().unwrap()
    };
    let app = Router::new().route("/", get(async || "")).layer(layer(&inner, 1)).layer(layer(&outer, 3));
    let site = Site::serve(app).await;
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!((refunded(&outer), refunded(&inner)), (vec![2], vec![4]));
}

#[tokio::test]
async fn actual_cost_settles_every_layer_unless_it_names_policies() {
    let refunds = async |used: ActualCost| {
        let backends = [FakeBackend::admitting(), FakeBackend::admitting()];
        let handler = move || future::ready((Extension(used.clone()), ""));
        let layer = |name: &str, backend: &FakeBackend| {
            let builder = RateLimitLayer::builder(backend.clone()).policy(policy(name, 9, MINUTE));
            builder.key(api_key()).cost(5).settle_by(actual_cost).build().unwrap()
        };
        let [inner, outer] = &backends;
        let app =
            Router::new().route("/", get(handler)).layer(layer("inner", inner)).layer(layer("outer", outer));
        assert_eq!(Site::serve(app).await.get("/", &[ALICE]).await.status, 200);
        backends.map(|backend| refunded(&backend))
    };
    assert_eq!(refunds(ActualCost::new(0)).await, [[5], [5]]);
    assert_eq!(refunds(ActualCost::new(Costs::new().policy("inner", 0))).await, [vec![5], vec![]]);
}

#[tokio::test]
async fn settlement_replaces_charges_of_named_policies() {
    let refunds = async |used: Costs| {
        let backend = FakeBackend::admitting();
        let limits = limits_of_two_keys(backend.clone(), used);
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Bytes::new())));
        let request = Request::get("/").header(ALICE.0, ALICE.1).header("x-user", "al").body(()).unwrap();
        limits.layer(inner).oneshot(request).await.unwrap();
        assert_eq!((backend.checks().len(), backend.checks()[0].purpose), (1, Purpose::Reserve));
        let refunds: Vec<_> = backend.refunds().into_iter().flat_map(|refund| refund.pairs).collect();
        refunds.iter().map(|pair| (pair.policy.name().to_owned(), pair.units)).collect::<Vec<_>>()
    };
    let units = |name: &str, units| (name.to_owned(), units);
    assert_eq!(refunds(Costs::new().policy("per-user", 1)).await, [units("per-user", 6)]);
    assert_eq!(refunds(Costs::new().policy("ten", 0)).await, [units("ten", 5)]);
    let all = [units("ten", 3), units("twenty", 3), units("per-user", 5)];
    assert_eq!(refunds(Costs::from(2)).await, all);
    assert_eq!(refunds(Costs::new()).await, []);
}
