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
    has_ended: bool,
}

impl Leases {
    /// Looks at the lease of a pair at an instant. Outside a runtime, the next check of the pair looks at it, or the next task.
    pub(super) fn schedule(self: &Arc<Self>, at: LocalMicros, pair: TimedPair) {
        if self.timers.add(at, pair) {
            self.start();
        }
    }

    /// Starts the task if the last one has ended with its runtime, and pairs are left.
    pub(super) fn resume(self: &Arc<Self>) {
        if self.timers.resume() {
            self.start();
        }
    }

    fn start(self: &Arc<Self>) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(Task { leases: self.clone(), has_ended: false }.run())),
            Err(_) => self.timers.abandon(),
        }
    }
}

impl Task {
    async fn run(mut self) {
        while let Some(wait) = self.work() {
            // Either the instant has come, or there is an earlier one.
            let _ = timeout(wait, self.leases.timers.earlier.notified()).await;
        }
    }

    /// Looks at all pairs whose instant has come. Returns the wait for the next one, or `None` if there is none.
    fn work(&mut self) -> Option<Duration> {
        let leases = &self.leases;
        loop {
            let now = leases.clock.now();
            match leases.timers.next(now) {
                Next::Now(pair) => {
                    if let Some(at) = leases.expire(&pair, now) {
                        // This task is running.
                        leases.timers.add(at, pair);
                    }
                }
                Next::At(at) => return Some(Duration::from_micros(at - now)),
                Next::None => {
                    self.has_ended = true;
                    return None;
                }
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.has_ended {
            self.leases.timers.abandon();
        }
    }
}
