//! The state of a limiter that learns: how long it backs off.

use std::time::Duration;

use tokio::sync::watch;

use super::{Learning, Stated};
use crate::{check::Check, lock::Lock, random::jittered};

/// The number of sets of backoffs. A key has one of those of its set.
const SETS: usize = 64;

/// The number of keys of a set that back off at once. A further one takes the place of the key whose wait ends first.
const KEYS_OF_SET: usize = 4;

/// The longest wait after the first denial.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// What a limiter remembers of the answers of an API.
pub(crate) struct Learner {
    pub(crate) learning: Learning,
    backoffs: Lock<Box<[[Backoff; KEYS_OF_SET]; SETS]>>,
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
        let (backoffs, tasks) =
            (Lock::new(Box::new([[Backoff::default(); KEYS_OF_SET]; SETS])), watch::Sender::new(()));
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
        let mut backoffs = self.backoffs.lock();
        let set = set_of(&mut backoffs, key);
        let own = set.iter_mut().find(|backoff| backoff.key == key);
        if !stated.is_denial {
            if let Some(own) = own.filter(|own| at_micros > own.ends_at) {
                own.denials = 0;
            }
            return None;
        }
        let backoff = match own {
            Some(own) => own,
            None => {
                let first = set.iter_mut().min_by_key(|backoff| backoff.ends_at)?;
                *first = Backoff { key, ..Backoff::default() };
                first
            }
        };
        // A request that was admitted before the last wait may be denied after an admission.
        backoff.denials = (backoff.denials + u32::from(at_micros > backoff.ends_at)).clamp(1, 31);
        let wait = jittered(max_wait.min(FIRST_BACKOFF * (1 << backoff.denials) / 2));
        backoff.end_at(at_micros, wait);
        backs_off.then_some(wait)
    }

    /// Notes that the gates of a check are blocked for this wait from an instant on, which is later than that of the check.
    pub(crate) fn blocked(&self, check: &Check, at_micros: u64, wait: Duration) {
        let (key, mut backoffs) = (backing_off(check), self.backoffs.lock());
        if let Some(own) = set_of(&mut backoffs, key).iter_mut().find(|backoff| backoff.key == key) {
            own.end_at(at_micros, wait);
        }
    }
}

impl Backoff {
    fn end_at(&mut self, at_micros: u64, wait: Duration) {
        self.ends_at = self.ends_at.max(at_micros.saturating_add(wait.as_micros() as u64));
    }
}

fn set_of(backoffs: &mut [[Backoff; KEYS_OF_SET]; SETS], key: u64) -> &mut [Backoff; KEYS_OF_SET] {
    &mut backoffs[key as usize % SETS]
}

/// Returns the hash of the key that backs off: that of the first gate, because only gates are blocked.
fn backing_off(check: &Check) -> u64 {
    let mut pairs = check.pairs().iter();
    let gate = pairs.clone().find(|pair| !pair.policy.properties().has_quota);
    gate.or_else(|| pairs.next()).map_or(0, |pair| pair.key.hash_code())
}
