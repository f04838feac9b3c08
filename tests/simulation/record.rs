//! The record of a run: all events in their order, with the true time. No simulated host can read the true time.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_sliding_window::backend::Reason;

use super::plan::Step;

/// The unique number of a check.
pub type Id = u32;

/// A record of events of a type `E`.
pub struct Record<E = Event>(Arc<Mutex<Vec<Entry<E>>>>);

#[derive(Clone, Debug, PartialEq)]
pub struct Entry<E = Event> {
    pub at: Duration,
    pub event: E,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A step of the plan.
    Step(Step),
    Started {
        id: Id,
        client: usize,
        tenant: u64,
        cost: u32,
    },
    Completed {
        id: Id,
        outcome: Outcome,
    },
    /// The settlement of a reservation starts.
    Settling {
        id: Id,
        used: u32,
    },
    Settled {
        id: Id,
        is_done: bool,
    },
    /// The server has decided a check. `reading` is the reading of its clock.
    Decided {
        id: Id,
        reading: u64,
        verdict: Verdict,
    },
    Refunded {
        id: Id,
        units: u32,
    },
    /// The server has received a merged call.
    Merged {
        checks: usize,
    },
    /// The server does not know the script of a command.
    UnknownScript,
    Connected {
        client: usize,
    },
    /// A client has stopped.
    Stopped {
        client: usize,
        unanswered: u64,
        lost_settlements: u64,
        streams: usize,
    },
    /// The server has received an unknown command.
    UnknownCommand(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Charged,
    /// Charged as an overage, without a check of the quota.
    Overage,
    Denied,
    DeadlineExceeded,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// Admitted by the store, at this reading of its clock.
    Charged {
        reading: u64,
    },
    Denied {
        reading: u64,
    },
    /// Denied by the deny cache. The store denied an earlier check at this reading of its clock.
    CacheHit {
        reading: u64,
    },
    /// Admitted by the local fallback.
    Local {
        reading: u64,
    },
    Unchecked(Reason),
    LocalFallbackDenied(Reason),
    Unavailable(Reason),
    /// The caller has cancelled the call.
    Cancelled,
}

impl<E> Default for Record<E> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<E> Clone for Record<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> Record<E> {
    /// Records an event at the current instant.
    pub fn note(&self, event: E) {
        self.note_at(turmoil::sim_elapsed().unwrap(), event);
    }

    pub fn note_at(&self, at: Duration, event: E) {
        self.0.lock().unwrap().push(Entry { at, event });
    }

    pub fn take(&self) -> Vec<Entry<E>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns a hash of all events.
pub fn hash<E: Debug>(entries: &[Entry<E>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{entries:?}").hash(&mut hasher);
    hasher.finish()
}
