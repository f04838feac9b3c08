//! The return of units at the end of their bucket.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::timeout};

use super::{Micros, table::Leases};
use crate::key::PartitionKey;

/// The partition keys with leases, by the instant at which to look at them. One task waits for the next instant. It ends when there are
/// no leases.
#[derive(Default)]
pub(super) struct Returns {
    state: Mutex<State>,
    /// Notified when the next instant comes earlier.
    earlier: Notify,
}

#[derive(Default)]
struct State {
    due: BinaryHeap<Reverse<Due>>,
    is_running: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Micros,
    hash: u64,
    key: PartitionKey,
}

/// The task. If its runtime ends, the next lease starts another one.
struct Task {
    leases: Arc<Leases>,
    has_ended: bool,
}

impl Returns {
    /// Looks at the leases of a partition key at this instant.
    pub(super) fn add(&self, leases: &Arc<Leases>, at: Micros, hash: u64, key: PartitionKey) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut state = self.state();
        let is_first = state.due.peek().is_none_or(|Reverse(first)| at < first.at);
        state.due.push(Reverse(Due { at, hash, key }));
        let starts = !std::mem::replace(&mut state.is_running, true);
        // A runtime that is ending drops the task at once, and with it the task takes the lock.
        drop(state);
        if starts {
            runtime.spawn(Task { leases: leases.clone(), has_ended: false }.run());
        } else if is_first {
            self.earlier.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic or wait.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    async fn run(mut self) {
        while let Some(wait) = self.work() {
            // Either the instant has come, or there is an earlier one.
            let _ = timeout(wait, self.leases.returns.earlier.notified()).await;
        }
    }

    /// Looks at all keys whose instant has come. Returns the wait for the next one. If there is none, the task ends under the same lock.
    fn work(&mut self) -> Option<Duration> {
        let leases = &self.leases;
        loop {
            let now = leases.clock.now();
            let mut state = leases.returns.state();
            let Some(Reverse(first)) = state.due.peek() else {
                state.is_running = false;
                self.has_ended = true;
                return None;
            };
            if first.at > now {
                return Some(Duration::from_micros(first.at - now));
            }
            let Some(Reverse(Due { hash, key, .. })) = state.due.pop() else { continue };
            drop(state);
            if let Some(at) = leases.expire(hash, &key, now) {
                leases.returns.state().due.push(Reverse(Due { at, hash, key }));
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.has_ended {
            self.leases.returns.state().is_running = false;
        }
    }
}
