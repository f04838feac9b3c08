//! A part of the partition keys, under one lock, that forgets what is idle as it goes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::tally::Tally;
use crate::{
    check::{Check, Pair, Receipt, RefundPair},
    key::PartitionKey,
    policy::Policy,
};

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct Shard {
    partitions: HashMap<PartitionKey, Partition>,
    /// Every partition once, by the instant at which it is looked at next: at or before the one at which it is idle. It
    /// is brought up to date when it comes due, so that a charge need not touch it.
    due: BTreeSet<(u64, PartitionKey)>,
}

/// What is stored of one partition key: a tally for every policy.
struct Partition {
    slots: Vec<Slot>,
    /// The instant under which it is found in `due`.
    due: u64,
}

struct Slot {
    namespace: Arc<str>,
    policy: Policy,
    tally: Tally,
}

impl Shard {
    /// The tally of a pair under its partition key, if there is one.
    pub(super) fn tally(&self, key: &PartitionKey, namespace: &str, policy: &Policy) -> Option<&Tally> {
        let slots = &self.partitions.get(key)?.slots;
        slots.iter().find(|slot| slot.is_of(namespace, policy)).map(|slot| &slot.tally)
    }

    /// Charges a pair under its partition key, which is made if there is none.
    pub(super) fn charge(&mut self, key: &PartitionKey, check: &Check, pair: &Pair, clock: u64) -> Receipt {
        if let Some(partition) = self.partitions.get_mut(key) {
            return partition.slot(check, pair).tally.charge(clock, &pair.policy, pair.cost);
        }
        let mut partition = Partition { slots: Vec::new(), due: 0 };
        let receipt = partition.slot(check, pair).tally.charge(clock, &pair.policy, pair.cost);
        partition.due = partition.idle_at().unwrap_or(clock);
        self.due.insert((partition.due, key.clone()));
        self.partitions.insert(key.clone(), partition);
        receipt
    }

    /// Gives units back to a pair under its partition key.
    pub(super) fn refund(&mut self, key: &PartitionKey, namespace: &str, pair: &RefundPair, clock: u64) {
        let Some(partition) = self.partitions.get_mut(key) else { return };
        if let Some(slot) = partition.slots.iter_mut().find(|slot| slot.is_of(namespace, &pair.policy)) {
            slot.tally.refund(clock, &pair.policy, pair.receipt, pair.units);
        }
    }

    /// Forgets the tally of a pair under its partition key.
    pub(super) fn reset(&mut self, key: &PartitionKey, namespace: &str, policy: &Policy) {
        if let Some(partition) = self.partitions.get_mut(key) {
            partition.slots.retain(|slot| !slot.is_of(namespace, policy));
        }
    }

    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.partitions.contains_key(key)
    }

    /// Looks at up to `most` partition keys that have come due, and forgets those of which nothing counts any more at
    /// `now`. Returns how many.
    pub(super) fn forget_idle(&mut self, now: u64, most: usize) -> usize {
        let mut forgotten = 0;
        for _ in 0..most.min(self.due.len()) {
            let Some((due, key)) = self.due.first() else { break };
            if *due > now {
                break;
            }
            forgotten += usize::from(self.look_at(&key.clone(), now));
        }
        if self.partitions.capacity() > 1_024 && self.partitions.len() < self.partitions.capacity() / 8 {
            self.partitions.shrink_to(self.partitions.len() * 2);
        }
        forgotten
    }

    /// Forgets what is idle at `now` under a partition key, and the key if that is all. Returns whether it is forgotten
    /// now.
    pub(super) fn look_at(&mut self, key: &PartitionKey, now: u64) -> bool {
        let Some(partition) = self.partitions.get_mut(key) else { return false };
        // A policy that is gone must not stay for as long as its partition key is busy.
        partition.slots.retain(|slot| slot.idle_at() > now);
        let idle_at = partition.idle_at();
        if idle_at == Some(partition.due) {
            return false;
        }
        let Some((_, key)) = self.due.take(&(partition.due, key.clone())) else { return false };
        match idle_at {
            Some(idle_at) => {
                partition.due = idle_at;
                self.due.insert((idle_at, key));
                false
            }
            None => self.partitions.remove(&key).is_some(),
        }
    }
}

impl Partition {
    /// The slot of a pair, made if there is none.
    fn slot(&mut self, check: &Check, pair: &Pair) -> &mut Slot {
        let found = self.slots.iter().position(|slot| slot.is_of(check.namespace(), &pair.policy));
        let index = found.unwrap_or_else(|| {
            // Most keys have as many slots as the limiter has policies, from their first check on.
            self.slots.reserve_exact(1);
            self.slots.push(Slot {
                namespace: check.namespace_shared().clone(),
                policy: pair.policy.clone(),
                tally: Tally::new(&pair.policy),
            });
            self.slots.len() - 1
        });
        &mut self.slots[index]
    }

    /// When all of it is idle. None if there is nothing.
    fn idle_at(&self) -> Option<u64> {
        self.slots.iter().map(Slot::idle_at).max()
    }
}

impl Slot {
    /// Whether this is the one for a policy.
    fn is_of(&self, namespace: &str, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && *self.namespace == *namespace
    }

    fn idle_at(&self) -> u64 {
        self.tally.idle_at(&self.policy)
    }
}
