//! The state of a limiter that learns: how long it backs off.

use std::time::Duration;

use tokio::sync::watch;

use super::{Learning, Stated};
use crate::{check::Check, key::hash_code, lock::Lock, random::jittered};

/// The number of sets of backoffs. A key has one of those of its set.
const SETS: usize = 1_024;

/// The number of backoffs of a set.
const BACKOFFS_OF_SET: usize = 8;

/// The most denials that a key takes over from a key that still backs off, and whose place it takes. Without them, no wait would grow while more
/// keys back off than there are places. With all of them, others could block a key for [`Learning::max_wait`] at its first denial.
const MAX_INHERITED: u32 = 6;

/// The longest wait after the first denial.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// What a limiter remembers of the answers of an API.
pub(crate) struct Learner {
    pub(crate) learning: Learning,
    /// Empty until the first denial.
    backoffs: Lock<Vec<[Backoff; BACKOFFS_OF_SET]>>,
    /// Each task that learns in the background has a receiver.
    pub(crate) tasks: watch::Sender<()>,
}

/// The backoff of a gate and a key.
#[derive(Clone, Copy, Default)]
struct Backoff {
    /// The hash of both.
    gate: u64,
    /// The number of denials in a row without a wait or with one of zero.
    denials: u32,
    /// The instant at which the last wait ends, in microseconds of the clock of the store. A denial of a request that was admitted until then
    /// does not count.
    ends_at: u64,
}

impl Learner {
    pub(crate) fn new(learning: Learning) -> Self {
        Self { learning, backoffs: Lock::default(), tasks: watch::Sender::new(()) }
    }

    /// Returns how long a denial blocks the gates of its check. An admission ends the backoff of its gate.
    pub(crate) fn wait(&self, stated: &Stated, check: &Check, at_micros: u64) -> Option<Duration> {
        let Learning { obeys_waits, backs_off, max_wait, .. } = self.learning;
        // A wait of zero has passed, and the API has denied the request.
        if let Some(wait) = stated.wait.filter(|wait| stated.is_denial && !wait.is_zero()) {
            return obeys_waits.then_some(wait.min(max_wait));
        }
        let gate = gate_of(check);
        if !stated.is_denial {
            if let Some(gate) = gate.filter(|_| !stated.is_failure) {
                self.admitted(gate, at_micros);
            }
            return None;
        }
        // Without a gate, nothing can be blocked, and the caller gets an error.
        backs_off.then(|| gate.map_or(FIRST_BACKOFF, |gate| self.denied(gate, at_micros)))
    }

    /// Ends the backoff of a gate, unless the request was admitted before its last wait ended.
    fn admitted(&self, gate: u64, at_micros: u64) {
        let mut backoffs = self.backoffs.lock();
        if let Some(own) = backoff_of(&mut backoffs, gate).filter(|own| at_micros > own.ends_at) {
            *own = Backoff::default();
        }
    }

    /// Counts a denial of a gate, and returns its wait.
    fn denied(&self, gate: u64, at_micros: u64) -> Duration {
        let max_wait = self.learning.max_wait;
        let mut backoffs = self.backoffs.lock();
        if backoffs.is_empty() {
            backoffs.resize(SETS, Default::default());
        }
        let backoff = match backoff_of(&mut backoffs, gate) {
            Some(own) => own,
            None => {
                let matters_until = |backoff: &Backoff| backoff.matters_until(max_wait);
                let set = &mut backoffs[set_of(gate)];
                let Some(least) = set.iter_mut().min_by_key(|backoff| matters_until(backoff)) else {
                    return FIRST_BACKOFF;
                };
                let is_forgotten = matters_until(least) <= at_micros;
                let denials = if is_forgotten { 0 } else { least.denials.min(MAX_INHERITED) };
                *least = Backoff { gate, denials, ends_at: 0 };
                least
            }
        };
        // A request that was admitted before the last wait may be denied after an admission.
        backoff.denials = (backoff.denials + u32::from(at_micros > backoff.ends_at)).clamp(1, 31);
        let wait = jittered(backoff.longest_wait(max_wait));
        backoff.end_at(at_micros, wait);
        wait
    }

    /// Notes that the gates of a check are blocked for this wait from an instant on, which is later than that of the check.
    pub(crate) fn blocked(&self, check: &Check, at_micros: u64, wait: Duration) {
        let mut backoffs = self.backoffs.lock();
        if let Some(own) = gate_of(check).and_then(|gate| backoff_of(&mut backoffs, gate)) {
            own.end_at(at_micros, wait);
        }
    }
}

impl Backoff {
    fn end_at(&mut self, at_micros: u64, wait: Duration) {
        self.ends_at = self.ends_at.max(end_of(at_micros, wait));
    }

    /// Returns the longest wait after the last denial.
    fn longest_wait(&self, max_wait: Duration) -> Duration {
        max_wait.min(FIRST_BACKOFF * (1 << self.denials) / 2)
    }

    /// Returns until when the next denial is one of the same overload: until the last wait has passed once more.
    fn matters_until(&self, max_wait: Duration) -> u64 {
        end_of(self.ends_at, self.longest_wait(max_wait))
    }
}

fn end_of(at_micros: u64, wait: Duration) -> u64 {
    at_micros.saturating_add(wait.as_micros() as u64)
}

fn set_of(gate: u64) -> usize {
    gate as usize % SETS
}

fn backoff_of(backoffs: &mut [[Backoff; BACKOFFS_OF_SET]], gate: u64) -> Option<&mut Backoff> {
    backoffs.get_mut(set_of(gate))?.iter_mut().find(|backoff| backoff.gate == gate)
}

/// Returns the hash of what backs off: the first gate of a check with its key. `None` without a gate: such a check must not end the backoff of
/// another one.
fn gate_of(check: &Check) -> Option<u64> {
    let gate = check.pairs().iter().find(|pair| !pair.policy.properties().has_quota)?;
    Some(hash_code(&[&gate.key.hash_code().to_le_bytes(), gate.policy.name().as_bytes()].concat()))
}
