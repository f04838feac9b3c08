//! The task that returns units at the end of their bucket, or when a lease is idle.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use super::{
    due::{Due, Next},
    table::Leases,
};

/// The task of a limiter. It runs while there are leases.
struct Task {
    leases: Arc<Leases>,
    has_ended: bool,
}

/// Looks at the lease of a pair at an instant. Outside a runtime, the next check of the pair looks at it, or the next task.
pub(super) fn schedule(leases: &Arc<Leases>, due: Due) {
    if !leases.dues.add(due) {
        return;
    }
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(Task { leases: leases.clone(), has_ended: false }.run())),
        Err(_) => leases.dues.abandon(),
    }
}

impl Task {
    async fn run(mut self) {
        while let Some(wait) = self.work() {
            // Either the instant has come, or there is an earlier one.
            let _ = timeout(wait, self.leases.dues.earlier.notified()).await;
        }
    }

    /// Looks at all pairs whose instant has come. Returns the wait for the next one, or `None` if there is none.
    fn work(&mut self) -> Option<Duration> {
        let leases = &self.leases;
        loop {
            let now = leases.clock.now();
            match leases.dues.next(now) {
                Next::Now(due) => {
                    if let Some(due) = leases.expire(due, now) {
                        // This task is running.
                        leases.dues.add(due);
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
            self.leases.dues.abandon();
        }
    }
}
