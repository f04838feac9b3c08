//! Rollbacks: the charges of a check across slots that another slot has denied.
//!
//! A rollback runs in a task of its own, so that it survives the check. There is a bound on the rollbacks in progress, apart from
//! that of settlements: a client over its limit cannot displace the settlements of others. A rollback that is not confirmed in
//! time is lost and counted, also if its runtime does not run.

use std::{
    collections::HashMap,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::RedisBackend;
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Refund},
    decision::Decision,
    lock::Lock,
    observe::{self, Throttle},
    outage::until,
};

/// The timeout of the rollback of one slot. No request waits for it. After it, the script changes nothing.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before a rollback is sent again to a busy server.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// How long after the deadline of its check a late reply may come.
const LATE_REPLY: Duration = Duration::from_secs(1);

/// The time after its end in which a rollback is not written off yet: a busy machine wakes it with a delay.
const GRACE: Duration = Duration::from_millis(100);

/// The largest number of rollbacks in progress. Each takes a few kilobytes. Late replies do not count: the bound on checks in
/// flight applies to them.
const MAX_ROLLBACKS: usize = 16_384;

/// A reply that a check has not waited for.
pub(super) struct Late {
    pub(super) reply: Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>,
    /// Whether a command was sent that has no reply yet.
    pub(super) is_pending: Arc<AtomicBool>,
}

impl Late {
    /// Waits for the reply until the deadline, in the background, so that the circuit breaker learns of a server that hangs.
    pub(super) fn wait_in_background(self, deadline: Option<Instant>) {
        if let (Some(deadline), Ok(runtime)) = (deadline, Handle::try_current()) {
            runtime.spawn(until(deadline, self.reply));
        }
    }
}

/// The rollbacks of a backend.
#[derive(Default)]
pub(super) struct Rollbacks {
    in_progress: Lock<InProgress>,
    /// Notified when a rollback ends.
    ended: Notify,
    lost: AtomicU64,
    events: Throttle,
}

#[derive(Default)]
struct InProgress {
    started: u64,
    rollbacks: HashMap<u64, State>,
    /// The number of rollbacks with a charge.
    charged: usize,
}

#[derive(Clone, Copy)]
struct State {
    /// When the rollback ends at the latest.
    end: Instant,
    /// Whether there is a charge to roll back. A late reply shows it.
    is_charged: bool,
}

impl Rollbacks {
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until no rollback is in progress. A rollback that is not driven is written off after its end.
    pub(super) async fn drain(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // From here on, no notification is missed.
            ended.as_mut().enable();
            let Some(end) = self.write_off() else { return };
            // `None` means that the end has come.
            until(end, ended).await;
        }
    }

    /// Ends all rollbacks whose end has passed. Returns the next end, or `None` if no rollback is left.
    fn write_off(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut in_progress = self.in_progress.lock();
        let is_over = |state: &State| state.end + GRACE <= now;
        let over: Vec<u64> =
            in_progress.rollbacks.iter().filter(|(_, state)| is_over(state)).map(|(id, _)| *id).collect();
        let lost =
            over.into_iter().filter_map(|id| in_progress.remove(id)).filter(|state| state.is_charged).count();
        let next = in_progress.rollbacks.values().map(|state| state.end + GRACE).min();
        drop(in_progress);
        for _ in 0..lost {
            self.lose(&BackendError::new(Reason::Timeout));
        }
        next
    }

    fn lose(&self, error: &BackendError) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        observe::lost_rollback(lost, error, &self.events);
    }
}

impl InProgress {
    /// Adds a rollback, or returns `None` if there are too many.
    fn add(&mut self, state: State) -> Option<u64> {
        if state.is_charged && self.charged >= MAX_ROLLBACKS {
            return None;
        }
        self.started += 1;
        self.charged += usize::from(state.is_charged);
        self.rollbacks.insert(self.started, state);
        Some(self.started)
    }

    /// Records that a late reply has shown a charge.
    fn charge(&mut self, id: u64, end: Instant) {
        if let Some(state) = self.rollbacks.get_mut(&id) {
            *state = State { end, is_charged: true };
            self.charged += 1;
        }
    }

    /// Removes a rollback. Returns its state, unless it was written off.
    fn remove(&mut self, id: u64) -> Option<State> {
        let state = self.rollbacks.remove(&id)?;
        self.charged -= usize::from(state.is_charged);
        Some(state)
    }
}

/// A rollback in progress. If it is dropped with a charge, as at the end of its runtime, it is lost.
pub(super) struct Rollback {
    rollbacks: Arc<Rollbacks>,
    id: u64,
    check: Check,
}

impl Rollback {
    /// Rolls back a charge.
    pub(super) fn of_charge(backend: &RedisBackend, check: Check, decision: &Decision) {
        // A charge of nothing but zeros has no refund.
        let Some(refund) = refund(&check, decision) else { return };
        let state = State { end: Instant::now() + ROLLBACK_TIMEOUT, is_charged: true };
        Self::spawn(backend, check, state, |backend, rollback| rollback.run(backend, refund));
    }

    /// Rolls back a charge if a late reply says that there is one. A reply that never comes is an unanswered check, and no lost
    /// rollback.
    pub(super) fn of_late(backend: &RedisBackend, check: Check, late: Late) {
        if !late.is_pending.load(Ordering::Relaxed) {
            // Nothing was sent.
            return;
        }
        let now = Instant::now();
        let end = check.deadline().map_or(now, |deadline| deadline.max(now)) + LATE_REPLY;
        Self::spawn(backend, check, State { end, is_charged: false }, move |backend, rollback| async move {
            if let Ok(Ok(decision)) = timeout_at(end, late.reply).await
                && let Some(refund) = refund(&rollback.check, &decision)
            {
                rollback.rollbacks.in_progress.lock().charge(rollback.id, Instant::now() + ROLLBACK_TIMEOUT);
                rollback.run(backend, refund).await;
            }
        });
    }

    fn spawn<F>(backend: &RedisBackend, check: Check, state: State, run: impl FnOnce(RedisBackend, Self) -> F)
    where
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
        let rollback = Self { rollbacks, id, check };
        rollback.invalidate();
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
