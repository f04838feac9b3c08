//! One request under way.

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
    limiter::{Ask, Verdict},
    outage::Admission,
    respond::{Http, Outcome, Refusal, Respond},
    settle::Reservation,
};

pin_project! {
    /// The answer to one request, of the inner service or of the layer.
    ///
    /// Dropped while the check is under way, the inner service is not called, and the charge may stand. Dropped while the
    /// inner service runs, the charge stands: nothing is settled, unless the inner service has taken the reservation and
    /// settles it elsewhere.
    pub struct ResponseFuture<S, Req, R = Http>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future, R, Result<S::Response, S::Error>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F, R, T> {
        /// The backend is asked. The request and the ready inner service wait, both there until they are taken.
        Checking { ask: Ask, waiting: Option<(S, Req)>, respond: Arc<R> },
        /// The inner service runs.
        Running {
            #[pin]
            running: F,
            // None for a request that is exempt.
            admitted: Option<(Arc<R>, Admission, Option<Reservation>)>,
        },
        /// The layer has answered.
        Refused { answer: Option<T> },
    }
}

impl<S, Req, R> ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    pub(crate) fn exempt(running: S::Future) -> Self {
        Self { state: State::Running { running, admitted: None } }
    }

    pub(crate) fn admitted(
        running: S::Future,
        respond: Arc<R>,
        admission: Admission,
        reservation: Option<Reservation>,
    ) -> Self {
        Self { state: State::Running { running, admitted: Some((respond, admission, reservation)) } }
    }

    pub(crate) fn checking(ask: Ask, inner: S, request: Req, respond: Arc<R>) -> Self {
        Self { state: State::Checking { ask, waiting: Some((inner, request)), respond } }
    }

    pub(crate) fn refused(respond: &R, request: &Req, refusal: Refusal) -> Self
    where
        R: Respond<Req, S::Response, S::Error>,
    {
        let answer = respond.refuse(request, &refusal).map(|mut response| {
            respond.annotate(&mut response, Outcome::Refused(&refusal));
            response
        });
        Self { state: State::Refused { answer: Some(answer) } }
    }
}

impl<S, Req, R> Future for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
    R: Respond<Req, S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project().state.project() {
                StateProj::Checking { ask, waiting, respond } => {
                    let verdict = ready!(ask.poll(cx));
                    let Some((mut inner, mut request)) = waiting.take() else { return Poll::Pending };
                    let refusal = match verdict {
                        Verdict::Admitted(admission, reservation) => {
                            respond.admit(&mut request, &admission, reservation.as_ref());
                            let running = inner.call(request);
                            let admitted = Self::admitted(running, respond.clone(), admission, reservation);
                            self.set(admitted);
                            continue;
                        }
                        Verdict::Denied(decision) => Refusal::Denied(decision),
                        Verdict::BeyondShare(error) => Refusal::BeyondShare(error),
                        Verdict::Unavailable(error) => Refusal::Unavailable(error),
                    };
                    Self::refused(&**respond, &request, refusal)
                }
                StateProj::Running { running, admitted } => {
                    let mut answer = ready!(running.poll(cx));
                    if let (Ok(response), Some((respond, admission, reservation))) = (&mut answer, admitted) {
                        // Behind the response: it begins here, and nobody waits for it.
                        if let Some(reservation) = reservation
                            && let Some(used) = respond.used(response)
                        {
                            reservation.settle(used);
                        }
                        respond.annotate(response, Outcome::Admitted(admission));
                    }
                    return Poll::Ready(answer);
                }
                StateProj::Refused { answer } => return answer.take().map_or(Poll::Pending, Poll::Ready),
            };
            self.set(next);
        }
    }
}

impl<S, Req, R> fmt::Debug for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
