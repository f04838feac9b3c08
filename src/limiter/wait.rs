//! A request that waits until it is admitted.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{inner::Limiter, outage_rule::Terms, outcome::AdmitResult, rejection::Rejection};
use crate::{
    check::{Check, ReleaseListener, ReleaseSignal},
    decision::{Decision, Status, Wait},
    guard::until,
    observe::{DecidedPairs, WaitMetrics},
    random::jittered,
};

/// The shortest time between two checks of a request that refunds wake. Without it, each of many settlements would cost a check. Units in
/// flight return less often, and each may admit a request at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until a check is admitted, at most for the given time. The request joins its queue at the first poll. If the future is dropped,
/// it leaves the queue. Counts a request that is rejected.
pub(super) async fn wait(limiter: Limiter, mut check: Check, terms: Terms, at_most: Duration) -> AdmitResult {
    check.hints.may_wait = true;
    let mut waits = None;
    let outcome = admit_in_turn(&limiter, &check, terms, at_most, &mut waits).await;
    match &outcome {
        Err(Rejection::Denied(denied)) => limiter.events().decision(denied, DecidedPairs::Check(&check)),
        Err(Rejection::WaitTooLong { .. }) => limiter.events().wait_too_long(&check),
        Err(Rejection::TooManyWaiting { .. }) => limiter.events().too_many_waiting(&check),
        _ => {}
    }
    if let Some(waits) = waits {
        waits.end(outcome.is_ok());
    }
    outcome
}

/// Admits a check when its turn has come. Once the request waits, sets `waits`.
async fn admit_in_turn(
    limiter: &Limiter,
    check: &Check,
    terms: Terms,
    at_most: Duration,
    waits: &mut Option<WaitMetrics>,
) -> AdmitResult {
    let end = Instant::now().checked_add(at_most);
    let ask = |check: &Check| limiter.admit_check(check.clone(), terms);
    if skips_queue(check) {
        match ask(check).await {
            Err(Rejection::Denied(denied)) if denied.retry_after() != Wait::Never => {}
            outcome => return outcome,
        }
    }
    // Dropping it gives the turn to the next request.
    let mut ticket = limiter.0.waiters.join(check, end)?;
    if ticket.is_behind_others() {
        *waits = Some(limiter.events().waits());
    }
    ticket.turn(end).await?;
    // From here on, no release is missed.
    let signal = Arc::<ReleaseSignal>::default();
    let pairs = check.pairs().iter().enumerate().filter(|(_, pair)| !pair.is_shadow);
    let mut listeners: Vec<_> =
        pairs.map(|(i, pair)| (i, ReleaseListener::new(check.scope(), pair, &signal))).collect();
    let mut is_delayed = false;
    let holds = check.pairs().iter().any(|pair| !pair.is_shadow && pair.policy.properties().is_held);
    loop {
        listeners.iter_mut().for_each(|(_, listener)| listener.asks());
        let outcome = ask(check).await;
        tell(&mut listeners, &outcome);
        let Err(Rejection::Denied(denied)) = outcome else { return outcome };
        // The store has decided before this instant, so the request does not ask again too early.
        let (known, unknown) = (denied.longest_known_wait(), denied.longest_unknown_wait());
        let now = Instant::now();
        let at = match denied.retry_after() {
            Wait::For(_) => asks_at(now, known, unknown, end),
            Wait::Unknown | Wait::Never => None,
        };
        match at {
            // From the end of the known wait on, a release may admit the requests behind this one.
            Some(at) if ticket.sleeps_until(now + known, &signal) => {
                if !std::mem::replace(&mut is_delayed, true) {
                    limiter.events().delayed(&denied, check);
                    waits.get_or_insert_with(|| limiter.events().waits());
                }
                if until(at, signal.released()).await.is_some() && !holds {
                    sleep_until(at.min(now + PAUSE)).await;
                }
            }
            _ => return Err(Rejection::Denied(denied)),
        }
        ticket.asks();
    }
}

/// Lets the listeners, each with the index of its pair, learn whether a release may admit their request before it asks again, and what remains.
fn tell(listeners: &mut [(usize, ReleaseListener)], outcome: &AdmitResult) {
    let Some(decision) = decision(outcome) else { return };
    let known = outcome.as_ref().err().map(|_| decision.longest_known_wait());
    // Without a longer interval, the request asks at the end of its known wait, and no release in flight admits it before.
    let is_interval_longer = known < known.and(decision.longest_unknown_wait());
    for (index, listener) in listeners {
        let status = decision.indexed_statuses().find(|(i, _)| i == index).map(|(_, status)| status);
        let is_denied = match status.map(Status::retry_after) {
            // Until the end of the longest wait, that of another pair is no use.
            Some(Wait::For(wait)) => !wait.is_zero() && Some(wait) == known,
            _ => is_interval_longer,
        };
        listener.decided(is_denied, status.map_or(u32::MAX, remaining));
    }
}

/// Returns how many units remain for other requests. A gate has no units: it admits all requests or none.
fn remaining(status: &Status) -> u32 {
    match (status.quota(), status.retry_after().is_zero()) {
        (Some(_), _) => status.remaining(),
        (None, true) => u32::MAX,
        (None, false) => 0,
    }
}

fn decision(outcome: &AdmitResult) -> Option<&Decision> {
    match outcome {
        Ok(admission) => admission.decision(),
        Err(Rejection::Denied(denied)) => Some(denied),
        Err(_) => None,
    }
}

/// Returns when a check with this known wait asks again. If units may return at any time, it asks after half of the interval to the whole,
/// so that processes take turns. `None` if the end comes first. Outside tokio, it does.
fn asks_at(
    now: Instant,
    known: Duration,
    interval: Option<Duration>,
    end: Option<Instant>,
) -> Option<Instant> {
    let mut at = now.checked_add(known.max(interval.map_or(Duration::ZERO, jittered)))?;
    // A release may come before the end.
    let is_known_by = |end: &Instant| now.checked_add(known).is_some_and(|at| at <= *end);
    if let Some(end) = end.filter(|end| interval.is_some() && now < *end && is_known_by(end)) {
        at = at.min(end);
    }
    (end.is_none_or(|end| at <= end) && Handle::try_current().is_ok()).then_some(at)
}

/// Returns whether the place in the queue has no effect on this check: no wait helps, or none is needed.
fn skips_queue(check: &Check) -> bool {
    let mut pairs = check.pairs().iter().filter(|pair| !pair.is_shadow);
    check.is_never_admitted() || pairs.all(|pair| pair.cost == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn request_waits_for_release_until_its_end() {
        let now = Instant::now();
        let asks = |known, interval, end| {
            asks_at(now, known, interval, Some(now + end)).map(|at| at.duration_since(now))
        };
        for _ in 0..100 {
            for known in [Duration::ZERO, SECOND / 100] {
                assert_eq!(asks(known, Some(60 * SECOND), SECOND), Some(SECOND));
            }
            assert_eq!(asks(2 * SECOND, Some(60 * SECOND), SECOND), None, "the known wait is longer");
            assert_eq!(asks(SECOND / 2, None, SECOND), Some(SECOND / 2));
        }
    }
}
