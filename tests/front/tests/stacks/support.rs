//! Limits, requests and servers.

use std::{fmt, future::poll_fn, iter::repeat_n, net::SocketAddr, time::Duration};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::BodyExt;
use tokio::{net::TcpListener, task::JoinHandle};
use tower::Service;
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, RateLimitLayer,
    RateLimitLayerBuilder, Wait,
    backend::{Backend, BackendError, Check, Refund},
    testing::{FakeAnswer, FakeBackend, ManualClock},
};

/// Longer than any test: no result depends on it.
pub const MINUTE: Duration = Duration::from_secs(60);

pub fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, MINUTE).unwrap()
}

/// A backend that asks for one more poll before it answers.
pub struct Later<B>(pub B);

impl<B: Backend> Backend for Later<B> {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        tokio::task::yield_now().await;
        self.0.check(check).await
    }

    fn changes_charges(&self) -> bool {
        self.0.changes_charges()
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        tokio::task::yield_now().await;
        self.0.refund(refund).await
    }
}

/// A memory whose clock stands still.
pub fn memory() -> MemoryBackend {
    MemoryBackend::new().with_clock(&ManualClock::new())
}

/// Admits the first check and denies the second, again and again.
pub fn alternating() -> FakeBackend {
    let both = [FakeAnswer::Admit, FakeAnswer::Deny(Wait::For(MINUTE))];
    FakeBackend::scripted(repeat_n(both, 100).flatten())
}

/// The verdicts on four requests of one client, for each kind of backend. The quota is 2.
const VERDICTS: [[bool; 4]; 3] =
    [[true, true, false, false], [true, false, true, false], [true, false, true, false]];

/// Limiters over each kind of backend, and their verdicts on four requests of one client.
pub fn limiters() -> impl Iterator<Item = (Limiter, [bool; 4])> {
    let build =
        |builder: LimiterBuilder| builder.policy(policy("burst", 2)).deadline(MINUTE).build().unwrap();
    let limiters =
        [Limiter::builder(memory()), Limiter::builder(alternating()), Limiter::builder(Later(alternating()))];
    limiters.map(build).into_iter().zip(VERDICTS)
}

/// Builders of layers over each kind of backend, and their verdicts on four requests.
pub fn builders() -> impl Iterator<Item = (RateLimitLayerBuilder, [bool; 4])> {
    let all = PartitionKey::new("service", "stacks");
    limiters().map(move |(limiter, verdicts)| {
        let key = all.clone();
        (RateLimitLayer::builder(limiter).key_by(move |_| key.clone()), verdicts)
    })
}

pub fn layers() -> impl Iterator<Item = (RateLimitLayer, [bool; 4])> {
    builders().map(|(builder, verdicts)| (builder.build().unwrap(), verdicts))
}

/// A layer that admits everything.
pub fn admitting() -> RateLimitLayer {
    RateLimitLayer::builder(FakeBackend::admitting())
        .policy(policy("outer", 100))
        .key_by(|_| PartitionKey::new("service", "stacks"))
        .build()
        .unwrap()
}

pub async fn hello() -> &'static str {
    "hello"
}

pub fn request() -> Request<Body> {
    Request::get("/").body(Body::empty()).unwrap()
}

/// Builds a stack over each kind of backend, and sends four requests through it.
pub async fn each<S, B>(stack: impl Fn(RateLimitLayer) -> S)
where
    S: Service<Request<Body>, Response = Response<B>, Error: fmt::Debug>,
    B: http_body::Body<Data = Bytes, Error: fmt::Debug>,
{
    for (limits, verdicts) in layers() {
        let mut service = stack(limits);
        for is_admitted in verdicts {
            poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
            verify(service.call(request()).await.unwrap(), is_admitted).await;
        }
    }
}

/// Verifies the response of the handler or of the layer, up to the end of its body.
pub async fn verify<B>(response: Response<B>, is_admitted: bool)
where
    B: http_body::Body<Data = Bytes, Error: fmt::Debug>,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    assert!(head.headers.contains_key("ratelimit"));
    assert_eq!(head.headers.contains_key(header::RETRY_AFTER), !is_admitted);
    if is_admitted {
        assert_eq!((head.status.as_u16(), &*body), (200, b"hello".as_slice()));
    } else {
        assert_eq!(head.status.as_u16(), 429);
        assert_eq!(head.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["status"], 429);
    }
}

/// A server on the loopback address, until it is dropped.
pub struct Site {
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Site {
    pub async fn serve(app: Router) -> Self {
        Self::spawn(async |listener| axum::serve(listener, app).await.unwrap()).await
    }

    /// Spawns a server on a free port.
    pub async fn spawn<F>(server: impl FnOnce(TcpListener) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { address: listener.local_addr().unwrap(), server: tokio::spawn(server(listener)) }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A client that ignores the proxies of the environment.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}
