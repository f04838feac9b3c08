//! The groups of checks that may share a call, with the number of checks in flight and the open batch of each.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::runtime::{self, Handle};

use super::batch::Batch;
use crate::{
    backend::redis::{
        mix_hasher::MixHasher,
        topology::{Connection, ServerState},
    },
    check::{Check, Namespace, Purpose},
    lock::Lock,
};

/// The number of checks in flight from which a call for several equal checks costs less than a call for each.
const ADAPTIVE_IN_FLIGHT: usize = 8;

/// The number of calls among which adaptive merging divides the checks in flight of a runtime with one thread. With fewer, this thread and
/// the server would wait for each other in turn.
const ADAPTIVE_CALLS: usize = 8;

/// The number of counters of checks in flight. Two servers or slots may share a counter. Then their checks are merged sooner.
const COUNTERS: usize = 1_024;

/// The distance of the counters of a connection and the next one. It is odd, so that 1,024 connections have different counters, and
/// large, so that those of two connections also differ for near slots.
const STEP: usize = 389;

/// Whether checks that start at the same time share a script call; see [`RedisBackendBuilder::merging`](crate::redis::RedisBackendBuilder::merging).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Merging {
    /// Each check is a call of its own.
    Off,
    /// Checks are merged if at least one other check is in flight.
    On,
    /// Checks are merged if at least seven others are in flight. On a runtime with one thread, the checks of one call that differ are at
    /// most an eighth of those in flight. This is the default.
    #[default]
    Adaptive,
}

/// The checks in flight and the open batches of a backend. Clones share them.
#[derive(Clone)]
pub(crate) struct Merger {
    /// The number of checks in flight from which they are merged. `None` if they never are.
    min_in_flight: Option<usize>,
    /// Whether a runtime with one thread divides its checks among several calls.
    divides: bool,
    pub(super) groups: Arc<BatchGroups>,
}

/// The checks in flight by server and slot, and the batches that are not written yet and have room.
pub(super) struct BatchGroups {
    in_flight: Box<[AtomicUsize]>,
    /// The number of the next connection.
    next_number: AtomicUsize,
    pub(super) open: Lock<HashMap<GroupKey, Arc<Batch>, BuildHasherDefault<MixHasher>>>,
}

/// What checks must have in common to share a call.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct GroupKey {
    /// The server, by the address of its state, which the connection of the batch keeps alive.
    server: usize,
    /// 0 if this is not known to be a cluster.
    slot: u16,
    namespace: Namespace,
    purpose: Purpose,
    /// Whether its checks share a call. Otherwise, a batch has one check.
    pub(super) may_share: bool,
    /// A batch is driven by the runtime of its checks, so that no other runtime can stop them.
    runtime: runtime::Id,
    has_one_thread: bool,
    /// The instant of an injected clock.
    at_micros: Option<u64>,
}

/// Hashes what usually distinguishes two groups.
impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.server, self.slot).hash(state);
    }
}

/// A check in the count of its server and slot. Dropping it ends its part of the count.
pub(crate) struct CountedCheck<'a> {
    counter: &'a AtomicUsize,
    /// The number of checks in flight, if these are enough to merge them.
    pub(crate) in_flight: Option<usize>,
}

impl Merger {
    pub(crate) fn new(merging: Merging) -> Self {
        let min_in_flight = match merging {
            Merging::Off => None,
            Merging::On => Some(2),
            Merging::Adaptive => Some(ADAPTIVE_IN_FLIGHT),
        };
        let in_flight = (0..COUNTERS).map(|_| AtomicUsize::new(0)).collect();
        let groups = BatchGroups { in_flight, next_number: AtomicUsize::new(0), open: Lock::default() };
        Self { min_in_flight, divides: merging == Merging::Adaptive, groups: Arc::new(groups) }
    }

    /// Counts a check as in flight at a server. Returns `None` if it is not merged, however many others are in flight.
    pub(crate) fn count(&self, slot: u16, connection: &Connection) -> Option<CountedCheck<'_>> {
        // The commands of a slot that is being migrated need ASKING.
        let min_in_flight = self.min_in_flight.filter(|_| !connection.is_asking())?;
        let counter = self.groups.counter(connection.server(), slot);
        let in_flight = counter.fetch_add(1, Ordering::Relaxed) + 1;
        Some(CountedCheck {
            counter,
            in_flight: Some(in_flight).filter(|in_flight| *in_flight >= min_in_flight),
        })
    }

    /// Returns the most checks of one call that differ, with this number in flight. `None` if it has no such limit.
    pub(super) fn max_different(&self, key: &GroupKey, in_flight: usize) -> Option<usize> {
        (self.divides && key.has_one_thread).then_some(in_flight / ADAPTIVE_CALLS)
    }
}

impl GroupKey {
    /// Returns the group of a check. Returns `None` if there is no runtime.
    pub(crate) fn new(
        check: &Check,
        may_share: bool,
        slot: u16,
        connection: &Connection,
        at_micros: Option<u64>,
    ) -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        Some(Self {
            server: Arc::as_ptr(connection.server()).addr(),
            slot,
            namespace: check.scope().clone(),
            purpose: check.purpose(),
            may_share,
            runtime: runtime.id(),
            has_one_thread: runtime.metrics().num_workers() == 1,
            at_micros,
        })
    }
}

/// Returns whether a check may be sent by the task of a batch. This task waits for the reply although the caller has gone, so that the
/// check still counts as in flight.
pub(crate) fn is_batchable(check: &Check) -> bool {
    matches!(check.purpose(), Purpose::Charge | Purpose::Reserve)
}

/// Returns whether a check in a batch may share its call with others. Unless it is for one server without slots, its keys must be in one
/// slot.
pub(crate) fn is_mergeable(check: &Check, is_one_server: bool) -> bool {
    !check.pairs().iter().any(|pair| pair.is_shadow) && (is_one_server || !check.has_several_keys())
}

impl BatchGroups {
    /// Returns the counter of the checks in flight at a server, of one slot. An atomic counter costs less than a lock, and most checks
    /// need no more.
    fn counter(&self, server: &ServerState, slot: u16) -> &AtomicUsize {
        // A number, so that a simulation repeats: which servers share a counter must not depend on their addresses. Another backend may
        // have given it. Then two servers may share counters, too.
        let number = server.number.get_or_init(|| self.next_number.fetch_add(1, Ordering::Relaxed));
        &self.in_flight[number.wrapping_mul(STEP).wrapping_add(slot.into()) % COUNTERS]
    }

    /// Ends the time in which checks may join a batch.
    pub(super) fn detach(&self, key: &GroupKey, batch: &Arc<Batch>) {
        let mut open = self.open.lock();
        if open.get(key).is_some_and(|open| Arc::ptr_eq(open, batch)) {
            open.remove(key);
        }
    }
}

impl Drop for CountedCheck<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Returns the indices of the counters of these servers, in their order.
    fn indices<'a>(servers: impl IntoIterator<Item = &'a ServerState>) -> Vec<Option<usize>> {
        let groups = Merger::new(Merging::default()).groups;
        let index = |server| {
            let counter = groups.counter(server, 7);
            groups.in_flight.iter().position(|other| ptr::eq(counter, other))
        };
        servers.into_iter().map(index).collect()
    }

    #[test]
    fn servers_have_counters_that_do_not_depend_on_addresses() {
        let [first, second] =
            [(); 2].map(|()| (0..COUNTERS).map(|_| ServerState::default()).collect::<Vec<_>>());
        let indices_of_first = indices(&first);
        // The addresses of the others fall.
        assert_eq!(indices_of_first, indices(second.iter().rev()));
        let mut distinct = indices_of_first;
        distinct.sort_unstable();
        assert_eq!(distinct, (0..COUNTERS).map(Some).collect::<Vec<_>>());
    }
}
