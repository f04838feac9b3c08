//! Meters, reservations that are dropped unsettled, and clamped estimates, over sockets.

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Body as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tower_sliding_window::{
    ConfigError, Costs, Limiter, MemoryBackend, PartitionKey, Policy, RateLimitLayer, RateLimitLayerBuilder,
    Reservation, Status,
    backend::{Backend, Pair},
    header, limit,
    protocol::Draft,
    settle::{Settled, Unsettled, by_hand},
    testing::ManualClock,
};

use super::{
    ALICE, Later, MINUTE, SECOND, api_key, policy,
    probe::now,
    wire::{Site, request},
};

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// A layer of 100 tokens and 10 requests, with an estimate of 60 tokens and 1 request.
fn builder(backend: impl Backend) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(backend)
        .policy(policy("tokens", 100, MINUTE))
        .policy(policy("requests", 10, MINUTE))
        .key(api_key())
        .cost(Costs::new().policy("tokens", 60))
        .deadline(20 * SECOND)
        .settle_by(by_hand)
}

/// Serves an app behind these limits.
async fn serve(limits: RateLimitLayerBuilder, app: Router) -> (Site, Limiter) {
    let limits = limits.build().unwrap();
    let limiter = limits.limiter().clone();
    (Site::serve(app.layer(limits)).await, limiter)
}

fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

/// Returns what is left of the quotas, in the order of the policies.
async fn left(limiter: &Limiter) -> Vec<u32> {
    let decision = limiter.peek((alice(), 0)).await.unwrap();
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

/// Waits until this is left of the quotas.
async fn wait_for(limiter: &Limiter, expected: &[u32]) {
    let start = Instant::now();
    while left(limiter).await != expected {
        let left = left(limiter).await;
        assert!(start.elapsed() < MINUTE, "{left:?} instead of {expected:?}");
        sleep(Duration::from_millis(1)).await;
    }
    // Nothing changes afterwards.
    limiter.drain().await;
    assert_eq!(left(limiter).await, expected);
}

/// Opens a connection, and sends a request of Alice.
async fn send(site: &Site, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(site.address()).await.unwrap();
    let text = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: alice\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Reads until the answer contains this text.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut received = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&received).contains(text) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "the answer has ended");
        }
    };
    timeout(MINUTE, reading).await.expect(text);
}

/// An app that sends five chunks of ten tokens each. Each chunk takes a permit.
fn chunks(permits: usize) -> Router {
    let permits = Arc::new(Semaphore::new(permits));
    Router::new().route(
        "/",
        get(async move |reservation: Reservation| {
            let meter = reservation.meter();
            let chunks = stream::iter(0..5).then(move |_| {
                let permits = permits.clone();
                async move { permits.acquire().await.unwrap().forget() }
            });
            Body::from_stream(chunks.map(move |()| {
                meter.add_to("tokens", 10);
                Ok::<_, Infallible>("token")
            }))
        }),
    )
}

async fn stream_end_settles(backend: impl Backend) {
    let (site, limiter) = serve(builder(backend), chunks(5)).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!((answer.status, answer.body.matches("token").count()), (200, 5));
    wait_for(&limiter, &[50, 9]).await;
}

#[tokio::test]
async fn meter_settles_at_end_of_stream() {
    stream_end_settles(memory()).await;
    stream_end_settles(Later(memory())).await;
}

async fn disconnect_settles(backend: impl Backend) {
    let (site, limiter) = serve(builder(backend), chunks(2)).await;
    let mut stream = send(&site, "/").await;
    read_until(&mut stream, "token").await;
    assert_eq!(left(&limiter).await, [40, 9]);
    drop(stream);
    wait_for(&limiter, &[80, 9]).await;
}

#[tokio::test]
async fn meter_settles_after_client_disconnects() {
    disconnect_settles(memory()).await;
    disconnect_settles(Later(memory())).await;
}

#[tokio::test]
async fn meter_without_additions_leaves_estimate() {
    for (rule, expected) in [(Unsettled::Keep, [40, 9]), (Unsettled::Refund, [100, 10])] {
        let (site, limiter) = serve(builder(memory()).unsettled(rule), chunks(0)).await;
        let mut stream = send(&site, "/").await;
        read_until(&mut stream, "\r\n\r\n").await;
        assert_eq!(left(&limiter).await, [40, 9], "{rule:?}");
        drop(stream);
        wait_for(&limiter, &expected).await;
    }
}

#[tokio::test]
async fn meter_settles_each_policy_by_its_name() {
    let app = Router::new()
        .route(
            "/some",
            get(async |reservation: Reservation| {
                let meter = reservation.meter();
                meter.add(Costs::new().policy("tokens", 20));
                meter.add_to("cents", 4);
                meter.add(Costs::new().policy("cents", 3).policy("unknown", 9));
                meter.add_to("unknown", 9);
                assert_eq!(
                    ["tokens", "requests", "unknown"].map(|name| meter.added(name)),
                    [Some(20), None, None]
                );
            }),
        )
        .route("/all", get(async |reservation: Reservation| reservation.meter().add(2)))
        .route("/zero", get(async |reservation: Reservation| reservation.meter().add_to("tokens", 0)));
    let cents = limit(api_key()).policy(policy("cents", 50, MINUTE)).cost(5);
    let (site, limiter) = serve(builder(memory()).also(cents), app).await;
    let cents = async || {
        let pair = Pair::new(alice(), policy("cents", 50, MINUTE), 0);
        limiter.peek([pair]).await.unwrap().statuses()[0].remaining()
    };
    // A policy without an addition keeps its estimate.
    for (path, expected) in [("/some", ([80, 9], 43)), ("/all", ([78, 7], 41)), ("/zero", ([78, 6], 36))] {
        assert_eq!(site.get(path, &[ALICE]).await.status, 200);
        wait_for(&limiter, &expected.0).await;
        assert_eq!(cents().await, expected.1, "{path}");
    }
}

#[test]
fn meters_of_reservation_count_together() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).build().unwrap();
    let remaining = || now(limiter.peek((alice(), 0))).unwrap().statuses()[0].remaining();
    let reservation = now(limiter.reserve((alice(), 60))).unwrap();
    let (first, second) = (reservation.meter(), reservation.meter());
    let third = second.clone();
    std::thread::scope(|scope| {
        for meter in [first, second] {
            scope.spawn(move || (0..10).for_each(|_| meter.add(1)));
        }
    });
    assert_eq!((remaining(), third.added("tokens")), (40, Some(20)));
    drop(third);
    assert_eq!((remaining(), reservation.is_settled()), (80, true));
    // The first settlement has taken effect.
    let late = reservation.meter();
    late.add(50);
    drop(late);
    assert_eq!(remaining(), 80);
}

#[test]
fn explicit_settlement_ends_meter() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).build().unwrap();
    let remaining = || now(limiter.peek((alice(), 0))).unwrap().statuses()[0].remaining();
    let reservation = now(limiter.reserve((alice(), 60))).unwrap();
    let (meter, other) = (reservation.meter(), reservation.meter());
    meter.add(30);
    assert!(matches!(now(meter.settle()), Settled::Done { .. }));
    assert_eq!(remaining(), 70);
    other.add(30);
    assert!(matches!(now(other.settle()), Settled::Already));
    assert_eq!(remaining(), 70);
    // Without additions, the estimate is the amount used.
    let reservation = now(limiter.reserve((alice(), 60))).unwrap();
    assert!(matches!(now(reservation.meter().settle()), Settled::Done { .. }));
    assert_eq!((remaining(), reservation.is_settled()), (10, true));
}

#[test]
fn additions_saturate_at_largest_amount() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", u32::MAX, MINUTE)).build().unwrap();
    let meter = now(limiter.reserve(alice())).unwrap().meter();
    for _ in 0..3 {
        meter.add(u32::MAX - 1);
    }
    assert_eq!(meter.added("tokens"), Some(u32::MAX));
    drop(meter);
    assert_eq!(now(limiter.peek((alice(), 0))).unwrap().statuses()[0].remaining(), 0);
}

#[tokio::test]
async fn metered_body_counts_its_data() {
    let permits = Arc::new(Semaphore::new(3));
    let app = Router::new().route(
        "/{end}",
        get(async move |path: axum::extract::Path<String>, reservation: Reservation| {
            let end = path.0;
            let pieces = stream::iter(["one", "two", "three", "four"]).then(move |piece| {
                let (permits, fails) = (permits.clone(), end == "error" && piece == "three");
                async move {
                    permits.acquire().await.unwrap().forget();
                    if fails { Err(std::io::Error::other("intended error")) } else { Ok(piece) }
                }
            });
            let bytes = |data: &Bytes| Costs::new().policy("tokens", data.len() as u32);
            Body::new(reservation.meter().body(Body::from_stream(pieces), bytes))
        }),
    );
    let (site, limiter) = serve(builder(memory()), app).await;
    // Three permits: the stream fails instead of its third piece.
    let mut stream = send(&site, "/error").await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
    wait_for(&limiter, &[94, 9]).await;
}

#[tokio::test]
async fn metered_body_keeps_size_and_end_of_its_body() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).build().unwrap();
    let reservation = limiter.reserve((alice(), 60)).await.unwrap();
    let metered = reservation.meter().body(Body::from("seven b"), |data: &Bytes| data.len() as u32);
    assert_eq!((metered.size_hint().exact(), metered.is_end_stream()), (Some(7), false));
    assert_eq!(axum::body::to_bytes(Body::new(metered), 100).await.unwrap(), "seven b");
    assert_eq!(left(&limiter).await, [93]);
    // The end of the stream settles, even if the body is not dropped yet.
    for pieces in [vec![Ok("piece")], vec![Ok("piece"), Err(std::io::Error::other("intended error"))]] {
        let reservation = limiter.reserve(alice()).await.unwrap();
        let body = Body::from_stream(stream::iter(pieces));
        let mut metered = pin!(reservation.meter().body(body, |data: &Bytes| data.len() as u32));
        let mut next = async || poll_fn(|cx| metered.as_mut().poll_frame(cx)).await;
        assert!(matches!(next().await, Some(Ok(frame)) if frame.is_data()));
        assert!(!reservation.is_settled());
        assert!(!matches!(next().await, Some(Ok(_))));
        assert!(reservation.is_settled());
    }
}

/// An app whose requests do not settle: each path in its own way.
fn unsettled(started: Arc<AtomicUsize>) -> Router {
    Router::new()
        .route("/dropped", get(async |_: Reservation| "dropped"))
        .route("/ignored", get(async || "the handler does not know the reservation"))
        .route("/panic", get(async |_: Reservation| -> &'static str { panic!("intended panic") }))
        .route(
            "/panic-metered",
            get(async |reservation: Reservation| -> &'static str {
                let meter = reservation.meter();
                meter.add(3);
                panic!("intended panic")
            }),
        )
        .route(
            "/hangs",
            get(async move |_: Reservation| -> &'static str {
                started.fetch_add(1, SeqCst);
                pending().await
            }),
        )
}

async fn dropped_reservations(backend: impl Backend, rule: Option<Unsettled>, is_kept: bool) {
    let started = Arc::new(AtomicUsize::new(0));
    let limits = builder(backend).cost(Costs::new().policy("tokens", 6));
    let limits = match rule {
        Some(rule) => limits.unsettled(rule),
        None => limits,
    };
    let (site, limiter) = serve(limits, unsettled(started.clone())).await;
    let mut expected = 100;
    for path in ["/dropped", "/ignored", "/panic", "/panic-metered", "/hangs"] {
        let mut stream = send(&site, path).await;
        if path == "/hangs" {
            while started.load(SeqCst) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        } else {
            // The panic closes the connection.
            let read = stream.read_buf(&mut Vec::new()).await;
            assert_eq!(path.starts_with("/panic"), matches!(read, Ok(0) | Err(_)), "{path}: {read:?}");
        }
        drop(stream);
        expected -= match path {
            "/panic-metered" => 3,
            _ if is_kept => 6,
            _ => 0,
        };
        let start = Instant::now();
        while left(&limiter).await[0] != expected {
            assert!(start.elapsed() < MINUTE, "{path}, {rule:?}: {:?}", left(&limiter).await);
            sleep(Duration::from_millis(1)).await;
        }
    }
    limiter.drain().await;
    assert_eq!((left(&limiter).await[0], limiter.lost_settlements()), (expected, 0));
}

#[tokio::test]
async fn dropped_reservation_keeps_charge_or_refunds_it() {
    for (rule, is_kept) in [(None, true), (Some(Unsettled::Keep), true), (Some(Unsettled::Refund), false)] {
        dropped_reservations(memory(), rule, is_kept).await;
        dropped_reservations(Later(memory()), rule, is_kept).await;
    }
}

#[tokio::test]
async fn refund_rule_spares_settled_reservations() {
    let app = Router::new()
        .route("/settled", get(async |reservation: Reservation| drop(reservation.settle(50))))
        .route("/kept", get(async |reservation: Reservation| drop(reservation.settle(Costs::new()))));
    let (site, limiter) = serve(builder(memory()).unsettled(Unsettled::Refund), app).await;
    site.get("/kept", &[ALICE]).await;
    wait_for(&limiter, &[40, 9]).await;
    limiter.reset(alice()).await.unwrap();
    // The amount applies to both policies. It is more than the quota of requests.
    site.get("/settled", &[ALICE]).await;
    wait_for(&limiter, &[50, 0]).await;
}

#[tokio::test]
async fn layer_sets_rule_over_shared_limiter() {
    let of = |rule| {
        let limiter = Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).unsettled(rule);
        limiter.build().unwrap()
    };
    let left = async |limiter: &Limiter, rule: Option<Unsettled>| {
        let limits = RateLimitLayer::builder(limiter.clone()).key(api_key()).cost(60).settle_by(by_hand);
        let limits = rule.into_iter().fold(limits, RateLimitLayerBuilder::unsettled).build().unwrap();
        let site = Site::serve(unsettled(Arc::default()).layer(limits)).await;
        assert_eq!(site.get("/dropped", &[ALICE]).await.status, 200);
        left(limiter).await[0]
    };
    assert_eq!(left(&of(Unsettled::Refund), None).await, 100);
    assert_eq!(left(&of(Unsettled::Refund), Some(Unsettled::Keep)).await, 40);
    assert_eq!(left(&of(Unsettled::Keep), None).await, 40);
    assert_eq!(left(&of(Unsettled::Keep), Some(Unsettled::Refund)).await, 100);
    // The limiter of a layer has the rule of the layer.
    let limits = builder(memory()).unsettled(Unsettled::Refund).build().unwrap();
    drop(limits.limiter().reserve((alice(), 6)).await.unwrap());
    assert_eq!(limits.limiter().peek((alice(), 0)).await.unwrap().statuses()[0].remaining(), 100);
}

#[tokio::test]
async fn rejection_by_inner_layer_refunds_reservation() {
    let denying = RateLimitLayer::builder(memory()).policy(policy("inner", 1, MINUTE)).key(api_key());
    let app = unsettled(Arc::default()).layer(denying.build().unwrap());
    let (site, limiter) = serve(builder(memory()).unsettled(Unsettled::Refund), app).await;
    for status in [200, 429, 429] {
        assert_eq!(site.get("/dropped", &[ALICE]).await.status, status);
        wait_for(&limiter, &[100, 10]).await;
    }
}

/// An app that uses 150 tokens.
fn greedy() -> Router {
    let used = async |reservation: Option<Reservation>| {
        if let Some(reservation) = reservation {
            drop(reservation.settle(Costs::new().policy("tokens", 150).policy("cents", 70)));
        }
    };
    Router::new().route("/", get(used))
}

#[tokio::test]
async fn clamped_estimate_is_charged_with_overage() {
    let (clock, backend) = (ManualClock::new(), MemoryBackend::new());
    let backend = backend.with_clock(&clock);
    let limits = builder(backend).cost(Costs::new().policy("tokens", 500)).clamp_estimates();
    let (site, limiter) = serve(limits, greedy()).await;
    let answer = site.get("/", &[ALICE]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("ratelimit"), Some(r#""tokens";r=0;t=60, "requests";r=9;t=60"#));
    clock.advance(30 * SECOND);
    // The charge of 100 units and the overage of 50 units leave the window together, 60 s after the request.
    assert_eq!(left(&limiter).await, [0, 9]);
    let denied = site.get("/", &[ALICE]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("30")));
    clock.advance(30 * SECOND);
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    // A clamped estimate needs the whole quota.
    assert!(limiter.check(alice()).await.unwrap().statuses()[0].remaining() == 0);
}

#[tokio::test]
async fn layer_clamps_estimates_over_shared_limiter() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).build().unwrap();
    let limits = RateLimitLayer::builder(limiter.clone()).key(api_key()).cost(500).settle_by(by_hand);
    let app = Router::new().route("/", get(async || "done"));
    let site = Site::serve(app.layer(limits.clamp_estimates().build().unwrap())).await;
    assert!(limiter.reserve((alice(), 500)).await.is_err(), "the limiter itself does not clamp");
    assert_eq!(site.get("/", &[ALICE]).await.status, 200);
    assert_eq!(left(&limiter).await, [0]);
}

#[tokio::test]
async fn clamping_applies_to_further_limits() {
    let further = |units| limit(header("x-user").unwrap()).policy(policy("cents", 50, MINUTE)).cost(units);
    let (site, _) = serve(builder(memory()).also(further(80)).clamp_estimates(), greedy()).await;
    let headers = [ALICE, ("x-user", "al")];
    let answer = site.get("/", &headers).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.header("ratelimit").unwrap().contains(r#""cents";r=0"#), "{answer:?}");
    assert_eq!(site.get("/", &headers).await.status, 429);
}

/// A client reserves no more of a quota that it shares than its own quota permits.
#[tokio::test]
async fn smallest_quota_clamps_equal_costs() {
    let shared = PartitionKey::new("all", "");
    let limiter = Limiter::builder(memory()).without_policies().clamp_estimates().build().unwrap();
    let tokens = policy("tokens", 100, MINUTE);
    let in_flight = Policy::in_flight("open", 5).unwrap();
    let both =
        [Pair::new(alice(), in_flight, 5_000), Pair::new(alice(), policy("all", 10_000, MINUTE), 5_000)];
    let reservation = limiter.reserve(both).await.unwrap();
    let costs = reservation.decision().unwrap().statuses().iter().map(Status::cost);
    assert_eq!(costs.collect::<Vec<_>>(), [5, 5_000], "units in flight are no amount of tokens");
    // An equal cost of another policy, another cost, and a policy that a shadow must not affect.
    for (name, cost, is_shadow, charged) in
        [("equal", 5_000, false, 100), ("other", 4_000, false, 4_000), ("shadow", 5_000, true, 5_000)]
    {
        let tokens = if is_shadow { tokens.clone().shadow() } else { tokens.clone() };
        let key = PartitionKey::new("user", name);
        let pairs =
            [Pair::new(key, tokens, 5_000), Pair::new(shared.clone(), policy(name, 10_000, MINUTE), cost)];
        let reservation = limiter.reserve(pairs).await.unwrap();
        let statuses = reservation.decision().unwrap().statuses();
        assert_eq!((statuses[0].cost(), statuses[1].cost()), (100, charged), "{name}");
    }
}

#[tokio::test]
async fn unclamped_cost_above_quota_is_never_admitted() {
    let estimate = |builder: RateLimitLayerBuilder| builder.cost_by(|_| Costs::new().policy("tokens", 500));
    let plain = || {
        let builder = RateLimitLayer::builder(memory()).policy(policy("tokens", 100, MINUTE)).key(api_key());
        estimate(builder)
    };
    let planned = |draft: fn(Draft) -> Draft| {
        let builder = RateLimitLayer::builder(memory()).policy(policy("tokens", 100, MINUTE));
        builder.plan_by(move |_| draft(Draft::check(alice(), 500))).clamp_estimates()
    };
    for (name, limits, status) in [
        ("a reservation without clamping", estimate(builder(memory())), 429),
        ("a plain charge with clamping", plain().clamp_estimates(), 429),
        ("a plain draft with clamping", planned(|draft| draft), 429),
        ("a reservation with clamping", estimate(builder(memory())).clamp_estimates(), 200),
        ("a draft that reserves with clamping", planned(Draft::reserve), 200),
    ] {
        let (site, limiter) = serve(limits, Router::new().route("/", get(async || "done"))).await;
        let answer = request(site.address(), "GET", "/", &[ALICE]).await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, None), "{name}");
        assert_eq!(left(&limiter).await[0], if status == 200 { 0 } else { 100 }, "{name}");
        // The methods of the limiter that do not reserve are not affected.
        assert!(limiter.admit((alice(), 500)).await.is_err(), "{name}");
    }
}

#[test]
fn constant_estimate_above_quota_requires_clamping() {
    let with_cost = |builder: RateLimitLayerBuilder| builder.cost(Costs::new().policy("tokens", 500));
    let plain = || RateLimitLayer::builder(memory()).policy(policy("tokens", 100, MINUTE)).key(api_key());
    let further = || limit(api_key()).policy(policy("cents", 50, MINUTE)).cost(80);
    let is_error =
        |builder: RateLimitLayerBuilder| matches!(builder.build(), Err(ConfigError::CostAboveQuota { .. }));
    assert!(is_error(with_cost(builder(memory()))));
    assert!(is_error(builder(memory()).also(further())));
    // Without reservations, there is no estimate.
    assert!(is_error(with_cost(plain()).clamp_estimates()));
    assert!(!is_error(with_cost(builder(memory())).also(further()).clamp_estimates()));
    let limiter =
        Limiter::builder(memory()).policy(policy("tokens", 100, MINUTE)).clamp_estimates().build().unwrap();
    let shared = || RateLimitLayer::builder(limiter.clone()).key(api_key()).cost(500);
    assert!(is_error(shared()));
    assert!(!is_error(shared().settle_by(by_hand)));
}
