//! When to look at the lease of which pair.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    mem,
};

use tokio::sync::Notify;

use super::LocalMicros;
use crate::{key::PartitionKey, lock::Lock, policy::Policy};

/// The instant at which to look at the lease of a pair. Instants are compared, and not pairs.
pub(super) struct ReturnTimer {
    pub(super) at: LocalMicros,
    pub(super) key: PartitionKey,
    pub(super) policy: Policy,
}

impl ReturnTimer {
    pub(super) fn new(at: LocalMicros, key: &PartitionKey, policy: &Policy) -> Self {
        Self { at, key: key.clone(), policy: policy.clone() }
    }
}

impl Ord for ReturnTimer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl PartialOrd for ReturnTimer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ReturnTimer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for ReturnTimer {}

/// All instants, in their order, and whether a task waits for them.
#[derive(Default)]
pub(super) struct ReturnTimers {
    state: Lock<TimerState>,
    /// Notified when the next instant comes earlier.
    pub(super) earlier: Notify,
}

#[derive(Default)]
struct TimerState {
    timers: BinaryHeap<Reverse<ReturnTimer>>,
    is_running: bool,
}

/// The next instant.
pub(super) enum Next {
    /// It has come.
    Now(ReturnTimer),
    /// It comes later.
    At(LocalMicros),
    /// There is none, so the task ends.
    None,
}

impl ReturnTimers {
    /// Adds an instant. Returns whether a task must be started.
    pub(super) fn add(&self, due: ReturnTimer) -> bool {
        let mut state = self.state.lock();
        let is_first = state.timers.peek().is_none_or(|Reverse(first)| due.at < first.at);
        state.timers.push(Reverse(due));
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
        match state.timers.peek() {
            Some(Reverse(first)) if first.at > now => Next::At(first.at),
            Some(_) => state.timers.pop().map_or(Next::None, |Reverse(due)| Next::Now(due)),
            None => {
                state.is_running = false;
                Next::None
            }
        }
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
