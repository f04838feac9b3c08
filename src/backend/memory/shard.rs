//! A shard of the partition keys, under one lock. Each check removes a few idle keys.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::usage::Usage;
use crate::{
    backend::generation::Generations,
    check::{Check, Pair, Receipt, RefundPair},
    key::PartitionKey,
    policy::Policy,
};

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct Shard {
    partitions: HashMap<PartitionKey, Partition>,
    /// Every partition once, by the instant of its next inspection: at the latest when it is idle. The inspection updates this
    /// instant, so that a charge need not.
    due: BTreeSet<(u64, PartitionKey)>,
}

/// The usage of one partition key under every policy.
struct Partition {
    slots: Vec<Slot>,
    /// Its instant in `due`.
    due: u64,
}

struct Slot {
    namespace: Arc<str>,
    policy: Policy,
    usage: Usage,
}

impl Shard {
    /// Returns the usage of a pair, if it is stored.
    pub(super) fn usage(&self, key: &PartitionKey, namespace: &str, policy: &Policy) -> Option<&Usage> {
        let slots = &self.partitions.get(key)?.slots;
        slots.iter().find(|slot| slot.is_of(namespace, policy)).map(|slot| &slot.usage)
    }

    /// Charges a pair, and stores it if it is new.
    pub(super) fn charge(
        &mut self,
        key: &PartitionKey,
        check: &Check,
        pair: &Pair,
        clock: u64,
        generations: &Generations,
    ) -> Receipt {
        if let Some(partition) = self.partitions.get_mut(key) {
            return partition.slot(check, pair).usage.charge(clock, &pair.policy, pair.cost, generations);
        }
        let mut partition = Partition { slots: Vec::new(), due: 0 };
        let receipt = partition.slot(check, pair).usage.charge(clock, &pair.policy, pair.cost, generations);
        partition.due = partition.idle_at().unwrap_or(clock);
        self.due.insert((partition.due, key.clone()));
        self.partitions.insert(key.clone(), partition);
        receipt
    }

    /// Refunds units of a pair.
    pub(super) fn refund(&mut self, key: &PartitionKey, namespace: &str, pair: &RefundPair, clock: u64) {
        let Some(partition) = self.partitions.get_mut(key) else { return };
        if let Some(slot) = partition.slots.iter_mut().find(|slot| slot.is_of(namespace, &pair.policy)) {
            slot.usage.refund(clock, &pair.policy, pair.receipt, pair.units);
        }
    }

    /// Removes the usage of a pair.
    pub(super) fn reset(&mut self, key: &PartitionKey, namespace: &str, policy: &Policy) {
        if let Some(partition) = self.partitions.get_mut(key) {
            partition.slots.retain(|slot| !slot.is_of(namespace, policy));
        }
    }

    /// Returns whether a partition key is stored.
    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.partitions.contains_key(key)
    }

    /// Inspects up to `max` partition keys that are due, and removes those that are idle at `now`. Returns how many were removed.
    pub(super) fn remove_idle(&mut self, now: u64, max: usize) -> usize {
        let mut removed = 0;
        for _ in 0..max.min(self.due.len()) {
            let Some((due, key)) = self.due.first() else { break };
            if *due > now {
                break;
            }
            removed += usize::from(self.remove_if_idle(&key.clone(), now));
        }
        if self.partitions.capacity() > 1_024 && self.partitions.len() < self.partitions.capacity() / 8 {
            self.partitions.shrink_to(self.partitions.len() * 2);
        }
        removed
    }

    /// Removes the policies of a partition key that are idle at `now`, and the key if all are. Returns whether the key was removed.
    pub(super) fn remove_if_idle(&mut self, key: &PartitionKey, now: u64) -> bool {
        let Some(partition) = self.partitions.get_mut(key) else { return false };
        // An idle policy must not stay because another policy of the same key is in use.
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
    /// Returns the slot of a pair, and adds it if it is new.
    fn slot(&mut self, check: &Check, pair: &Pair) -> &mut Slot {
        let found = self.slots.iter().position(|slot| slot.is_of(check.namespace(), &pair.policy));
        let index = found.unwrap_or_else(|| {
            // From their first check on, most keys have as many slots as the limiter has policies.
            self.slots.reserve_exact(1);
            self.slots.push(Slot {
                namespace: check.namespace_shared().clone(),
                policy: pair.policy.clone(),
                usage: Usage::new(&pair.policy),
            });
            self.slots.len() - 1
        });
        &mut self.slots[index]
    }

    /// Returns the instant at which all policies are idle. None if there is none.
    fn idle_at(&self) -> Option<u64> {
        self.slots.iter().map(Slot::idle_at).max()
    }
}

impl Slot {
    /// Returns whether this slot counts a policy.
    fn is_of(&self, namespace: &str, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && *self.namespace == *namespace
    }

    fn idle_at(&self) -> u64 {
        self.usage.idle_at(&self.policy)
    }
}
