//! A part of the partition keys, under one lock, that forgets what is idle as it goes.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use super::log::Log;
use crate::{
    check::{Check, Pair},
    key::PartitionKey,
    policy::Policy,
};

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct Shard {
    partitions: HashMap<PartitionKey, Partition>,
    /// Every partition once, by an instant at or before the one at which it is idle. It is brought up to date when it
    /// comes due, so that a charge need not touch it.
    due: BinaryHeap<Reverse<(u64, PartitionKey)>>,
}

/// What is stored of one partition key: a log for every policy.
#[derive(Default)]
struct Partition {
    slots: Vec<Slot>,
}

struct Slot {
    namespace: Arc<str>,
    policy: Policy,
    log: Log,
}

impl Shard {
    /// The log of a pair under its partition key, if there is one.
    pub(super) fn log(&self, key: &PartitionKey, check: &Check, pair: &Pair) -> Option<&Log> {
        let slots = &self.partitions.get(key)?.slots;
        slots.iter().find(|slot| slot.holds(check, pair)).map(|slot| &slot.log)
    }

    /// The log of a pair under its partition key, made if there is none.
    pub(super) fn log_mut(&mut self, key: &PartitionKey, check: &Check, pair: &Pair, now: u64) -> &mut Log {
        if !self.partitions.contains_key(key) {
            self.due.push(Reverse((now + pair.policy.window_micros(), key.clone())));
        }
        let slots = &mut self.partitions.entry(key.clone()).or_default().slots;
        let index = slots.iter().position(|slot| slot.holds(check, pair)).unwrap_or_else(|| {
            // Most keys have as many slots as the limiter has policies, from their first check on.
            slots.reserve_exact(1);
            slots.push(Slot {
                namespace: check.namespace_shared().clone(),
                policy: pair.policy.clone(),
                log: Log::default(),
            });
            slots.len() - 1
        });
        &mut slots[index].log
    }

    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.partitions.contains_key(key)
    }

    /// Looks at up to `most` partition keys that have come due, and forgets those of which nothing counts any more at
    /// `now`. Returns how many.
    pub(super) fn forget_idle(&mut self, now: u64, most: usize) -> usize {
        let mut forgotten = 0;
        for _ in 0..most.min(self.due.len()) {
            match self.due.peek() {
                Some(Reverse((due, _))) if *due <= now => {}
                _ => break,
            }
            let Some(Reverse((_, key))) = self.due.pop() else { break };
            let Some(partition) = self.partitions.get_mut(&key) else { continue };
            // A policy that is gone must not stay for as long as its partition key is busy.
            partition.slots.retain(|slot| slot.idle_at() > now);
            match partition.slots.iter().map(Slot::idle_at).max() {
                Some(idle_at) => self.due.push(Reverse((idle_at, key))),
                None => {
                    self.partitions.remove(&key);
                    forgotten += 1;
                }
            }
        }
        if self.partitions.capacity() > 1_024 && self.partitions.len() < self.partitions.capacity() / 8 {
            self.partitions.shrink_to(self.partitions.len() * 2);
            self.due.shrink_to(self.due.len() * 2);
        }
        forgotten
    }
}

impl Slot {
    /// Whether this is the pair's. The quota is left out: it may change, and history is kept.
    fn holds(&self, check: &Check, pair: &Pair) -> bool {
        self.policy.window_micros() == pair.policy.window_micros()
            && self.policy.name() == pair.policy.name()
            && *self.namespace == *check.namespace()
    }

    fn idle_at(&self) -> u64 {
        self.log.empty_at(self.policy.window_micros())
    }
}
