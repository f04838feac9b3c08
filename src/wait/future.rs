//! One request that waits.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::error::WaitError;
use crate::{
    limiter::{Admission, WaitFuture},
    protocol::Protocol,
    shared::Shared,
};

pin_project! {
    /// The future of a [`WaitService`](super::WaitService). It resolves to the response of the inner service, or to an error.
    ///
    /// If it is dropped while the request waits, the request leaves its queue, and the inner service is not called.
    #[must_use = "a request does not wait unless the future is awaited"]
    pub struct ResponseFuture<S, Req, P>
    where
        S: Service<Req>,
        P: Protocol<Req, S::Response, WaitError<S::Error>>,
    {
        #[pin]
        state: State<S, Req, S::Future, P, Result<P::Response, WaitError<S::Error>>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F, P, T> {
        /// The request waits. It and the ready inner service are kept, until they are taken.
        Waiting { waiting: WaitFuture, kept: Option<(S, Req)>, shared: Arc<Shared<P>> },
        /// The inner service runs.
        Running {
            #[pin]
            running: F,
            shared: Arc<Shared<P>>,
            // None for an exempt request.
            admission: Option<Admission>,
        },
        /// The request is rejected.
        Rejected { result: Option<T> },
    }
}

impl<S, Req, P> ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, WaitError<S::Error>>,
{
    pub(super) fn waiting(waiting: WaitFuture, inner: S, request: Req, shared: Arc<Shared<P>>) -> Self {
        Self { state: State::Waiting { waiting, kept: Some((inner, request)), shared } }
    }

    pub(super) fn running(running: S::Future, shared: Arc<Shared<P>>, admission: Option<Admission>) -> Self {
        Self { state: State::Running { running, shared, admission } }
    }
}

impl<S, Req, P> Future for ResponseFuture<S, Req, P>
where
    S: Service<Req>,
    P: Protocol<Req, S::Response, WaitError<S::Error>>,
{
    type Output = Result<P::Response, WaitError<S::Error>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project().state.project() {
                StateProj::Waiting { waiting, kept, shared } => {
                    let outcome = ready!(Pin::new(waiting).poll(cx));
                    let Some((mut inner, mut request)) = kept.take() else { return Poll::Pending };
                    shared.responded(Some(&outcome), || shared.protocol.route(&request));
                    match outcome {
                        Ok(admission) => {
                            shared.protocol.admit(&mut request, &admission);
                            Self::running(inner.call(request), shared.clone(), Some(admission))
                        }
                        Err(rejection) => {
                            // If readiness is a permit, it is returned first.
                            drop(inner);
                            let result = shared.protocol.reject(&request, rejection);
                            Self { state: State::Rejected { result: Some(result) } }
                        }
                    }
                }
                StateProj::Running { running, shared, admission } => {
                    let response = ready!(running.poll(cx)).map_err(WaitError::Inner)?;
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
    P: Protocol<Req, S::Response, WaitError<S::Error>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
