//! An inner service that tells how it was treated.

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

/// An inner service that counts its calls and clones, and panics if it is called without having been made ready.
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
    /// A probe, and one on the same counts to look at them.
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
    /// A clone is never ready, as `tower::Service` says.
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

/// A request with the API key of `user`.
pub fn request_of(user: &str) -> Request<()> {
    Request::get("/").header("x-api-key", user).body(()).unwrap()
}

/// Whether a service is ready now.
pub async fn is_ready<S, Req>(service: &mut S) -> bool
where
    S: Service<Req>,
{
    poll_fn(|cx| Poll::Ready(matches!(service.poll_ready(cx), Poll::Ready(Ok(()))))).await
}

/// The output of a future that is there when it is first asked for, without a runtime.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not there yet"),
    }
}

#[test]
#[should_panic(expected = "without having been made ready")]
fn a_clone_of_a_ready_probe_is_not_ready() {
    let (mut probe, _) = Probe::new();
    assert!(now(is_ready(&mut probe)));
    drop(probe.clone().call(request_of("alice")));
}
