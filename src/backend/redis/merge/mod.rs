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
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use redis::{RedisResult, Value};
use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{
    RedisBackend,
    script::{Call, merged::server_time::CheckTime},
    topology::{Connection, ServerState},
};
use crate::{
    check::{Check, Namespace, Purpose},
    guard::Pass,
    lock::Lock,
};

mod batch;
mod flight;

use batch::{Batch, Waiter};
use flight::Flight;

/// The largest number of checks in one call. If their keys can hold many records, there are fewer.
const MAX_CHECKS: usize = 64;

/// The number of checks in flight from which a call for several checks costs less than a call for each.
const ADAPTIVE_IN_FLIGHT: usize = 8;

/// The number of counters of checks in flight. Two servers or slots may share a counter. Then their checks are merged sooner.
const COUNTERS: usize = 1_024;

/// The distance of the counters of a connection and the next one. It is odd, so that 1,024 connections have different counters, and
/// large, so that those of two connections also differ for near slots.
const STEP: usize = 389;

/// Whether checks that start at the same time share a script call; see [`RedisBackendBuilder::merging`](super::RedisBackendBuilder::merging).
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
    /// Counts a check as in flight at a server. Returns `None` if it is not merged, however many others are in flight.
    pub(super) fn merge_place(&self, slot: u16, connection: &Connection) -> Option<Place<'_>> {
        // The commands of a slot that is being migrated need ASKING.
        let min_in_flight = self.merger.min_in_flight.filter(|_| !connection.is_asking())?;
        let counter = self.merger.groups.counter(connection.server(), slot)?;
        let merges = counter.fetch_add(1, Ordering::Relaxed) + 1 >= min_in_flight;
        Some(Place { counter, merges })
    }

    /// Joins the open batch, or opens one, and waits for the reply to this check. Returns `None` if nothing was sent, because the
    /// runtime has shut down, or because there is none. Then `call` and the pass are as before. After an error reply, too, `call` is
    /// as before.
    pub(super) async fn send_merged(
        &self,
        check: &Check,
        slot: u16,
        call: &mut Call,
        pass: &mut Pass,
        connection: &Connection,
    ) -> Option<RedisResult<Value>> {
        let waiter = {
            let (server, runtime) = (address(connection), Handle::try_current().ok()?.id());
            let (namespace, purpose) = (check.scope().clone(), check.purpose());
            let key =
                GroupKey { server, slot, namespace, purpose, runtime, at_micros: self.injected_micros() };
            let (groups, time) = (&self.merger.groups, CheckTime::of(call));
            let mut open = groups.open.lock();
            let (batch, is_new) = match open.get(&key).filter(|batch| batch.has_room(time)) {
                Some(batch) => (batch.clone(), false),
                None => {
                    let batch = Arc::<Batch>::default();
                    open.insert(key.clone(), batch.clone());
                    (batch, true)
                }
            };
            let (waiter, is_full) = Waiter::join(&batch, mem::take(call), time, pass);
            if is_full {
                open.remove(&key);
            }
            drop(open);
            if is_new {
                let (connection, scripts, groups) =
                    (connection.clone(), self.scripts.clone(), groups.clone());
                let opened = Instant::now();
                tokio::spawn(Flight { batch, groups, key, connection, scripts, opened }.run());
            }
            waiter
        };
        let Some(outcome) = waiter.outcome(&self.unanswered, pass).await else {
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

/// Returns the address of the state of a server, which the connection keeps alive.
fn address(connection: &Connection) -> usize {
    Arc::as_ptr(connection.server()).addr()
}

/// The checks in flight and the open batches of a backend. Clones share them.
#[derive(Clone)]
pub(super) struct Merger {
    /// The number of checks in flight from which they are merged. `None` if they never are.
    min_in_flight: Option<usize>,
    groups: Arc<Groups>,
}

/// The checks in flight by server and slot, and the batches that are not written yet and have room.
struct Groups {
    in_flight: Box<[AtomicUsize]>,
    /// The number of the next connection.
    next_number: AtomicUsize,
    open: Lock<HashMap<GroupKey, Arc<Batch>>>,
}

/// What checks must have in common to share a call.
#[derive(Clone, PartialEq, Eq)]
struct GroupKey {
    /// The server, by the address of its state, which the connection of the batch keeps alive.
    server: usize,
    /// 0 if this is not known to be a cluster.
    slot: u16,
    namespace: Namespace,
    purpose: Purpose,
    /// A batch is driven by the runtime of its checks, so that no other runtime can stop them.
    runtime: runtime::Id,
    /// The instant of an injected clock.
    at_micros: Option<u64>,
}

/// Hashes what usually distinguishes two groups.
impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.server, self.slot).hash(state);
    }
}

/// The place of a check in the count of its server and slot. Dropping it releases the place.
pub(super) struct Place<'a> {
    counter: &'a AtomicUsize,
    merges: bool,
}

impl Merger {
    pub(super) fn new(merging: Merging) -> Self {
        let min_in_flight = match merging {
            Merging::Off => None,
            Merging::On => Some(2),
            Merging::Adaptive => Some(ADAPTIVE_IN_FLIGHT),
        };
        let in_flight = (0..COUNTERS).map(|_| AtomicUsize::new(0)).collect();
        let groups = Groups { in_flight, next_number: AtomicUsize::new(0), open: Lock::default() };
        Self { min_in_flight, groups: Arc::new(groups) }
    }
}

/// Returns whether a check may share a call with others. Unless it is for one server without slots, its keys must be in one slot.
pub(super) fn is_mergeable(check: &Check, is_one_server: bool) -> bool {
    matches!(check.purpose(), Purpose::Charge | Purpose::Reserve)
        && !check.pairs().iter().any(|pair| pair.is_shadow)
        && (is_one_server || !check.has_several_keys())
}

impl Groups {
    /// Returns the counter of the checks in flight at a server, of one slot. An atomic counter costs less than a lock, and most checks
    /// need no more.
    fn counter(&self, server: &ServerState, slot: u16) -> Option<&AtomicUsize> {
        // A number, so that a simulation repeats: which servers share a counter must not depend on their addresses. Another backend may
        // have given it. Then two servers may share counters, too.
        let number = server.number.get_or_init(|| self.next_number.fetch_add(1, Ordering::Relaxed));
        self.in_flight.get(number.wrapping_mul(STEP).wrapping_add(slot.into()) % COUNTERS)
    }

    /// Ends the time in which checks may join a batch.
    fn detach(&self, key: &GroupKey, batch: &Arc<Batch>) {
        let mut open = self.open.lock();
        if open.get(key).is_some_and(|open| Arc::ptr_eq(open, batch)) {
            open.remove(key);
        }
    }
}

impl Place<'_> {
    /// Returns whether enough checks are in flight.
    pub(super) fn merges(&self) -> bool {
        self.merges
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Returns the places of the counters of these servers, in their order.
    fn places<'a>(servers: impl IntoIterator<Item = &'a ServerState>) -> Vec<Option<usize>> {
        let groups = Merger::new(Merging::default()).groups;
        let place = |server| {
            let counter = groups.counter(server, 7)?;
            groups.in_flight.iter().position(|other| ptr::eq(counter, other))
        };
        servers.into_iter().map(place).collect()
    }

    #[test]
    fn servers_have_counters_that_do_not_depend_on_addresses() {
        let [first, second] =
            [(); 2].map(|()| (0..COUNTERS).map(|_| ServerState::default()).collect::<Vec<_>>());
        let places_of_first = places(&first);
        // The addresses of the others fall.
        assert_eq!(places_of_first, places(second.iter().rev()));
        let mut distinct = places_of_first;
        distinct.sort_unstable();
        assert_eq!(distinct, (0..COUNTERS).map(Some).collect::<Vec<_>>());
    }
}
