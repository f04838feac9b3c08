//! A request that waits until it is admitted.

use std::time::Duration;

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{inner::Limiter, outage_rule::Terms, outcome::AdmitResult, rejection::Rejection};
use crate::{check::Check, decision::Wait};

/// Waits until a check is admitted, at most for the given time. The request joins its queue at the first poll. If the future is dropped,
/// it leaves the queue.
pub(super) async fn wait(limiter: Limiter, check: Check, terms: Terms, at_most: Duration) -> AdmitResult {
    let end = Instant::now().checked_add(at_most);
    let ask = || limiter.admit_check(check.clone(), terms);
    if skips_queue(&check) {
        match ask().await {
            Err(Rejection::Denied(denied)) if denied.retry_after() != Wait::Never => {}
            outcome => return outcome,
        }
    }
    // Dropping it gives the turn to the next request.
    let mut ticket = limiter.0.waiters.join(&check, end)?;
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
        match at {
            Some(at) if ticket.sleeps_until(at) => sleep_until(at).await,
            _ => return Err(Rejection::Denied(denied)),
        }
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
