//! Drives a service: one request after another on some threads, or many in flight on a runtime.

use std::{
    convert::Infallible,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Barrier},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
    vec,
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

use crate::{count::counted, keys::KEY, limit::Limit, services::Visitor};

/// The requests in flight while keys use up their quotas.
const WARM_UP_CLIENTS: usize = 64;

/// A load: how many requests, by which clients, on how many keys, after which warm-up.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub limit: Limit,
    /// The number of requests that each client sends.
    pub requests: usize,
    /// The number of requests that are made for each client, at least as many. The cost of making them is in every run of a
    /// difference, whatever number it sends.
    pub made: usize,
    /// Threads in memory, requests in flight on Redis.
    pub clients: usize,
    pub keys: usize,
    /// The number of requests with each key before the measured ones.
    pub warm_up: usize,
}

impl Load {
    /// Makes the requests of each client, each when it is asked for. Clients begin at different keys.
    fn all_requests(&self) -> impl Iterator<Item = impl Iterator<Item = Request<Body>> + Send + 'static> {
        let load = *self;
        (0..load.clients).map(move |client| {
            let first = client * load.keys / load.clients;
            (first..first + load.made).map(move |key| request(key % load.keys))
        })
    }

    /// Returns the number of keys that the measured requests have: fewer than `keys` if one client sends fewer requests.
    fn keys_in_use(&self) -> usize {
        if self.clients == 1 { self.keys.min(self.requests) } else { self.keys }
    }

    fn expects_denials(&self) -> bool {
        self.limit.denies && self.warm_up > 0
    }
}

fn request(key: usize) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let value = format!("key-{key:06}").parse().expect("digits");
    request.headers_mut().insert(KEY, value);
    request
}

/// The number of requests that were admitted, and denied.
#[derive(Default)]
struct Statuses {
    admitted: usize,
    denied: usize,
}

impl Statuses {
    fn add(&mut self, status: StatusCode) {
        match status {
            StatusCode::OK => self.admitted += 1,
            StatusCode::TOO_MANY_REQUESTS => self.denied += 1,
            other => panic!("{other}"),
        }
    }

    /// Panics if a request had another verdict than the load says: then the figure would be that of another scenario.
    fn verify(&self, load: &Load) {
        let unexpected = if load.expects_denials() { self.admitted } else { self.denied };
        assert!(unexpected == 0, "{} admitted, {} denied, in {load:?}", self.admitted, self.denied);
    }
}

/// Calls a service whose futures are ready when they are polled first.
fn call_now<S, B>(service: &mut S, request: Request<Body>) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    match pin!(service.call(request)).poll(&mut cx) {
        Poll::Ready(Ok(response)) => response.status(),
        Poll::Pending => panic!("a service in memory waits"),
    }
}

/// Sends each of these requests after the response to the last one.
fn send_all<S, B>(service: &mut S, requests: impl Iterator<Item = Request<Body>>) -> Statuses
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut statuses = Statuses::default();
    for request in requests {
        statuses.add(call_now(service, request));
    }
    statuses
}

/// Drives a service in memory on threads. Returns the time for each request of a thread.
pub struct Threads(pub Load);

impl Visitor for Threads {
    type Output = Duration;

    fn visit<S, B>(self, mut service: S) -> Duration
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        let load = self.0;
        for _ in 0..load.warm_up {
            send_all(&mut service, (0..load.keys).map(request));
        }
        let start = Arc::new(Barrier::new(load.clients));
        let threads: Vec<_> = load
            .all_requests()
            .map(|requests| {
                let (mut service, start) = (service.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    let started = Instant::now();
                    let statuses = send_all(&mut service, requests);
                    let took = started.elapsed();
                    statuses.verify(&load);
                    took
                })
            })
            .collect();
        let took = threads.into_iter().map(|thread| thread.join().expect("no panic")).max();
        took.unwrap_or_default() / load.requests as u32
    }
}

/// Drives a service in memory under valgrind, on this thread. Leaks the service, whose memory can then be counted at the end.
pub struct Counted(pub Load);

impl Visitor for Counted {
    type Output = ();

    fn visit<S, B>(self, mut service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        let load = self.0;
        for _ in 0..load.warm_up {
            send_all(&mut service, (0..load.keys).map(request));
        }
        for requests in load.all_requests() {
            let mut statuses = Statuses::default();
            for (number, request) in requests.enumerate() {
                if number < load.requests {
                    statuses.add(counted(|| call_now(&mut service, request)));
                }
            }
            statuses.verify(&load);
        }
        mem::forget(service);
    }
}

/// What a load on Redis has taken.
pub struct Flight {
    pub took: Duration,
    /// The latency of every request, in ascending order.
    pub latencies: Vec<Duration>,
}

type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The two parts of a load on Redis, to be driven one after the other.
pub struct Phases {
    /// Loads the script by a request with another key. Then sends the requests of the warm-up.
    pub warm_up: LocalFuture<()>,
    pub measured: LocalFuture<Flight>,
}

/// Drives a service on the current runtime: each client sends its next request after its last response.
pub struct InFlight(pub Load);

impl Visitor for InFlight {
    type Output = Phases;

    fn visit<S, B>(self, service: S) -> Phases
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        let load = self.0;
        let made = |requests: Vec<_>| (service.clone(), requests.into_iter());
        let clients = load.all_requests().map(|requests| made(requests.collect())).collect();
        Phases { warm_up: Box::pin(warm_up(load, service)), measured: Box::pin(fly(load, clients)) }
    }
}

async fn send<S, B>(service: &mut S, request: Request<Body>) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    service.ready().await.expect("ready").call(request).await.expect("a response").status()
}

async fn warm_up<S, B>(load: Load, mut service: S)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    send(&mut service, request(load.keys)).await;
    for _ in 0..load.warm_up {
        let mut tasks = JoinSet::new();
        for first in 0..WARM_UP_CLIENTS {
            let mut service = service.clone();
            tasks.spawn(async move {
                for key in (first..load.keys_in_use()).step_by(WARM_UP_CLIENTS) {
                    send(&mut service, request(key)).await;
                }
            });
        }
        tasks.join_all().await;
    }
}

async fn fly<S, B>(load: Load, clients: Vec<(S, vec::IntoIter<Request<Body>>)>) -> Flight
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for (mut service, requests) in clients {
        tasks.spawn(async move {
            let (mut latencies, mut statuses) = (Vec::with_capacity(load.requests), Statuses::default());
            for request in requests.take(load.requests) {
                let started = Instant::now();
                let status = send(&mut service, request).await;
                latencies.push(started.elapsed());
                statuses.add(status);
            }
            statuses.verify(&load);
            latencies
        });
    }
    let mut latencies = Vec::with_capacity(load.clients * load.requests);
    while let Some(client) = tasks.join_next().await {
        latencies.extend(client.expect("no panic"));
    }
    let took = started.elapsed();
    latencies.sort_unstable();
    Flight { took, latencies }
}
