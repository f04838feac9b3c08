//! A request that waits until it is admitted.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{
    Limiter,
    draft::Reserve,
    outcome::{Admission, Rejection},
};
use crate::{
    check::Check,
    decision::Wait,
    now_or_later::{BoxFuture, NowOrLater},
    outage::OutageRule,
};

type Outcome = Result<Admission, Rejection>;

/// The future of [`Limiter::wait`]. It resolves to the admission, or the reason for the rejection.
///
/// The request joins its queue at the first poll. If the future is dropped, the request leaves the queue at once; if a check is in
/// progress then, the charge may stand. A future that was polled must be polled on or dropped: the requests behind it wait for
/// it.
#[must_use = "a request does not wait unless the future is awaited"]
pub struct WaitFuture(NowOrLater<Outcome>);

impl WaitFuture {
    /// Waits until this check is admitted, at most for the given time.
    pub(super) fn of(
        limiter: Limiter,
        check: Check,
        reserve: Option<Reserve>,
        rule: Option<OutageRule>,
        at_most: Duration,
    ) -> Self {
        let waiting: BoxFuture<Outcome> = Box::pin(wait(limiter, check, reserve, rule, at_most));
        Self(NowOrLater::Later(waiting))
    }

    pub(crate) fn rejected(rejection: Rejection) -> Self {
        Self(NowOrLater::now(Err(rejection)))
    }
}

async fn wait(
    limiter: Limiter,
    mut check: Check,
    reserve: Option<Reserve>,
    rule: Option<OutageRule>,
    at_most: Duration,
) -> Outcome {
    let end = Instant::now().checked_add(at_most);
    if reserve.is_some_and(|reserve| reserve.clamps) {
        check.clamp();
    }
    let ask = || limiter.ask(check.clone(), reserve, rule);
    if skips_queue(&check) {
        match ask().await {
            Err(Rejection::Denied(denied)) if denied.retry_after() != Wait::Never => {}
            outcome => return outcome,
        }
    }
    // Dropping it gives the turn to the next request.
    let mut ticket = limiter.waiters().join(&check, end)?;
    ticket.turn(end).await?;
    loop {
        let denied = match ask().await {
            Err(Rejection::Denied(denied)) => denied,
            outcome => return outcome,
        };
        // The store has decided before this instant, so the request does not ask again too early.
        let at = match denied.retry_after() {
            Wait::For(wait) => wakes_at(wait, end),
            Wait::Never => None,
        };
        let Some(at) = at else { return Err(Rejection::Denied(denied)) };
        if !ticket.sleeps_until(at) {
            return Err(Rejection::Denied(denied));
        }
        sleep_until(at).await;
        ticket.asks();
    }
}

/// Returns whether the place in the queue has no effect on this check: no wait helps, or none is needed.
fn skips_queue(check: &Check) -> bool {
    let mut pairs = check.pairs().iter().filter(|pair| !pair.is_shadow);
    pairs.clone().any(|pair| pair.cost > pair.policy.quota_units()) || pairs.all(|pair| pair.cost == 0)
}

/// Returns the end of a wait that begins now, or `None` if the wait is too long. Outside tokio, every wait is.
fn wakes_at(wait: Duration, end: Option<Instant>) -> Option<Instant> {
    let at = Instant::now().checked_add(wait)?;
    (end.is_none_or(|end| at <= end) && Handle::try_current().is_ok()).then_some(at)
}

impl Future for WaitFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl fmt::Debug for WaitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitFuture").finish_non_exhaustive()
    }
}
