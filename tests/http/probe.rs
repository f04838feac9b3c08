//! An inner service that records how the layer uses it.

use std::{
    convert::Infallible,
    future::{self, Future, Ready, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use tower::Service;

/// An inner service that counts its calls and clones, and panics if a caller skips `poll_ready`.
#[derive(Debug, Default)]
pub struct Probe {
    ready: bool,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicUsize,
    clones: AtomicUsize,
}

impl Probe {
    /// Returns a probe, and a second one that reads the same counts.
    pub fn new() -> (Self, Self) {
        let counts = Arc::new(Counts::default());
        (Self { ready: false, counts: counts.clone() }, Self { ready: false, counts })
    }

    pub fn calls(&self) -> usize {
        self.counts.calls.load(SeqCst)
    }

    pub fn clones(&self) -> usize {
        self.counts.clones.load(SeqCst)
    }
}

impl Clone for Probe {
    /// Returns a clone that is not ready, as `tower::Service` requires.
    fn clone(&self) -> Self {
        self.counts.clones.fetch_add(1, SeqCst);
        Self { ready: false, counts: self.counts.clone() }
    }
}

impl Service<Request<()>> for Probe {
    type Response = Response<Bytes>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Bytes>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been made ready");
        self.counts.calls.fetch_add(1, SeqCst);
        future::ready(Ok(Response::new(Bytes::new())))
    }
}

/// Returns a request with the API key of `user`.
pub fn request_of(user: &str) -> Request<()> {
    Request::get("/").header("x-api-key", user).body(()).unwrap()
}

/// Returns whether a service is ready.
pub async fn is_ready<S, Req>(service: &mut S) -> bool
where
    S: Service<Req>,
{
    poll_fn(|cx| Poll::Ready(matches!(service.poll_ready(cx), Poll::Ready(Ok(()))))).await
}

/// Returns the output of a future that is ready at its first poll, without a runtime.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

#[test]
#[should_panic(expected = "without having been made ready")]
fn clone_of_ready_probe_loses_readiness() {
    let (mut probe, _) = Probe::new();
    assert!(now(is_ready(&mut probe)));
    drop(probe.clone().call(request_of("alice")));
}
