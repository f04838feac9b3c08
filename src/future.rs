//! One request in progress.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    layer_core::LocalCore,
    limiter::{Admission, Admitting, Rejection},
    protocol::{Http, Protocol},
    when_denied::{DenyAtOnce, WhenDenied},
};
pub use crate::{limiter::LimiterFuture, settle::Settlement};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service. It resolves to the response of the inner service or of the
    /// layer.
    ///
    /// If it is dropped while the check is in progress or waits, the inner service is not called, and the charge may stand. If it is
    /// dropped while the inner service runs, the charge stands or is refunded, as
    /// [`Unsettled`](crate::settle::Unsettled) states, unless the inner service has taken the reservation and settles it elsewhere.
    pub struct ResponseFuture<S, Req, P = Http, W = DenyAtOnce>
    where
        S: Service<Req>,
        W: WhenDenied,
        P: Protocol<Req, S::Response, W::Error<S::Error>>,
    {
        #[pin]
        progress: Progress<S, Req, S::Future, P, Result<P::Response, W::Error<S::Error>>>,
    }
}

pin_project! {
    #[project = ProgressProj]
    enum Progress<S, Req, F, P, T> {
        /// The check is in progress. The ready inner service and the request are kept, until they are taken.
        Checking { admitting: Admitting, kept: Option<(S, Req)>, core: LocalCore<P> },
        /// The inner service runs.
        Running {
            #[pin]
            running: F,
            core: LocalCore<P>,
            // None for an exempt request.
            admission: Option<Admission>,
        },
        /// The layer has rejected the request.
        Rejected { result: Option<T> },
    }
}

impl<S, Req, P, W> ResponseFuture<S, Req, P, W>
where
    S: Service<Req>,
    W: WhenDenied,
    P: Protocol<Req, S::Response, W::Error<S::Error>>,
{
    /// Continues with the inner service. Without an admission, the request is exempt.
    pub(crate) fn running(future: S::Future, core: LocalCore<P>, admission: Option<Admission>) -> Self {
        Self { progress: Progress::Running { running: future, core, admission } }
    }

    pub(crate) fn checking(admitting: Admitting, inner: S, request: Req, core: LocalCore<P>) -> Self {
        Self { progress: Progress::Checking { admitting, kept: Some((inner, request)), core } }
    }

    pub(crate) fn rejected(protocol: &P, request: &Req, rejection: Rejection) -> Self {
        Self { progress: Progress::Rejected { result: Some(protocol.reject(request, rejection)) } }
    }
}

impl<S, Req, P, W> Future for ResponseFuture<S, Req, P, W>
where
    S: Service<Req>,
    W: WhenDenied,
    P: Protocol<Req, S::Response, W::Error<S::Error>>,
{
    type Output = Result<P::Response, W::Error<S::Error>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project().progress.project() {
                ProgressProj::Checking { admitting, kept, core } => {
                    let outcome = ready!(Pin::new(admitting).poll(cx));
                    let Some((mut inner, mut request)) = kept.take() else { return Poll::Pending };
                    core.responded(Some(&outcome), || core.protocol.route(&request));
                    match outcome {
                        Ok(admission) => {
                            core.protocol.admit(&mut request, &admission);
                            let running = Self::running(inner.call(request), core.clone(), Some(admission));
                            // As the value of the block, it would leak if this drop panics, and with it the admission.
                            drop(inner);
                            running
                        }
                        Err(rejection) => {
                            // If readiness is a permit, it is returned first.
                            drop(inner);
                            Self::rejected(&core.protocol, &request, rejection)
                        }
                    }
                }
                ProgressProj::Running { running, core, admission } => {
                    let result = ready!(running.poll(cx)).map_err(W::inner_error).map(|response| {
                        let stated = admission.as_ref().and_then(|_| core.protocol.stated(&response));
                        let response = core.protocol.respond(response, admission.as_ref());
                        // The answer states what remains after the settlement.
                        if let Some(stated) = stated
                            && let Some(admission) = admission.take()
                        {
                            core.limiter.learn_in_background(admission, &stated);
                        }
                        response
                    });
                    // The caller may keep the completed future. It then holds neither units nor the reservation.
                    *admission = None;
                    return Poll::Ready(result);
                }
                ProgressProj::Rejected { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
            };
            self.set(next);
        }
    }
}

impl<S, Req, P, W> fmt::Debug for ResponseFuture<S, Req, P, W>
where
    S: Service<Req>,
    W: WhenDenied,
    P: Protocol<Req, S::Response, W::Error<S::Error>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
