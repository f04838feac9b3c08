//! The task that returns units at the end of their bucket, or when a lease is idle.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use super::{
    LocalMicros,
    return_timers::{Next, TimedPair},
    table::Leases,
};

/// The task of a limiter. It runs while there are leases.
struct Task {
    leases: Arc<Leases>,
    number: u64,
}

impl Leases {
    /// Looks at the leases of pairs at these instants. Outside a runtime, the next check of a pair looks at it, or the next task. Starts the
    /// task if the last one has ended with its runtime or is late, and pairs are left.
    pub(super) fn schedule(self: &Arc<Self>, timers: impl IntoIterator<Item = (LocalMicros, TimedPair)>) {
        for (at, pair) in timers {
            self.timers.add(at, pair);
        }
        // Only a task takes the place of another one.
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some(number) = self.timers.start(self.clock.now()) {
            drop(runtime.spawn(Task { leases: self.clone(), number }.run()));
            *self.runtime.lock() = Some(runtime);
        }
    }
}

impl Task {
    async fn run(self) {
        while let Some(wait) = self.work() {
            // Either the instant has come, or there is an earlier one.
            let _ = timeout(wait, self.leases.timers.earlier.notified()).await;
        }
    }

    /// Looks at all pairs whose instant has come. Returns the wait for the next one, or `None` if there is none.
    fn work(&self) -> Option<Duration> {
        let leases = &self.leases;
        loop {
            let now = leases.clock.now();
            match leases.timers.next(self.number, now) {
                Next::Now(pair) => leases.expire(pair, now),
                Next::At(at) => return Some(Duration::from_micros(at - now)),
                Next::None => return None,
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.leases.timers.abandon(self.number);
    }
}
