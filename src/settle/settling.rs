//! The settlements of a reservation that have begun.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::guard::until;

/// The deadline of a settlement and of a return of leased units, from the instant at which it enters the queue. No response waits for
/// it, so it outlasts a short failure of the store. After it, nothing changes: neither here nor in a store that hangs.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// The time after the last deadline in which a settlement may still be confirmed: a busy machine wakes its worker with a delay.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// What waits for the settlement of a reservation, without a handle of it: the last handle may settle it.
#[derive(Clone, Default)]
pub(crate) struct Settling(Arc<watch::Sender<()>>);

/// A settlement that is queued or in progress.
pub(super) struct Begun(#[expect(dead_code, reason = "its drop is the signal")] watch::Receiver<()>);

impl Settling {
    pub(super) fn begin(&self) -> Begun {
        Begun(self.0.subscribe())
    }

    /// Waits until no settlement that has begun is queued or in progress. If its runtime does not run, it changes nothing after its deadline.
    pub(crate) async fn ended(&self) {
        // A settlement that was made at once needs no timer.
        if !self.0.is_closed() {
            let _ = until(Instant::now() + DEADLINE + GRACE, self.0.closed()).await;
        }
    }
}
