//! The service: takes key and cost from a request, starts the check, and takes the inner service along.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    future::ResponseFuture,
    limiter::{Limiter, Verdict},
    plan::Plan,
    respond::{Http, Refusal, Respond},
};

/// A service whose requests are limited; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the inner service is. The inner service is called for requests that are admitted, and for no others.
pub struct RateLimit<S, P, R = Http> {
    inner: S,
    limiter: Limiter,
    plan: Arc<P>,
    respond: Arc<R>,
}

impl<S, P, R> RateLimit<S, P, R> {
    pub(crate) fn new(inner: S, limiter: Limiter, plan: Arc<P>, respond: Arc<R>) -> Self {
        Self { inner, limiter, plan, respond }
    }
}

impl<S: Clone, P, R> RateLimit<S, P, R> {
    /// Takes the inner service that `poll_ready` has made ready, and leaves a clone that has yet to become it. Calling
    /// the clone would be wrong: readiness may be a permit, which a clone does not have. And if the request is refused,
    /// dropping what was ready gives the permit back.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    fn refuse<Req>(&mut self, request: &Req, refusal: Refusal) -> ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
        R: Respond<Req, S::Response, S::Error>,
    {
        drop(self.take_ready());
        ResponseFuture::refused(&*self.respond, request, refusal)
    }
}

impl<S, P, R, Req> Service<Req> for RateLimit<S, P, R>
where
    S: Service<Req> + Clone,
    P: Plan<Req>,
    R: Respond<Req, S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, Req, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let (check, rule) = match self.plan.plan(&request) {
            Ok(draft) => match (draft.outage, self.limiter.draft(draft)) {
                (rule, Ok(Some(check))) => (check, rule),
                (_, Ok(None)) => return ResponseFuture::exempt(self.inner.call(request)),
                (_, Err(error)) => {
                    self.limiter.tell_misconfigured(&error);
                    return self.refuse(&request, Refusal::Misconfigured(Arc::new(error)));
                }
            },
            Err(error) => return self.refuse(&request, Refusal::NoKey(error)),
        };
        match self.limiter.ask(check, self.respond.settles(), rule) {
            // Decided at once: the ready service need not be taken along, which saves a clone.
            Ok(Verdict::Admitted(admission, reservation)) => {
                self.respond.admit(&mut request, &admission, reservation.as_ref());
                let running = self.inner.call(request);
                ResponseFuture::admitted(running, self.respond.clone(), admission, reservation)
            }
            Ok(Verdict::Denied(decision)) => self.refuse(&request, Refusal::Denied(decision)),
            Ok(Verdict::BeyondShare(error)) => self.refuse(&request, Refusal::BeyondShare(error)),
            Ok(Verdict::Unavailable(error)) => self.refuse(&request, Refusal::Unavailable(error)),
            Err(ask) => {
                let inner = self.take_ready();
                ResponseFuture::checking(ask, inner, request, self.respond.clone())
            }
        }
    }
}

impl<S: Clone, P, R> Clone for RateLimit<S, P, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limiter: self.limiter.clone(),
            plan: self.plan.clone(),
            respond: self.respond.clone(),
        }
    }
}

impl<S: fmt::Debug, P, R> fmt::Debug for RateLimit<S, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
