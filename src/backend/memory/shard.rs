//! A shard of the partition keys, under one lock. Each check removes a few idle keys.

use std::{collections::BTreeSet, hash::BuildHasherDefault, sync::Arc};

use indexmap::IndexMap;

use super::usage::{Instant, Reading, Usage};
use crate::{
    backend::generation::Generations,
    check::{Check, Pair, Receipt, RefundPair},
    key::{KeyHasher, PartitionKey},
    policy::Policy,
};

/// Some of the partition keys of a memory backend.
#[derive(Default)]
pub(super) struct Shard {
    /// A map with indices, so that a random key is found without a search.
    partitions: IndexMap<PartitionKey, Partition, BuildHasherDefault<KeyHasher>>,
    /// Every partition once, by the instant of its next inspection: at the latest when it is idle. The inspection updates this
    /// instant, so that a charge need not.
    due: BTreeSet<(u64, PartitionKey)>,
    /// No key is due before this instant.
    first_due: u64,
}

/// The usage of one partition key under every policy.
struct Partition {
    slots: Vec<Slot>,
    /// Its instant in `due`.
    due: u64,
}

/// The usage of one pair.
pub(super) struct Slot {
    namespace: Arc<str>,
    /// With the quota of the last charge.
    policy: Policy,
    /// Whether only shadow pairs were charged. Such usage does not protect the key from an eviction.
    is_shadow: bool,
    usage: Usage,
}

impl Shard {
    /// Returns the usage of a pair, if it is stored.
    pub(super) fn usage(&self, key: &PartitionKey, check: &Check, policy: &Policy) -> Option<&Usage> {
        let slots = &self.partitions.get(key)?.slots;
        slots.iter().find(|slot| slot.is_of(check.namespace_shared(), policy)).map(|slot| &slot.usage)
    }

    /// Returns the slot of a pair, if it is stored.
    #[inline]
    pub(super) fn slot(&mut self, key: &PartitionKey, check: &Check, policy: &Policy) -> Option<&mut Slot> {
        let slots = &mut self.partitions.get_mut(key)?.slots;
        slots.iter_mut().find(|slot| slot.is_of(check.namespace_shared(), policy))
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
            return partition.slot(check, pair).charge(pair, clock, generations);
        }
        let mut partition = Partition { slots: Vec::new(), due: 0 };
        let receipt = partition.slot(check, pair).charge(pair, clock, generations);
        partition.due = partition.idle_at().unwrap_or(clock);
        self.first_due = self.first_due.min(partition.due);
        self.due.insert((partition.due, key.clone()));
        self.partitions.insert(key.clone(), partition);
        receipt
    }

    /// Refunds units of a pair.
    pub(super) fn refund(&mut self, key: &PartitionKey, namespace: &Arc<str>, pair: &RefundPair, clock: u64) {
        let Some(partition) = self.partitions.get_mut(key) else { return };
        if let Some(slot) = partition.slots.iter_mut().find(|slot| slot.is_of(namespace, &pair.policy)) {
            slot.usage.refund(clock, &pair.policy, pair.receipt, pair.units);
        }
    }

    /// Removes the usage of a pair.
    pub(super) fn reset(&mut self, key: &PartitionKey, namespace: &Arc<str>, policy: &Policy) {
        if let Some(partition) = self.partitions.get_mut(key) {
            partition.slots.retain(|slot| !slot.is_of(namespace, policy));
        }
    }

    /// Returns whether a partition key is stored.
    pub(super) fn contains(&self, key: &PartitionKey) -> bool {
        self.partitions.contains_key(key)
    }

    /// Inspects up to `max` partition keys that are due, and removes those that are idle at `now`. Returns how many were removed.
    #[inline]
    pub(super) fn remove_idle(&mut self, now: u64, max: usize) -> usize {
        if self.first_due > now { 0 } else { self.remove_due(now, max) }
    }

    fn remove_due(&mut self, now: u64, max: usize) -> usize {
        let mut removed = 0;
        for _ in 0..max.min(self.due.len()) {
            let Some((due, key)) = self.due.first() else { break };
            if *due > now {
                break;
            }
            removed += usize::from(self.remove_if_idle(&key.clone(), now));
        }
        self.first_due = self.first_due().unwrap_or(u64::MAX);
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
                self.first_due = self.first_due.min(idle_at);
                self.due.insert((idle_at, key));
                false
            }
            None => self.partitions.swap_remove(&key).is_some(),
        }
    }

    /// Returns the earliest instant at which a partition key is due.
    pub(super) fn first_due(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns up to `max` partition keys, each with its largest share of a quota in use at `now`. If there are more keys, chooses
    /// them by `random`, which returns a number below its argument; one key may then be chosen twice.
    pub(super) fn sample(
        &self,
        max: usize,
        now: u64,
        mut random: impl FnMut(usize) -> usize,
    ) -> impl Iterator<Item = (&PartitionKey, f64)> {
        let stored = self.partitions.len();
        let indices = (0..stored.min(max)).map(move |i| if stored > max { random(stored) } else { i });
        indices.filter_map(move |index| {
            let (key, partition) = self.partitions.get_index(index)?;
            Some((key, partition.share(now)))
        })
    }

    /// Evicts a partition key if its largest share of a quota in use is below `max_share`. Returns the units that it had in use,
    /// over all its policies, or `None` if it stays.
    pub(super) fn evict(&mut self, key: &PartitionKey, now: u64, max_share: f64) -> Option<u64> {
        let partition = self.partitions.get(key).filter(|partition| partition.share(now) < max_share)?;
        let units = partition.slots.iter().map(|slot| slot.used(now)).sum();
        self.due.remove(&(partition.due, key.clone()));
        self.partitions.swap_remove(key);
        Some(units)
    }
}

impl Partition {
    /// Returns the slot of a pair, and adds it if it is new.
    fn slot(&mut self, check: &Check, pair: &Pair) -> &mut Slot {
        let found = self.slots.iter().position(|slot| slot.is_of(check.namespace_shared(), &pair.policy));
        let index = found.unwrap_or_else(|| {
            // From their first check on, most keys have as many slots as the limiter has policies.
            self.slots.reserve_exact(1);
            self.slots.push(Slot {
                namespace: check.namespace_shared().clone(),
                policy: pair.policy.clone(),
                is_shadow: pair.is_shadow,
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

    /// Returns the largest share of a quota in use, over all enforced policies. 1 is a whole quota.
    fn share(&self, now: u64) -> f64 {
        let share = |slot: &Slot| slot.used(now) as f64 / f64::from(slot.policy.quota());
        self.slots.iter().filter(|slot| !slot.is_shadow).map(share).fold(0.0, f64::max)
    }
}

impl Slot {
    /// Returns whether this slot counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Arc<str>, policy: &Policy) -> bool {
        let is_same_namespace = || Arc::ptr_eq(&self.namespace, namespace) || self.namespace == *namespace;
        self.policy.counts_with(policy) && is_same_namespace()
    }

    /// Reads the usage at `clock`, in microseconds.
    #[inline]
    pub(super) fn read(&self, clock: u64, policy: &Policy) -> Reading<'_> {
        self.usage.read(clock, policy)
    }

    /// Charges a pair at `clock`.
    fn charge(&mut self, pair: &Pair, clock: u64, generations: &Generations) -> Receipt {
        let instant = self.read(clock, &pair.policy).instant();
        self.charge_at(instant, pair, generations);
        self.receipt(instant, pair)
    }

    /// Charges a pair at the instant of a reading.
    #[inline]
    pub(super) fn charge_at(&mut self, instant: Instant, pair: &Pair, generations: &Generations) {
        if self.policy.quota() != pair.policy.quota() {
            self.policy = pair.policy.clone();
        }
        // A client must not make its enforced usage evictable by a request in shadow mode.
        self.is_shadow &= pair.is_shadow;
        self.usage.charge_at(instant, &pair.policy, pair.cost, generations);
    }

    /// Returns the receipt of the last charge of a pair, which was made at the instant of this reading.
    pub(super) fn receipt(&self, instant: Instant, pair: &Pair) -> Receipt {
        self.usage.receipt(instant, &pair.policy)
    }

    fn idle_at(&self) -> u64 {
        self.usage.idle_at(&self.policy)
    }

    /// Returns the usage at `now`, in quota units.
    fn used(&self, now: u64) -> u64 {
        self.usage.read(now, &self.policy).used()
    }
}
