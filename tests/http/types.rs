//! The types: they can be named, and they go where services go. Most of this fails by not compiling.

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt};
use tower_sliding_window::{
    And, BackendError, Builder, CheckFuture, Costs, Decision, FakeBackend, Fixed, FromHead, Grpc, Head,
    Header, Http, HttpOrGrpc, KeyExt, Keyed, Limit, Limiter, MemoryBackend, NoExemptions, Or, PartitionKey,
    PeerIp, Policies, Policy, PolicyTable, RateLimit, RateLimitLayer, ReadActualCost, RedisBackend, Refusal,
    Reservation, ReserveFuture, Reserved, ResetFuture, ResponseFuture, RouteCosts, Settled, Settlement,
    Settling, Unkeyed, from_head, peer_ip,
};

use super::{MINUTE, SECOND, api_key, policy, probe::Probe};

/// A closure can be named as a function pointer.
type IsExempt = fn(&Request<Body>) -> bool;

/// An application that keeps its layers.
struct App {
    limits: RateLimitLayer<Keyed<Or<Header, PeerIp>, RouteCosts>>,
    health: RateLimitLayer<Keyed<And<Header, PeerIp>, u32, IsExempt>, HttpOrGrpc>,
}

/// A service of the user's own around a limited one.
struct Around {
    limited: RateLimit<Router, Keyed<Or<Header, PeerIp>, RouteCosts>>,
    under_way: Option<ResponseFuture<Router, Request<Body>>>,
}

impl App {
    fn new() -> Self {
        let limits = RateLimitLayer::builder(MemoryBackend::new())
            .policy(policy("ten", 10, MINUTE))
            .key(api_key().or(peer_ip()))
            .cost(RouteCosts::new())
            .build()
            .unwrap();
        let health = RateLimitLayer::builder(FakeBackend::denying(SECOND))
            .policy(policy("ten", 10, MINUTE))
            .respond(HttpOrGrpc)
            .key(api_key().and(peer_ip()))
            .exempt((|request| request.uri().path() == "/health") as IsExempt)
            .build()
            .unwrap();
        Self { limits, health }
    }
}

#[tokio::test]
async fn the_layer_the_service_and_its_future_can_be_named() {
    let app = App::new();
    let router = Router::new().route("/", get(async || "hello")).route("/health", get(async || "well"));
    let request = |path: &str| Request::get(path).header("x-api-key", "alice").body(Body::empty()).unwrap();

    let mut around = Around { limited: app.limits.layer(router.clone()), under_way: None };
    let ready = ServiceExt::<Request<Body>>::ready(&mut around.limited).await.unwrap();
    around.under_way = Some(ready.call(request("/")));
    assert_eq!(around.under_way.take().unwrap().await.unwrap().status(), StatusCode::OK);

    let service = app.health.layer(router);
    assert_eq!(service.oneshot(request("/health")).await.unwrap().status(), StatusCode::OK);
}

#[test]
fn everything_can_be_sent_shared_and_where_it_is_a_handle_cloned() {
    fn handle<T: Clone + Send + Sync + 'static>() {}
    fn sent_and_shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}

    type Plan = Keyed<Or<Header, PeerIp>, RouteCosts>;
    type SeveralKeys = Keyed<Header, u32, NoExemptions, Fixed, ((), Limit<PeerIp>)>;
    handle::<RateLimitLayer<Plan>>();
    handle::<RateLimitLayer<Plan, Grpc>>();
    handle::<RateLimit<Router, Plan>>();
    handle::<RateLimit<Probe, Keyed<FromHead<fn(&Head<'_>) -> String>>>>();
    handle::<Builder<Unkeyed>>();
    handle::<Builder<Plan>>();
    handle::<Limiter>();
    handle::<MemoryBackend>();
    handle::<RedisBackend>();
    handle::<FakeBackend>();
    handle::<Policy>();
    handle::<PartitionKey>();
    handle::<Decision>();
    handle::<BackendError>();
    handle::<Refusal>();
    handle::<(Http, Grpc, HttpOrGrpc, NoExemptions)>();
    handle::<(Costs, Policies, PolicyTable, Reservation, Settled, Reserved)>();
    handle::<RateLimitLayer<Plan, Settling<ReadActualCost, Http>>>();
    handle::<RateLimitLayer<SeveralKeys>>();
    sent_and_shared::<Header>();
    sent::<ResponseFuture<Router, Request<Body>>>();
    sent::<ResponseFuture<Probe, Request<()>>>();
    sent::<(CheckFuture, ReserveFuture, ResetFuture, Settlement)>();
}

#[tokio::test]
async fn what_the_layer_is_made_of_need_not_be_cloned() {
    struct NoClone;
    let secret = NoClone;
    let limits = RateLimitLayer::builder(FakeBackend::denying(SECOND))
        .policy(policy("ten", 10, MINUTE))
        .key(from_head(move |_| {
            let _ = &secret;
            PartitionKey::new("all", "everybody")
        }))
        .rejection({
            let secret = NoClone;
            move |_| {
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
