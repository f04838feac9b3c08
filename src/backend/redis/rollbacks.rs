//! The rollbacks of a backend: those in progress, and how many were lost.

use std::{
    collections::HashMap,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    backend::{BackendError, Reason},
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
    pub(super) ended: Notify,
    lost: AtomicU64,
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
        let is_over = |state: &RollbackState| state.end + GRACE <= now;
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

    pub(super) fn lose(&self, error: &BackendError) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        observe::lost_rollback(lost, error, &self.events);
    }
}

impl InProgress {
    /// Adds a rollback, or returns `None` if there are too many.
    pub(super) fn add(&mut self, state: RollbackState) -> Option<u64> {
        if state.is_charged && self.charged >= MAX_ROLLBACKS {
            return None;
        }
        self.started += 1;
        self.charged += usize::from(state.is_charged);
        self.rollbacks.insert(self.started, state);
        Some(self.started)
    }

    /// Records that a late reply has shown a charge.
    pub(super) fn charge(&mut self, id: u64, end: Instant) {
        if let Some(state) = self.rollbacks.get_mut(&id) {
            *state = RollbackState { end, is_charged: true };
            self.charged += 1;
        }
    }

    /// Removes a rollback. Returns its state, unless it was written off.
    pub(super) fn remove(&mut self, id: u64) -> Option<RollbackState> {
        let state = self.rollbacks.remove(&id)?;
        self.charged -= usize::from(state.is_charged);
        Some(state)
    }
}
