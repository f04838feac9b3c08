//! The service: plans the check of a request, starts it, and takes the ready inner service along.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    future::ResponseFuture,
    now_or_later::NowOrLater,
    protocol::{Http, Protocol},
    shared::Shared,
};

/// A rate limited service. Made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the inner service is. The inner service receives the admitted requests, and no others.
pub struct RateLimit<S, P = Http> {
    inner: S,
    shared: Arc<Shared<P>>,
}

impl<S, P> RateLimit<S, P> {
    pub(crate) fn new(inner: S, shared: Arc<Shared<P>>) -> Self {
        Self { inner, shared }
    }
}

impl<S: Clone, P> RateLimit<S, P> {
    /// Takes the inner service that `poll_ready` has made ready, and leaves a clone that is not ready yet.
    ///
    /// Calling the clone would be wrong: readiness may be a permit, which a clone does not have. If the request is rejected,
    /// dropping the ready service returns the permit.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S, P, Req> Service<Req> for RateLimit<S, P>
where
    S: Service<Req> + Clone,
    P: Protocol<Req, S::Response, S::Error>,
{
    type Response = P::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, Req, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let Shared { limiter, protocol, .. } = &*self.shared;
        let outcome = match protocol.plan(&request) {
            Ok(draft) => match limiter.start(draft) {
                None => {
                    self.shared.responded(None, || protocol.route(&request));
                    return ResponseFuture::exempt(self.inner.call(request), self.shared.clone());
                }
                // Decided at once: the ready service need not be moved into the future, which saves a clone.
                Some(NowOrLater::Now(Some(outcome))) => outcome,
                Some(asking) => {
                    let inner = self.take_ready();
                    return ResponseFuture::checking(asking, inner, request, self.shared.clone());
                }
            },
            Err(error) => Err(limiter.reject_key(error)),
        };
        self.shared.responded(Some(&outcome), || protocol.route(&request));
        match outcome {
            Ok(admission) => {
                protocol.admit(&mut request, &admission);
                ResponseFuture::admitted(self.inner.call(request), self.shared.clone(), admission)
            }
            Err(rejection) => {
                // First of all: if building the response panics, the permit is returned.
                drop(self.take_ready());
                ResponseFuture::rejected(&self.shared.protocol, &request, rejection)
            }
        }
    }
}

impl<S: Clone, P> Clone for RateLimit<S, P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

impl<S: fmt::Debug, P> fmt::Debug for RateLimit<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.shared.limiter)
            .finish_non_exhaustive()
    }
}
