//! Rollbacks: the charges of a check across slots that another slot has denied.
//!
//! A rollback runs in a task of its own, so that it survives the check. There is a bound on the rollbacks in progress, apart from
//! that of settlements: a client over its limit cannot displace the settlements of others. A rollback that is not confirmed in
//! time is lost and counted, also if its runtime does not run.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};

use crate::{
    backend::{BackendError, Reason},
    check::{Check, Invalidation, Refund},
    foreign::contain,
    guard::until,
    lock::Lock,
    observe::{self, Throttle},
};

/// The time after its end in which a rollback is not written off yet: a busy machine wakes it with a delay.
const GRACE: Duration = Duration::from_millis(100);

/// The largest number of rollbacks in progress. Each takes a few kilobytes. Late replies do not count: the bound on checks in
/// flight applies to them.
const MAX_ROLLBACKS: usize = 16_384;

/// The rollbacks of a backend.
#[derive(Default)]
pub(super) struct Rollbacks {
    pub(super) in_progress: Lock<InProgress>,
    /// Notified when a rollback ends.
    ended: Notify,
    pub(super) lost: AtomicU64,
    events: Throttle,
}

/// The rollbacks in progress.
#[derive(Default)]
pub(super) struct InProgress {
    started: u64,
    rollbacks: HashMap<u64, RollbackState>,
    /// The number of rollbacks with a charge.
    pub(super) charged: usize,
}

/// The state of one rollback.
#[derive(Clone, Copy)]
pub(super) struct RollbackState {
    /// When the rollback ends at the latest.
    pub(super) end: Instant,
    /// Whether there is a charge to roll back. A late reply shows it.
    pub(super) is_charged: bool,
}

impl Rollbacks {
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
        let over = in_progress.rollbacks.extract_if(|_, state| state.end + GRACE <= now);
        let lost = over.filter(|(_, state)| state.is_charged).count();
        in_progress.charged -= lost;
        let next = in_progress.rollbacks.values().map(|state| state.end + GRACE).min();
        drop(in_progress);
        for _ in 0..lost {
            self.lose(&BackendError::new(Reason::Timeout));
        }
        next
    }

    pub(super) fn lose(&self, error: &BackendError) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        contain(|| observe::lost_rollback(lost, error, &self.events));
    }
}

impl InProgress {
    /// Adds a rollback, or returns `None` if there are too many.
    fn add(&mut self, state: RollbackState) -> Option<u64> {
        if state.is_charged && self.charged >= MAX_ROLLBACKS {
            return None;
        }
        self.started += 1;
        self.charged += usize::from(state.is_charged);
        self.rollbacks.insert(self.started, state);
        Some(self.started)
    }

    /// Records that a late reply has shown a charge. A drain may have ended the rollback before, as one without a charge.
    pub(super) fn charge(&mut self, id: u64, end: Instant) {
        self.rollbacks.insert(id, RollbackState { end, is_charged: true });
        self.charged += 1;
    }

    /// Removes a rollback. Returns its state, unless it was written off.
    pub(super) fn remove(&mut self, id: u64) -> Option<RollbackState> {
        let state = self.rollbacks.remove(&id)?;
        self.charged -= usize::from(state.is_charged);
        Some(state)
    }
}

/// A rollback in progress. If it is dropped with a charge, as at the end of its runtime, it is lost.
pub(super) struct Rollback {
    pub(super) rollbacks: Arc<Rollbacks>,
    pub(super) id: u64,
    pub(super) check: Check,
    /// A denial that was decided before the rollback is no longer true. If the rollback is not made, it is.
    invalidation: Option<Invalidation>,
}

impl Rollback {
    /// Starts a rollback. Returns `None` if there are too many, or if there is no runtime for its task. A charge is then lost.
    pub(super) fn start(rollbacks: &Arc<Rollbacks>, check: Check, state: RollbackState) -> Option<Self> {
        let id = Handle::try_current().ok().and_then(|_| rollbacks.in_progress.lock().add(state));
        let Some(id) = id else {
            if state.is_charged {
                rollbacks.lose(&BackendError::new(Reason::Overloaded));
            }
            return None;
        };
        // From here on, dropping it ends it.
        let charged = check.pairs().iter().map(|pair| (&pair.key, &pair.policy));
        let invalidation = Invalidation::begin(check.scope(), charged, false);
        Some(Self { rollbacks: rollbacks.clone(), id, check, invalidation: Some(invalidation) })
    }

    /// Notes that the units of some pairs are refunded.
    pub(super) fn made(&mut self, refund: &Refund) {
        if let Some(invalidation) = &mut self.invalidation {
            for pair in refund.pairs() {
                invalidation.made_for(&pair.key, &pair.policy);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::{Namespace, Pair, Purpose, Receipt},
        decision::{Decision, Status, Wait},
        deny_cache::{CacheLookup, DenyCache, DenyCacheConfig},
        key::PartitionKey,
        policy::Policy,
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// A busy machine may run a task after its end, when a drain has ended its rollback, and the reply is there.
    #[tokio::test(start_paused = true)]
    async fn charge_that_is_found_after_a_drain_is_lost_if_it_is_not_rolled_back() {
        let rollbacks = Arc::<Rollbacks>::default();
        let policy = Policy::new("p", 5, 10 * SECOND).unwrap();
        let check = Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 1)]).unwrap();
        let state = RollbackState { end: Instant::now(), is_charged: false };
        let rollback = Rollback::start(&rollbacks, check, state).unwrap();
        rollbacks.drain().await;
        assert_eq!(rollbacks.lost.load(Ordering::Relaxed), 0);

        rollbacks.in_progress.lock().charge(rollback.id, Instant::now() + SECOND);
        drop(rollback);
        assert_eq!(rollbacks.lost.load(Ordering::Relaxed), 1);
        assert_eq!(rollbacks.in_progress.lock().charged, 0);
        rollbacks.drain().await;
    }

    /// The refunds of a slot may take several calls. The runtime ends after the first one.
    #[tokio::test(start_paused = true)]
    async fn partial_rollback_keeps_other_denials() {
        let namespace = Namespace::default().in_unnamed_store();
        let denials = DenyCache::new(Some(DenyCacheConfig::default()), namespace.clone());
        let policy = Policy::new("p", 5, 10 * SECOND).unwrap();
        let pair = |user: usize| Pair::new(PartitionKey::new("user", user.to_string()), policy.clone(), 1);
        let check = Check::new((0..5).map(pair).collect::<Vec<_>>()).unwrap().in_namespace(namespace);
        let denied = |pair| Status::new(pair, 0, Wait::For(SECOND), SECOND, SECOND);
        let decision = Decision::new(0, check.pairs().iter().map(denied).collect::<Vec<_>>());
        let CacheLookup::Miss(miss) = denials.lookup(&check) else { panic!("no denial is known") };
        let _ = miss.send(Instant::now()).learn(&check, Ok(decision)).unwrap();
        // What is repeated if the store makes no decision.
        let known = || [0, 1, 2, 3, 4].map(|i| denials.repeat(&check.part(&[i], Purpose::Charge)).is_some());
        let rollbacks = Arc::<Rollbacks>::default();
        let state = RollbackState { end: Instant::now() + SECOND, is_charged: true };
        let mut rollback = Rollback::start(&rollbacks, check.clone(), state).unwrap();
        assert_eq!(known(), [true; 5]);
        let receipt = Receipt { generation: 1, at_micros: 0, ordinal: 0 };
        let refund = Refund::new(&check, &[receipt; 5], &[0; 5]).unwrap();
        rollback.made(&refund.part(&[0, 1, 2, 3]));
        drop(rollback);
        assert_eq!(known(), [false, false, false, false, true]);
        assert_eq!(rollbacks.lost.load(Ordering::Relaxed), 1);
    }
}
