//! One request in progress.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    limiter::{Admission, Asking, Rejection},
    protocol::{Http, Protocol},
    shared::Shared,
};
pub use crate::{
    limiter::{AdmitFuture, CheckFuture, ReserveFuture, ResetFuture, WaitFuture},
    settle::Settlement,
    wait::ResponseFuture as WaitResponseFuture,
};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service. It resolves to the response of the inner service or of the
    /// layer.
    ///
    /// If it is dropped while the check is in progress, the inner service is not called, and the charge may stand. If it is
    /// dropped while the inner service runs, the charge stands or is refunded, as
    /// [`Unsettled`](crate::settle::Unsettled) states, unless the inner service has taken the reservation and settles it elsewhere.
    pub struct ResponseFuture<S, Req, P = Http>
    where
        S: Service<Req>,
        P: Protocol<Req, S::Response, S::Error>,
    {
        #[pin]
        state: State<S, Req, S::Future, P, Result<P::Response, S::Error>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F, P, T> {
        /// The check is in progress. The ready inner service and the request wait, until they are taken.
        Checking { asking: Asking, waiting: Option<(S, Req)>, shared: Arc<Shared<P>> },
        /// The inner service runs.
        Running {
            #[pin]
            running: F,
            shared: Arc<Shared<P>>,
            // None for an exempt request.
            admission: Option<Admission>,
        },
        /// The layer has rejected the request.
        Rejected { result: Option<T> },
    }
}

impl<S, Req, P> ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, S::Error>,
{
    pub(crate) fn exempt(running: S::Future, shared: Arc<Shared<P>>) -> Self {
        Self { state: State::Running { running, shared, admission: None } }
    }

    pub(crate) fn admitted(running: S::Future, shared: Arc<Shared<P>>, admission: Admission) -> Self {
        Self { state: State::Running { running, shared, admission: Some(admission) } }
    }

    pub(crate) fn checking(asking: Asking, inner: S, request: Req, shared: Arc<Shared<P>>) -> Self {
        Self { state: State::Checking { asking, waiting: Some((inner, request)), shared } }
    }

    pub(crate) fn rejected(protocol: &P, request: &Req, rejection: Rejection) -> Self {
        Self { state: State::Rejected { result: Some(protocol.reject(request, rejection)) } }
    }
}

impl<S, Req, P> Future for ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, S::Error>,
{
    type Output = Result<P::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project().state.project() {
                StateProj::Checking { asking, waiting, shared } => {
                    let outcome = ready!(Pin::new(asking).poll(cx));
                    let Some((mut inner, mut request)) = waiting.take() else { return Poll::Pending };
                    shared.responded(Some(&outcome), || shared.protocol.route(&request));
                    match outcome {
                        Ok(admission) => {
                            shared.protocol.admit(&mut request, &admission);
                            Self::admitted(inner.call(request), shared.clone(), admission)
                        }
                        Err(rejection) => Self::rejected(&shared.protocol, &request, rejection),
                    }
                }
                StateProj::Running { running, shared, admission } => {
                    let response = ready!(running.poll(cx))?;
                    return Poll::Ready(Ok(shared.protocol.respond(response, admission.as_ref())));
                }
                StateProj::Rejected { result } => return result.take().map_or(Poll::Pending, Poll::Ready),
            };
            self.set(next);
        }
    }
}

impl<S, Req, P> fmt::Debug for ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
