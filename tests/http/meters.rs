//! Meters in streamed bodies, over sockets.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::pin,
    sync::Arc,
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
    Builder, Costs, Limiter, MemoryBackend, PartitionKey, RateLimitLayer, Reservation,
    backend::{Backend, Pair},
    limit,
    settle::{Settled, by_hand},
    testing::ManualClock,
};

use super::{ALICE, Later, MINUTE, SECOND, api_key, policy, probe::now, wire::Site};

fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// A layer of 100 tokens and 10 requests, with an estimate of 60 tokens and 1 request.
fn builder(backend: impl Backend) -> Builder {
    RateLimitLayer::builder(backend)
        .policy(policy("tokens", 100, MINUTE))
        .policy(policy("requests", 10, MINUTE))
        .key(api_key())
        .cost(Costs::new().policy("tokens", 60))
        .deadline(20 * SECOND)
        .settle_by(by_hand)
}

/// Serves an app behind these limits.
async fn serve(limits: Builder, app: Router) -> (Site, Limiter) {
    let limits = limits.build().unwrap();
    let limiter = limits.limiter().clone();
    (Site::serve(app.layer(limits)).await, limiter)
}

fn alice() -> PartitionKey {
    PartitionKey::new("header:x-api-key", "alice")
}

/// Returns what is left of the quotas, in the order of the policies.
async fn left(limiter: &Limiter) -> Vec<u32> {
    let decision = limiter.peek(alice(), 0).await.unwrap();
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

/// Waits until this is left of the quotas.
async fn wait_for(limiter: &Limiter, expected: &[u32]) {
    let start = Instant::now();
    while left(limiter).await != expected {
        let left = left(limiter).await;
        assert!(start.elapsed() < 10 * SECOND, "{left:?} instead of {expected:?}");
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
    timeout(10 * SECOND, reading).await.expect(text);
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
    let (site, limiter) = serve(builder(memory()), chunks(0)).await;
    let mut stream = send(&site, "/").await;
    read_until(&mut stream, "\r\n\r\n").await;
    drop(stream);
    wait_for(&limiter, &[40, 9]).await;
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
        limiter.peek_pairs([pair]).unwrap().await.unwrap().statuses()[0].remaining()
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
    let remaining = || now(limiter.peek(alice(), 0)).unwrap().statuses()[0].remaining();
    let reservation = now(limiter.reserve(alice(), 60)).unwrap();
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
    let remaining = || now(limiter.peek(alice(), 0)).unwrap().statuses()[0].remaining();
    let reservation = now(limiter.reserve(alice(), 60)).unwrap();
    let (meter, other) = (reservation.meter(), reservation.meter());
    meter.add(30);
    assert!(matches!(now(meter.settle()), Settled::Done { .. }));
    assert_eq!(remaining(), 70);
    other.add(30);
    assert!(matches!(now(other.settle()), Settled::Already));
    assert_eq!(remaining(), 70);
    // Without additions, the estimate is the amount used.
    let reservation = now(limiter.reserve(alice(), 60)).unwrap();
    assert!(matches!(now(reservation.meter().settle()), Settled::Done { .. }));
    assert_eq!((remaining(), reservation.is_settled()), (10, true));
}

#[test]
fn additions_saturate_at_largest_amount() {
    let limiter = Limiter::builder(memory()).policy(policy("tokens", u32::MAX, MINUTE)).build().unwrap();
    let meter = now(limiter.reserve(alice(), 1)).unwrap().meter();
    for _ in 0..3 {
        meter.add(u32::MAX - 1);
    }
    assert_eq!(meter.added("tokens"), Some(u32::MAX));
    drop(meter);
    assert_eq!(now(limiter.peek(alice(), 0)).unwrap().statuses()[0].remaining(), 0);
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
    let reservation = limiter.reserve(alice(), 60).await.unwrap();
    let metered = reservation.meter().body(Body::from("seven b"), |data: &Bytes| data.len() as u32);
    assert_eq!((metered.size_hint().exact(), metered.is_end_stream()), (Some(7), false));
    assert_eq!(axum::body::to_bytes(Body::new(metered), 100).await.unwrap(), "seven b");
    assert_eq!(left(&limiter).await, [93]);
    // The end of the stream settles, even if the body is not dropped yet.
    for pieces in [vec![Ok("piece")], vec![Ok("piece"), Err(std::io::Error::other("intended error"))]] {
        let reservation = limiter.reserve(alice(), 1).await.unwrap();
        let body = Body::from_stream(stream::iter(pieces));
        let mut metered = pin!(reservation.meter().body(body, |data: &Bytes| data.len() as u32));
        let mut next = async || poll_fn(|cx| metered.as_mut().poll_frame(cx)).await;
        assert!(matches!(next().await, Some(Ok(frame)) if frame.is_data()));
        assert!(!reservation.is_settled());
        assert!(!matches!(next().await, Some(Ok(_))));
        assert!(reservation.is_settled());
    }
}
