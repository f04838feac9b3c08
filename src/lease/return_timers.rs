//! When to look at the lease of which pair.

use std::{collections::BTreeMap, mem};

use tokio::sync::Notify;

use super::LocalMicros;
use crate::{key::PartitionKey, lock::Lock, policy::Policy};

/// The pair whose lease to look at.
pub(super) type TimedPair = (PartitionKey, Policy);

/// All instants, in their order, and whether a task waits for them.
#[derive(Default)]
pub(super) struct ReturnTimers {
    state: Lock<TimerState>,
    /// Notified when the next instant comes earlier.
    pub(super) earlier: Notify,
}

#[derive(Default)]
struct TimerState {
    /// By their instants, and then in the order in which they were added.
    timers: BTreeMap<(LocalMicros, u64), TimedPair>,
    /// The number of instants that were added so far.
    added: u64,
    is_running: bool,
}

/// The next instant.
pub(super) enum Next {
    /// It has come.
    Now(TimedPair),
    /// It comes later.
    At(LocalMicros),
    /// There is none, so the task ends.
    None,
}

impl ReturnTimers {
    /// Adds an instant. Returns whether a task must be started.
    pub(super) fn add(&self, at: LocalMicros, pair: TimedPair) -> bool {
        let mut state = self.state.lock();
        let is_first = state.timers.first_key_value().is_none_or(|((first, _), _)| at < *first);
        state.added += 1;
        let number = state.added;
        state.timers.insert((at, number), pair);
        let must_start = !mem::replace(&mut state.is_running, true);
        drop(state);
        if is_first && !must_start {
            self.earlier.notify_one();
        }
        must_start
    }

    /// Takes the next instant, if it has come.
    pub(super) fn next(&self, now: LocalMicros) -> Next {
        let mut state = self.state.lock();
        match state.timers.first_entry() {
            Some(first) if first.key().0 > now => Next::At(first.key().0),
            Some(first) => Next::Now(first.remove()),
            None => {
                state.is_running = false;
                Next::None
            }
        }
    }

    /// Returns whether a task must be started, because there are instants and no task runs.
    pub(super) fn resume(&self) -> bool {
        let mut state = self.state.lock();
        !state.timers.is_empty() && !mem::replace(&mut state.is_running, true)
    }

    /// Records that no task runs: it has ended with its runtime, or there is no runtime. The next lease starts one.
    pub(super) fn abandon(&self) {
        self.state.lock().is_running = false;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().timers.len()
    }
}
