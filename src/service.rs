//! The service: plans the check of a request, starts it, and takes the ready inner service along.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    future::{AdmitFuture, ResponseFuture},
    now_or_later::NowOrLater,
    protocol::{Http, Protocol},
    shared::Shared,
    wait::{DenyAtOnce, WhenDenied},
};

/// A rate limited service. Made by [`RateLimitLayer`](crate::RateLimitLayer) and [`WaitLayer`](crate::wait::WaitLayer).
///
/// It is ready when the inner service is. The inner service receives the admitted requests, and no others. `W` states what happens to
/// denied ones.
pub struct RateLimit<S, P = Http, W = DenyAtOnce> {
    inner: S,
    shared: Arc<Shared<P>>,
    when_denied: W,
}

impl<S, P, W> RateLimit<S, P, W> {
    pub(crate) fn new(inner: S, shared: Arc<Shared<P>>, when_denied: W) -> Self {
        Self { inner, shared, when_denied }
    }
}

impl<S: Clone, P, W> RateLimit<S, P, W> {
    /// Takes the inner service that `poll_ready` has made ready, and leaves a clone that is not ready yet.
    ///
    /// Calling the clone would be wrong: readiness may be a permit, which a clone does not have. If the request is rejected,
    /// dropping the ready service returns the permit.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S, P, W, Req> Service<Req> for RateLimit<S, P, W>
where
    S: Service<Req> + Clone,
    W: WhenDenied,
    P: Protocol<Req, S::Response, W::Error<S::Error>>,
{
    type Response = P::Response;
    type Error = W::Error<S::Error>;
    type Future = ResponseFuture<S, Req, P, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(W::inner_error)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let Shared { limiter, protocol, .. } = &*self.shared;
        let outcome = match self.when_denied.start(limiter, protocol.plan(&request)) {
            None => {
                self.shared.responded(None, || protocol.route(&request));
                return ResponseFuture::running(self.inner.call(request), self.shared.clone(), None);
            }
            // Decided at once: the ready service need not be moved into the future, which saves a clone.
            Some(AdmitFuture(NowOrLater::Now(Some(outcome)))) => outcome,
            Some(admitting) => {
                let inner = self.take_ready();
                return ResponseFuture::checking(admitting, inner, request, self.shared.clone());
            }
        };
        self.shared.responded(Some(&outcome), || protocol.route(&request));
        match outcome {
            Ok(admission) => {
                protocol.admit(&mut request, &admission);
                ResponseFuture::running(self.inner.call(request), self.shared.clone(), Some(admission))
            }
            Err(rejection) => {
                // First of all: if building the response panics, the permit is returned.
                drop(self.take_ready());
                ResponseFuture::rejected(&self.shared.protocol, &request, rejection)
            }
        }
    }
}

impl<S: Clone, P, W: Clone> Clone for RateLimit<S, P, W> {
    fn clone(&self) -> Self {
        let Self { inner, shared, when_denied } = self;
        Self { inner: inner.clone(), shared: shared.clone(), when_denied: when_denied.clone() }
    }
}

impl<S: fmt::Debug, P, W: fmt::Debug> fmt::Debug for RateLimit<S, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.shared.limiter)
            .field("when_denied", &self.when_denied)
            .finish_non_exhaustive()
    }
}
