//! Drives a service: one request after another on some threads, or many in flight on a runtime.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{Arc, Barrier},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tower::{Service, ServiceExt};

use crate::subject::{KEY, Visitor};

/// A load: how many requests, by which clients, on how many keys.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The number of requests of each client.
    pub requests: usize,
    /// Threads in memory, requests in flight on Redis.
    pub clients: usize,
    pub keys: usize,
    /// Whether every key has used up its quota before.
    pub is_used_up: bool,
}

impl Load {
    /// Returns the requests of a client. Clients begin at different keys.
    fn requests(&self, client: usize) -> Vec<Request<Body>> {
        (0..self.requests).map(|n| request((client * self.keys / self.clients + n) % self.keys)).collect()
    }
}

fn request(key: usize) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let value = format!("key-{key:06}").parse().expect("digits");
    request.headers_mut().insert(KEY, value);
    request
}

/// Calls a service whose futures are ready when they are polled first.
fn call_now<S, B>(service: &mut S, request: Request<Body>) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    match pin!(service.call(request)).poll(&mut cx) {
        std::task::Poll::Ready(Ok(response)) => response.status(),
        std::task::Poll::Pending => panic!("a service in memory waits"),
    }
}

/// Panics if a request had another outcome than the scenario says: then the figure would be that of another scenario.
fn verify(statuses: [usize; 2], is_used_up: bool) {
    let [admitted, denied] = statuses;
    assert!(if is_used_up { admitted == 0 } else { denied == 0 }, "{admitted} admitted, {denied} denied");
}

fn count(statuses: &mut [usize; 2], status: StatusCode) {
    assert!(status == StatusCode::OK || status == StatusCode::TOO_MANY_REQUESTS, "{status}");
    statuses[usize::from(status == StatusCode::TOO_MANY_REQUESTS)] += 1;
}

/// Drives a service in memory. Returns the time for each request of a thread.
pub struct Sequential(pub Load);

impl Visitor for Sequential {
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
        if load.is_used_up {
            for key in 0..load.keys {
                call_now(&mut service, request(key));
            }
        }
        let start = Arc::new(Barrier::new(load.clients));
        let threads: Vec<_> = (0..load.clients)
            .map(|client| {
                let (mut service, requests, start) = (service.clone(), load.requests(client), start.clone());
                thread::spawn(move || {
                    let mut statuses = [0; 2];
                    start.wait();
                    let started = Instant::now();
                    for request in requests {
                        count(&mut statuses, call_now(&mut service, request));
                    }
                    let took = started.elapsed();
                    verify(statuses, load.is_used_up);
                    took
                })
            })
            .collect();
        let took = threads.into_iter().map(|thread| thread.join().expect("no panic")).max();
        took.unwrap_or_default() / load.requests as u32
    }
}

/// Counts the allocations of requests in memory, on one thread.
pub struct Allocations(pub Load);

impl Visitor for Allocations {
    type Output = f64;

    fn visit<S, B>(self, mut service: S) -> f64
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        let load = self.0;
        for key in 0..load.keys {
            call_now(&mut service, request(key));
        }
        let (requests, mut statuses) = (load.requests(0), [0; 2]);
        let counted = allocation_counter::measure(|| {
            for request in requests {
                count(&mut statuses, call_now(&mut service, request));
            }
        });
        verify(statuses, load.is_used_up);
        counted.count_total as f64 / load.requests as f64
    }
}

/// What a load on Redis has taken.
pub struct Flight {
    pub took: Duration,
    /// The latency of every request, in ascending order.
    pub latencies: Vec<Duration>,
}

/// Drives a service on the current runtime: each client sends its next request after its last reply.
pub struct InFlight(pub Load);

impl InFlight {
    async fn run<S, B>(load: Load, service: S) -> Flight
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        // The first request loads the script: that of another key, unless each key must be used up.
        let mut warm = service.clone();
        for key in if load.is_used_up { 0..load.keys } else { load.keys..load.keys + 1 } {
            let _ = warm.ready().await.expect("ready").call(request(key)).await;
        }
        let clients: Vec<_> =
            (0..load.clients).map(|client| (service.clone(), load.requests(client))).collect();
        let mut tasks = JoinSet::new();
        let started = Instant::now();
        for (mut service, requests) in clients {
            tasks.spawn(async move {
                let (mut latencies, mut statuses) = (Vec::with_capacity(requests.len()), [0; 2]);
                for request in requests {
                    let started = Instant::now();
                    let response =
                        service.ready().await.expect("ready").call(request).await.expect("a response");
                    latencies.push(started.elapsed());
                    count(&mut statuses, response.status());
                }
                verify(statuses, load.is_used_up);
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
}

impl Visitor for InFlight {
    type Output = std::pin::Pin<Box<dyn Future<Output = Flight>>>;

    fn visit<S, B>(self, service: S) -> Self::Output
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        Box::pin(Self::run(self.0, service))
    }
}
