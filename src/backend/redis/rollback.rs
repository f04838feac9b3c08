//! Rollbacks: the charges of a check across slots that another slot has denied.
//!
//! A rollback runs in a task of its own, so that it survives the check. There is a bound on the rollbacks in progress, apart from
//! that of settlements: a client over its limit cannot displace the settlements of others. A rollback that is not confirmed in
//! time is lost and counted, also if its runtime does not run.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    RedisBackend,
    patience::Late,
    rollbacks::{RollbackState, Rollbacks},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Invalidation, Refund},
    decision::Decision,
};

/// The timeout of the rollback of one slot. No request waits for it. After it, the script changes nothing.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before a rollback is sent again to a busy server.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// How long after the deadline of its check a late reply may come.
const LATE_REPLY: Duration = Duration::from_secs(1);

/// A rollback in progress. If it is dropped with a charge, as at the end of its runtime, it is lost.
struct Rollback {
    rollbacks: Arc<Rollbacks>,
    id: u64,
    check: Check,
    /// A denial that was decided before the rollback is no longer true.
    invalidation: Option<Invalidation>,
}

impl RedisBackend {
    /// Rolls back a charge.
    pub(super) fn roll_back(&self, check: Check, decision: &Decision) {
        // A charge of nothing but zeros has no refund.
        let Some(refund) = refund(&check, decision) else { return };
        let state = RollbackState { end: Instant::now() + ROLLBACK_TIMEOUT, is_charged: true };
        Rollback::spawn(self, check, state, |backend, rollback| rollback.run(backend, refund));
    }

    /// Rolls back a charge if a late reply says that there is one. A reply that never comes is an unanswered check, and no lost
    /// rollback.
    pub(super) fn roll_back_late(&self, check: Check, late: Late) {
        if !late.is_pending.load(Ordering::Relaxed) {
            // Nothing was sent.
            return;
        }
        let now = Instant::now();
        let end = check.deadline().map_or(now, |deadline| deadline.max(now)) + LATE_REPLY;
        Rollback::spawn(
            self,
            check,
            RollbackState { end, is_charged: false },
            move |backend, rollback| async move {
                if let Ok(Ok(decision)) = timeout_at(end, late.reply).await
                    && let Some(refund) = refund(&rollback.check, &decision)
                {
                    rollback
                        .rollbacks
                        .in_progress
                        .lock()
                        .charge(rollback.id, Instant::now() + ROLLBACK_TIMEOUT);
                    rollback.run(backend, refund).await;
                }
            },
        );
    }
}

impl Rollback {
    fn spawn<F>(
        backend: &RedisBackend,
        check: Check,
        state: RollbackState,
        run: impl FnOnce(RedisBackend, Self) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let rollbacks = backend.rollbacks.clone();
        let runtime = Handle::try_current().ok();
        let id = runtime.as_ref().and_then(|_| rollbacks.in_progress.lock().add(state));
        let (Some(runtime), Some(id)) = (runtime, id) else {
            if state.is_charged {
                rollbacks.lose(&BackendError::new(Reason::Overloaded));
            }
            return;
        };
        // From here on, dropping it ends it.
        let charged = check.pairs().iter().map(|pair| (&pair.key, &pair.policy));
        let invalidation = Invalidation::remove(check.scope(), charged);
        let rollback = Self { rollbacks, id, check, invalidation: Some(invalidation) };
        runtime.spawn(run(backend.clone(), rollback));
    }

    async fn run(self, backend: RedisBackend, refund: Refund) {
        let end = Instant::now() + ROLLBACK_TIMEOUT;
        let refund = refund.with_deadline(end);
        let outcome = timeout_at(end, backend.refund_in_slot(&refund)).await;
        let mut outcome = outcome.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
        // A busy server has not run the refund: for example, if the cluster is down while a replica takes over.
        while outcome.as_ref().is_err_and(|error| error.reason() == Reason::Busy) && Instant::now() < end {
            sleep(BUSY_PAUSE).await;
            let again = timeout_at(end, backend.refund_in_slot(&refund)).await;
            outcome = again.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
        }
        let state = self.rollbacks.in_progress.lock().remove(self.id);
        // A rollback that was written off is lost already.
        if let (Some(_), Err(error)) = (state, outcome) {
            self.rollbacks.lose(&error);
        }
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        drop(self.invalidation.take());
        let state = self.rollbacks.in_progress.lock().remove(self.id);
        if state.is_some_and(|state| state.is_charged) {
            self.rollbacks.lose(&BackendError::new(Reason::Other));
        }
        self.rollbacks.ended.notify_waiters();
    }
}

/// Only a slot that has charged has receipts.
fn refund(check: &Check, decision: &Decision) -> Option<Refund> {
    Refund::of(check, decision.receipts(), &vec![0; check.pairs().len()])
}
