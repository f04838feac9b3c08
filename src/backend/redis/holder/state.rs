//! What the clones of a backend, its thread and its units share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::pairs::HeldPairs;
use crate::{
    lock::Lock,
    observe::{self, Throttle},
};

pub(super) struct HolderState {
    /// A random number. A process that forks needs a new backend.
    pub(super) id: u64,
    pub(super) pairs: Lock<HeldPairs>,
    /// Notified when a call may be due.
    pub(super) changed: Notify,
    /// Notified when a call has ended.
    pub(super) completed: Notify,
    pub(super) is_closed: AtomicBool,
    pub(super) has_thread: Lock<bool>,
    pub(super) interrupted: AtomicU64,
    pub(super) events: Throttle,
}

impl HolderState {
    /// Notes units that the store did not hold.
    pub(super) fn note_interrupted(&self, units: u64) {
        let all = self.interrupted.fetch_add(units, Ordering::Relaxed) + units;
        observe::interrupted_units(units, all, &self.events);
    }
}
