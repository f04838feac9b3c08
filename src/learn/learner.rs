//! The state of a limiter that learns: how long it backs off.

use std::time::Duration;

use tokio::sync::watch;

use super::{Learning, Stated};
use crate::{check::Check, lock::Lock, random::jittered};

/// The number of backoffs. Keys that share one may wait longer than needed.
const BACKOFFS: usize = 64;

/// The longest wait after the first denial.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// What a limiter remembers of the answers of an API.
pub(crate) struct Learner {
    pub(crate) learning: Learning,
    backoffs: Lock<[Backoff; BACKOFFS]>,
    /// Each task that learns in the background has a receiver.
    pub(crate) tasks: watch::Sender<()>,
}

/// The number of denials without a wait or with one of zero, and the instant at which the last wait ends, in microseconds of the clock of
/// the store. A denial of a request that was admitted until then does not count.
type Backoff = (u32, u64);

impl Learner {
    pub(crate) fn new(learning: Learning) -> Self {
        let (backoffs, tasks) = (Lock::new([Backoff::default(); BACKOFFS]), watch::Sender::new(()));
        Self { learning, backoffs, tasks }
    }

    /// Returns how long a denial blocks the gates of its check. An admission ends the backoff of its key.
    pub(crate) fn wait(&self, stated: &Stated, check: &Check, at_micros: u64) -> Option<Duration> {
        let Learning { obeys_waits, backs_off, max_wait, .. } = self.learning;
        // A wait of zero has passed, and the API has denied the request.
        if let Some(wait) = stated.wait.filter(|wait| stated.is_denial && !wait.is_zero()) {
            return obeys_waits.then_some(wait.min(max_wait));
        }
        let (denials, ends_at) = &mut self.backoffs.lock()[slot(check)];
        let is_later = at_micros > *ends_at;
        if !stated.is_denial {
            if is_later {
                *denials = 0;
            }
            return None;
        }
        *denials = 31.min(*denials + u32::from(is_later));
        let wait = jittered(max_wait.min(FIRST_BACKOFF * (1 << *denials) / 2));
        *ends_at = at_micros.saturating_add(wait.as_micros() as u64).max(*ends_at);
        backs_off.then_some(wait)
    }

    /// Notes that the gates of a check are blocked for this wait from an instant on, which is later than that of the check.
    pub(crate) fn blocked(&self, check: &Check, at_micros: u64, wait: Duration) {
        let (_, ends_at) = &mut self.backoffs.lock()[slot(check)];
        *ends_at = at_micros.saturating_add(wait.as_micros() as u64).max(*ends_at);
    }
}

/// Returns the index of the backoff of a check.
fn slot(check: &Check) -> usize {
    check.pairs().first().map_or(0, |pair| pair.key.hash_code() as usize % BACKOFFS)
}
