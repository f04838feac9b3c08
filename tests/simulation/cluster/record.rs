//! The events of a run.

use std::time::Duration;

use tower_sliding_window::{OutageRule, backend::Purpose};

use super::plan::Step;
use crate::simulation::record::{self, Verdict};
pub use crate::simulation::record::{Id, Outcome};

pub type Record = record::Record<Event>;
pub type Entry = record::Entry<Event>;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A step of the plan, and the node that it concerns.
    Step(Step, Option<usize>),
    /// The primary of a shard has changed.
    Promoted {
        shard: usize,
        node: usize,
    },
    Started(Started),
    Completed {
        id: Id,
        outcome: Outcome,
    },
    Settling {
        id: Id,
        used: u32,
    },
    Settled {
        id: Id,
        is_done: bool,
    },
    /// A reset of some slots has started.
    Resetting {
        client: usize,
        slots: Vec<u16>,
    },
    /// A node has executed a check.
    Ran(Ran),
    /// A node has executed a merged call.
    Merged {
        checks: usize,
    },
    /// A node has executed a refund. A rollback refunds everything.
    Refunded {
        id: Id,
        node: usize,
        slot: u16,
        units: u32,
        is_rollback: bool,
    },
    /// A node has executed a reset.
    Reset {
        node: usize,
        slot: u16,
    },
    /// A check has arrived at a node, which may refuse it.
    Asked {
        id: Id,
        slot: u16,
    },
    /// A node has replied with an error.
    Refused {
        node: usize,
        slot: u16,
        code: &'static str,
    },
    Connected {
        client: usize,
        node: usize,
    },
    Disconnected {
        client: usize,
        node: usize,
    },
    Stopped(Stopped),
    UnknownCommand(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    pub id: Id,
    pub client: usize,
    pub limiter: usize,
    pub rule: OutageRule,
    pub reserves: bool,
    pub cost: u32,
    /// The slots of the check.
    pub slots: Vec<u16>,
    /// The time after which the caller drops the check.
    pub cancelled_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    pub id: Id,
    pub node: usize,
    pub slot: u16,
    /// Identifies the data. It changes when data is lost.
    pub lineage: u64,
    pub reading: u64,
    pub purpose: Purpose,
    pub verdict: Verdict,
}

/// The counters of a client at its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopped {
    pub client: usize,
    pub unanswered: u64,
    pub lost_rollbacks: u64,
    pub lost_settlements: u64,
    pub streams: usize,
}
