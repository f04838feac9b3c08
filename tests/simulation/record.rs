//! What has happened in a run, in its order, and when by the one true time that nobody in it can read.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_sliding_window::backend::Reason;

use super::plan::Step;

/// The number of a check, different for every one.
pub type Id = u32;

#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Entry>>>);

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub at: Duration,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Of the plan.
    Step(Step),
    Asked {
        id: Id,
        client: usize,
        tenant: u64,
        cost: u32,
    },
    Answered {
        id: Id,
        answer: Answer,
    },
    /// A reservation is settled.
    Settling {
        id: Id,
        used: u32,
    },
    Settled {
        id: Id,
        is_done: bool,
    },
    /// The server has decided a check; `reading` is that of its clock.
    Ruled {
        id: Id,
        reading: u64,
        ruling: Ruling,
    },
    GaveBack {
        id: Id,
        units: u32,
    },
    /// The server was asked to run what it does not know.
    UnknownScript,
    Connected {
        client: usize,
    },
    /// A client has stopped.
    Ended {
        client: usize,
        unanswered: u64,
        lost_settlements: u64,
        streams: usize,
    },
    /// The server was asked what it does not understand.
    Misunderstood(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ruling {
    Charged,
    /// Charged although it may not fit.
    Overage,
    Denied,
    Late,
}

/// What a caller was told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// Admitted by the store, at this reading of its clock.
    Charged {
        reading: u64,
    },
    Denied {
        reading: u64,
    },
    /// Denied as the store has denied somebody before, at this reading of its clock.
    Known {
        reading: u64,
    },
    /// Admitted by the memory of the process.
    Local {
        reading: u64,
    },
    Unchecked(Reason),
    BeyondShare(Reason),
    Unavailable(Reason),
    /// The caller has not waited.
    Gone,
}

impl Record {
    /// Notes what somebody in the simulation does.
    pub fn note(&self, event: Event) {
        self.note_at(turmoil::sim_elapsed().unwrap(), event);
    }

    pub fn note_at(&self, at: Duration, event: Event) {
        self.0.lock().unwrap().push(Entry { at, event });
    }

    pub fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A number that differs where anything differs, or so good as always.
pub fn hash(entries: &[Entry]) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{entries:?}").hash(&mut hasher);
    hasher.finish()
}
