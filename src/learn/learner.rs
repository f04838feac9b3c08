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

/// The backoff of a key.
#[derive(Clone, Copy, Default)]
struct Backoff {
    /// The hash of the key.
    key: u64,
    /// The number of denials in a row without a wait or with one of zero.
    denials: u32,
    /// The instant at which the last wait ends, in microseconds of the clock of the store. A denial of a request that was admitted until then
    /// does not count.
    ends_at: u64,
}

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
        let key = backing_off(check);
        let backoff = &mut self.backoffs.lock()[key as usize % BACKOFFS];
        let (is_own, is_later) = (backoff.key == key, at_micros > backoff.ends_at);
        if !stated.is_denial {
            if is_own && is_later {
                backoff.denials = 0;
            }
            return None;
        }
        if !is_own && is_later {
            (backoff.key, backoff.denials) = (key, 0);
        }
        // A request that was admitted before the last wait may be denied after an admission.
        backoff.denials = (backoff.denials + u32::from(is_later)).clamp(1, 31);
        let wait = jittered(max_wait.min(FIRST_BACKOFF * (1 << backoff.denials) / 2));
        backoff.end_at(at_micros, wait);
        backs_off.then_some(wait)
    }

    /// Notes that the gates of a check are blocked for this wait from an instant on, which is later than that of the check.
    pub(crate) fn blocked(&self, check: &Check, at_micros: u64, wait: Duration) {
        self.backoffs.lock()[backing_off(check) as usize % BACKOFFS].end_at(at_micros, wait);
    }
}

impl Backoff {
    fn end_at(&mut self, at_micros: u64, wait: Duration) {
        self.ends_at = self.ends_at.max(at_micros.saturating_add(wait.as_micros() as u64));
    }
}

/// Returns the hash of the key that backs off: that of the first gate, because only gates are blocked.
fn backing_off(check: &Check) -> u64 {
    let mut pairs = check.pairs().iter();
    let gate = pairs.clone().find(|pair| !pair.policy.properties().has_quota);
    gate.or_else(|| pairs.next()).map_or(0, |pair| pair.key.hash_code())
}
