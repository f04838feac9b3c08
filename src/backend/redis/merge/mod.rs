//! Merged checks: checks for the same server that are not written yet share one script call.
//!
//! A check that finds enough others in flight joins the open batch of its group, instead of sending a call of its own. A task of
//! the batch runs when the tasks that are ready have run. It closes the batch and sends it as one call. The
//! [replies](super::script::merged::Replies) are those that the check script would send, so a check handles its reply, a redirect or a
//! lost connection as if it were alone.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use redis::{RedisResult, Value};
use tokio::runtime::{self, Handle};

use super::{
    RedisBackend,
    script::{Call, Scripts},
    topology::Connection,
};
use crate::{
    check::{Check, Purpose},
    outage::Pass,
};

mod batch;
mod flight;

use batch::{Batch, Waiter};
use flight::Flight;

/// The largest number of checks in one call.
const MAX_CHECKS: usize = 64;

/// The number of checks in flight from which a call for several checks costs less than a call for each.
const ADAPTIVE_IN_FLIGHT: usize = 8;

/// Whether checks that start at the same time share a script call; see [`RedisBackend::merging`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Merging {
    /// Each check is a call of its own.
    Off,
    /// Checks are merged if at least one other check is in flight.
    On,
    /// Checks are merged if at least seven others are in flight. This is the default.
    #[default]
    Adaptive,
}

impl RedisBackend {
    /// Sets whether checks that start at the same time share a script call. By default, they do if at least eight checks are in
    /// flight at one server ([`Merging::Adaptive`]).
    ///
    /// A merged call decides up to 64 checks, one after another, as separate calls would. Equal checks, which have the same keys,
    /// policies and costs, are charged at once. Redis and the process then do less work per check: a single hot key gains most.
    /// Each check keeps its deadline, its error, its receipt and its place in the count of checks in flight. No check waits for
    /// the reply of another call.
    ///
    /// Checks are merged if they are for the same server, or in a cluster for the same slot, and have the same namespace and tokio
    /// runtime. Only such checks count as in flight here. Charges are merged with charges, and reservations with reservations.
    /// Peeks, overages and checks with shadow policies are calls of their own. So are checks of several partition keys in a cluster
    /// or over your own connection. Over your own connection, checks of the same slot are merged.
    ///
    /// The setting applies to this clone of the backend and to the clones of it.
    ///
    /// ```
    /// use tower_sliding_window::{RedisBackend, redis::Merging};
    ///
    /// let backend = RedisBackend::lazy("redis://127.0.0.1/")?.merging(Merging::Off);
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[must_use]
    pub fn merging(self, merging: Merging) -> Self {
        Self { merger: Merger::new(merging), ..self }
    }
}

impl RedisBackend {
    /// Counts a check as in flight at a server. Returns `None` if it is not merged, however many others are in flight.
    pub(super) fn merge_place(&self, check: &Check, slot: u16, connection: &Connection) -> Option<Place<'_>> {
        // The commands of a slot that is being migrated need ASKING.
        let min_in_flight = self.merger.min_in_flight.filter(|_| !connection.is_asking())?;
        let runtime = Handle::try_current().ok()?.id();
        let server = Arc::as_ptr(connection.server()).addr();
        let slot = self.topology.is_cluster().then_some(slot);
        let (namespace, purpose) = (check.namespace_shared().clone(), check.purpose());
        let key = GroupKey { server, slot, namespace, purpose, runtime, at_micros: self.injected_micros() };
        Some(self.merger.enter(key, min_in_flight))
    }

    /// Returns what a batch needs to send its call.
    pub(super) fn batch_sender<'a>(&'a self, connection: &'a Connection) -> Sender<'a> {
        Sender { connection, scripts: &self.scripts, unanswered: &self.unanswered }
    }
}

/// The checks in flight and the open batches of a backend. Clones share them.
#[derive(Clone)]
pub(super) struct Merger {
    /// The number of checks in flight in a group from which they are merged. `None` if they never are.
    min_in_flight: Option<usize>,
    groups: Arc<Groups>,
}

/// The groups with checks in flight.
#[derive(Default)]
struct Groups(Mutex<HashMap<GroupKey, Group>>);

/// What checks must have in common to share a call.
#[derive(Clone, PartialEq, Eq)]
struct GroupKey {
    /// The server, by the address of its state, which the connections of the group keep alive.
    server: usize,
    slot: Option<u16>,
    namespace: Arc<str>,
    purpose: Purpose,
    /// A batch is driven by the runtime of its checks, so that no other runtime can stop them.
    runtime: runtime::Id,
    /// The instant of an injected clock.
    at_micros: Option<u64>,
}

/// Hashes what usually tells two groups apart.
impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.server, self.slot).hash(state);
    }
}

#[derive(Default)]
struct Group {
    in_flight: usize,
    /// The batch that is not written yet and has room.
    open: Option<Arc<Batch>>,
}

/// The place of a check in the count of its group. Dropping it releases the place.
pub(super) struct Place<'a> {
    groups: &'a Arc<Groups>,
    key: GroupKey,
    merges: bool,
}

/// What a batch needs to send its call.
pub(super) struct Sender<'a> {
    connection: &'a Connection,
    scripts: &'a Arc<Scripts>,
    /// The number of checks without a reply.
    unanswered: &'a AtomicU64,
}

impl Default for Merger {
    fn default() -> Self {
        Self::new(Merging::default())
    }
}

impl Merger {
    fn new(merging: Merging) -> Self {
        let min_in_flight = match merging {
            Merging::Off => None,
            Merging::On => Some(2),
            Merging::Adaptive => Some(ADAPTIVE_IN_FLIGHT),
        };
        Self { min_in_flight, groups: Arc::default() }
    }

    /// Counts a check as in flight in its group.
    fn enter(&self, key: GroupKey, min_in_flight: usize) -> Place<'_> {
        let mut groups = self.groups.lock();
        let group = groups.entry(key.clone()).or_default();
        group.in_flight += 1;
        let merges = group.in_flight >= min_in_flight;
        drop(groups);
        Place { groups: &self.groups, key, merges }
    }
}

/// Returns whether a check may share a call with others. Unless it is for one server without slots, its keys must be in one slot.
pub(super) fn is_mergeable(check: &Check, is_one_server: bool) -> bool {
    matches!(check.purpose(), Purpose::Charge | Purpose::Reserve)
        && !check.pairs().iter().any(|pair| pair.is_shadow)
        && (is_one_server || !check.has_several_keys())
}

impl Groups {
    // No code that holds the lock can panic or wait.
    fn lock(&self) -> MutexGuard<'_, HashMap<GroupKey, Group>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the time in which checks may join a batch.
    fn detach(&self, key: &GroupKey, batch: &Arc<Batch>) {
        if let Some(group) = self.lock().get_mut(key) {
            group.open.take_if(|open| Arc::ptr_eq(open, batch));
        }
    }
}

impl Place<'_> {
    /// Returns whether enough checks are in flight.
    pub(super) fn merges(&self) -> bool {
        self.merges
    }

    /// Joins the open batch, or opens one, and waits for the reply to this check. Returns `None` if nothing was sent, because the
    /// runtime has shut down. Then `call` and the pass are as before. After an error reply, too, `call` is as before.
    pub(super) async fn send(
        &self,
        call: &mut Call,
        pass: &mut Pass,
        sender: Sender<'_>,
    ) -> Option<RedisResult<Value>> {
        let Sender { connection, scripts, unanswered } = sender;
        let waiter = {
            let mut groups = self.groups.lock();
            // The place keeps the group.
            let group = groups.get_mut(&self.key)?;
            let (batch, is_new) = match &group.open {
                Some(batch) => (batch.clone(), false),
                None => (group.open.insert(Arc::default()).clone(), true),
            };
            let (waiter, is_full) = Waiter::join(&batch, mem::take(call), pass);
            if is_full {
                group.open = None;
            }
            drop(groups);
            if is_new {
                let (connection, scripts) = (connection.clone(), scripts.clone());
                let (groups, key) = (self.groups.clone(), self.key.clone());
                tokio::spawn(Flight { batch, groups, key, connection, scripts }.run());
            }
            waiter
        };
        let Some(outcome) = waiter.outcome(unanswered, pass).await else {
            let text = "the runtime of a merged call has shut down";
            return Some(Err(io::Error::new(io::ErrorKind::ConnectionAborted, text).into()));
        };
        *call = outcome.call;
        if let Some(report) = outcome.report {
            pass.give_report(report);
        }
        outcome.reply
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get_mut(&self.key) {
            group.in_flight -= 1;
            if group.in_flight == 0 {
                groups.remove(&self.key);
            }
        }
    }
}
