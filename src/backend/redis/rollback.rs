//! Rollbacks: the charges of a check across slots that another slot has denied.
//!
//! A rollback runs in a task of its own, so that it survives the check. There is a bound on the rollbacks in progress, apart from
//! that of settlements: a client over its limit cannot displace the settlements of others. A rollback that is not confirmed is
//! lost and counted.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::timeout};

use super::RedisBackend;
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Refund},
    decision::Decision,
    observe::{self, Throttle},
};

/// The timeout of the rollback of one slot. No request waits for it.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest number of rollbacks in progress. Each takes a few kilobytes.
const MAX_ROLLBACKS: usize = 4_096;

/// A reply that a check has not waited for.
pub(super) type Late = Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>;

/// The rollbacks of a backend.
#[derive(Default)]
pub(super) struct Rollbacks {
    in_progress: AtomicUsize,
    /// Notified when the last rollback in progress ends.
    idle: Notify,
    lost: AtomicU64,
    events: Throttle,
}

impl Rollbacks {
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until no rollback is in progress.
    pub(super) async fn drain(&self) {
        loop {
            let mut idle = pin!(self.idle.notified());
            // From here on, no notification is missed.
            idle.as_mut().enable();
            if self.in_progress.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    fn lose(&self, error: &BackendError) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(unlogged) = self.events.pass() {
            observe::lost_rollback(lost, error, unlogged);
        }
    }
}

/// A rollback in progress. If it is dropped, as at the end of its runtime, it is lost, unless there is nothing to roll back.
pub(super) struct Rollback {
    rollbacks: Arc<Rollbacks>,
    check: Check,
    is_needed: bool,
}

impl Rollback {
    /// Rolls back a charge.
    pub(super) fn of_charge(backend: &RedisBackend, check: &Check, decision: &Decision) {
        // A charge of nothing but zeros has no refund.
        if let Some(refund) = refund(check, decision) {
            Self::spawn(backend, check.clone(), true, |backend, rollback| rollback.run(backend, refund));
        }
    }

    /// Rolls back a charge if a late reply says that there is one. A reply that never comes is an unanswered check, and no lost
    /// rollback.
    pub(super) fn of_late(backend: &RedisBackend, check: Check, reply: Late) {
        Self::spawn(backend, check, false, |backend, mut rollback| async move {
            if let Ok(decision) = reply.await
                && let Some(refund) = refund(&rollback.check, &decision)
            {
                rollback.is_needed = true;
                rollback.run(backend, refund).await;
            }
        });
    }

    fn spawn<F>(
        backend: &RedisBackend,
        check: Check,
        is_needed: bool,
        run: impl FnOnce(RedisBackend, Self) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let rollbacks = backend.rollbacks.clone();
        let others = rollbacks.in_progress.fetch_add(1, Ordering::AcqRel);
        // From here on, dropping it counts it.
        let rollback = Self { rollbacks, check, is_needed };
        if others < MAX_ROLLBACKS
            && let Ok(runtime) = Handle::try_current()
        {
            rollback.invalidate();
            runtime.spawn(run(backend.clone(), rollback));
        }
    }

    async fn run(mut self, backend: RedisBackend, refund: Refund) {
        let outcome = timeout(ROLLBACK_TIMEOUT, backend.refund_in_slot(&refund)).await;
        if let Err(error) = outcome.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout))) {
            self.rollbacks.lose(&error);
        }
        self.is_needed = false;
    }

    /// A denial that was decided before the rollback is no longer true.
    fn invalidate(&self) {
        if let Some(on_rollback) = &self.check.across_slots().on_rollback {
            on_rollback(&self.check);
        }
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        self.invalidate();
        if self.is_needed {
            self.rollbacks.lose(&BackendError::new(Reason::Other));
        }
        if self.rollbacks.in_progress.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.rollbacks.idle.notify_waiters();
        }
    }
}

/// Only a slot that has charged has receipts.
fn refund(check: &Check, decision: &Decision) -> Option<Refund> {
    Refund::of(check, decision.receipts(), &vec![0; check.pairs().len()])
}
