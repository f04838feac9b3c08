//! When to look at the lease of which pair.

use std::collections::BTreeMap;

use tokio::sync::Notify;

use super::LocalMicros;
use crate::{key::PartitionKey, lock::Lock, policy::Policy};

/// The pair whose lease to look at.
pub(super) type TimedPair = (PartitionKey, Policy);

/// If the task is later than this, in microseconds, its runtime does not run, and another task takes its place.
const LATE: LocalMicros = 1_000_000;

/// All instants, in their order, and the task that waits for them.
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
    /// The number of the tasks that were started so far.
    tasks: u64,
    /// The number of the task that runs, or that ran last. The others end.
    task: u64,
    /// When the task was started. `None` if none runs.
    started: Option<LocalMicros>,
}

/// The next instant.
pub(super) enum Next {
    /// It has come.
    Now(TimedPair),
    /// It comes later.
    At(LocalMicros),
    /// There is none, or another task takes it, so this one ends.
    None,
}

impl ReturnTimers {
    /// Adds an instant.
    pub(super) fn add(&self, at: LocalMicros, pair: TimedPair) {
        let mut state = self.state.lock();
        let is_first = state.timers.first_key_value().is_none_or(|((first, _), _)| at < *first);
        state.added += 1;
        let number = state.added;
        state.timers.insert((at, number), pair);
        drop(state);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Returns the number of the task that must be started now: there are instants, and no task runs, or it is late.
    pub(super) fn start(&self, now: LocalMicros) -> Option<u64> {
        let mut state = self.state.lock();
        let ((first, _), _) = state.timers.first_key_value()?;
        if state.started.is_some_and(|started| now < started.max(*first) + LATE) {
            return None;
        }
        let is_replaced = state.started.replace(now).is_some();
        state.tasks += 1;
        state.task = state.tasks;
        let task = state.task;
        drop(state);
        if is_replaced {
            // It must not take a notification from the next task.
            self.earlier.notify_waiters();
        }
        Some(task)
    }

    /// Takes the next instant, if it has come.
    pub(super) fn next(&self, task: u64, now: LocalMicros) -> Next {
        let mut state = self.state.lock();
        if task != state.task {
            if state.started.is_none() && !state.timers.is_empty() {
                // The other task has ended before this one added an instant again.
                (state.task, state.started) = (task, Some(now));
            } else {
                drop(state);
                // It may have taken the notification of the other task.
                self.earlier.notify_one();
                return Next::None;
            }
        }
        match state.timers.first_entry() {
            Some(first) if first.key().0 > now => Next::At(first.key().0),
            Some(first) => Next::Now(first.remove()),
            None => {
                state.started = None;
                Next::None
            }
        }
    }

    /// Records that this task does not run: it has ended, or its runtime has. The next lease starts one.
    pub(super) fn abandon(&self, task: u64) {
        let mut state = self.state.lock();
        if task == state.task {
            state.started = None;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().timers.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Otherwise, the units of the pair would stay until the next lease.
    #[test]
    fn replaced_task_goes_on_if_other_one_has_ended() {
        let policy = Policy::new("p", 10, Duration::from_secs(60)).unwrap();
        let pair = |key| (PartitionKey::new("user", key), policy.clone());
        let timers = ReturnTimers::default();
        timers.add(0, pair("a"));
        let first = timers.start(0).unwrap();
        assert!(matches!(timers.next(first, 0), Next::Now(_)));
        // Before it adds the pair again, it stops for more than a second.
        timers.add(1, pair("b"));
        let second = timers.start(2 * LATE).unwrap();
        assert!(matches!(timers.next(second, 2 * LATE), Next::Now(_)));
        assert!(matches!(timers.next(second, 2 * LATE), Next::None));
        timers.abandon(second);

        timers.add(3 * LATE, pair("a"));
        assert!(matches!(timers.next(first, 2 * LATE), Next::At(at) if at == 3 * LATE));
        // It is late, too, and a third task takes its place.
        let third = timers.start(5 * LATE).unwrap();
        assert!(third != second, "the second task would run as well");
        assert!(matches!(timers.next(first, 5 * LATE), Next::None));
        assert!(matches!(timers.next(third, 5 * LATE), Next::Now(_)));
        assert!(matches!(timers.next(third, 5 * LATE), Next::None));
        assert!(timers.start(5 * LATE).is_none(), "no instant is left");
    }
}
