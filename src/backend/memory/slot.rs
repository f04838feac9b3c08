//! The usage of one partition key: a slot for every policy.

use std::{mem, slice};

use super::usage::Usage;
use crate::{
    backend::generation::Generations,
    check::{Namespace, PairRef, Receipt},
    policy::Policy,
};

/// The usage of one partition key under every policy. The slot of one policy needs no memory of its own.
pub(super) enum Partition {
    One(Slot),
    /// Two or more, or none.
    Several(Box<[Slot]>),
}

/// The usage of one pair.
pub(super) struct Slot {
    namespace: Namespace,
    /// With the quota of the last charge.
    policy: Policy,
    /// Whether only shadow pairs were charged. Such usage does not protect the key from an eviction.
    is_shadow: bool,
    pub(super) usage: Usage,
}

impl Partition {
    /// Creates the usage under one policy.
    #[inline]
    pub(super) fn of(slot: Slot) -> Self {
        Self::One(slot)
    }

    /// Returns the slot of a policy, if it is stored.
    #[inline]
    pub(super) fn slot(&self, namespace: &Namespace, policy: &Policy) -> Option<&Slot> {
        self.slots().iter().find(|slot| slot.is_of(namespace, policy))
    }

    /// Returns the slot of a policy, if it is stored.
    #[inline]
    pub(super) fn slot_mut(&mut self, namespace: &Namespace, policy: &Policy) -> Option<&mut Slot> {
        match self {
            // The usual case.
            Self::One(slot) => slot.is_of(namespace, policy).then_some(slot),
            Self::Several(slots) => slots.iter_mut().find(|slot| slot.is_of(namespace, policy)),
        }
    }

    /// Adds the slot of a policy that is not stored.
    pub(super) fn push(&mut self, slot: Slot) {
        let mut slots = self.take();
        slots.push(slot);
        self.set(slots);
    }

    /// Removes the slot of a policy.
    pub(super) fn remove(&mut self, namespace: &Namespace, policy: &Policy) {
        self.retain(|slot| !slot.is_of(namespace, policy));
    }

    /// Removes the slots that are idle at `now`.
    pub(super) fn remove_idle(&mut self, now: u64) {
        self.retain(|slot| slot.idle_at() > now);
    }

    fn retain(&mut self, is_kept: impl Fn(&Slot) -> bool) {
        if !self.slots().iter().all(&is_kept) {
            let mut slots = self.take();
            slots.retain(is_kept);
            self.set(slots);
        }
    }

    /// Takes all slots out.
    fn take(&mut self) -> Vec<Slot> {
        match mem::replace(self, Self::Several(Box::default())) {
            Self::One(slot) => vec![slot],
            Self::Several(slots) => slots.into_vec(),
        }
    }

    /// Stores these slots, and no others.
    fn set(&mut self, slots: Vec<Slot>) {
        *self = match <[Slot; 1]>::try_from(slots) {
            Ok([slot]) => Self::One(slot),
            Err(slots) => Self::Several(slots.into()),
        };
    }

    #[inline]
    fn slots(&self) -> &[Slot] {
        match self {
            Self::One(slot) => slice::from_ref(slot),
            Self::Several(slots) => slots,
        }
    }

    /// Returns the instant at which all policies are idle. None if there is none.
    pub(super) fn idle_at(&self) -> Option<u64> {
        self.slots().iter().map(Slot::idle_at).max()
    }

    /// Returns the units in use at `now`, over all policies.
    pub(super) fn used(&self, now: u64) -> u64 {
        self.slots().iter().map(|slot| slot.used(now)).sum()
    }

    /// Returns the largest share of a quota in use, over all enforced policies. 1 is a whole quota.
    pub(super) fn share(&self, now: u64) -> f64 {
        let share = |slot: &Slot| slot.used(now) as f64 / f64::from(slot.policy.quota());
        self.slots().iter().filter(|slot| !slot.is_shadow).map(share).fold(0.0, f64::max)
    }
}

impl Slot {
    /// Returns an empty slot for a pair.
    #[inline]
    pub(super) fn new(namespace: &Namespace, pair: PairRef<'_>) -> Self {
        Self {
            namespace: namespace.clone(),
            policy: pair.policy.clone(),
            is_shadow: pair.is_shadow,
            usage: Usage::new(pair.policy),
        }
    }

    /// Returns whether this slot counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Namespace, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.namespace == *namespace
    }

    /// Charges a pair at `clock`. Returns the receipt.
    pub(super) fn charge(&mut self, pair: PairRef<'_>, clock: u64, generations: &Generations) -> Receipt {
        self.note_charge(pair);
        self.usage.charge(clock, pair.policy, pair.cost, generations)
    }

    /// Notes whose charge is the last one.
    #[inline]
    pub(super) fn note_charge(&mut self, pair: PairRef<'_>) {
        if self.policy.quota() != pair.policy.quota() {
            self.policy = pair.policy.clone();
        }
        // A client must not make its enforced usage evictable by a request in shadow mode.
        self.is_shadow &= pair.is_shadow;
    }

    pub(super) fn idle_at(&self) -> u64 {
        self.usage.idle_at(&self.policy)
    }

    /// Returns the usage at `now`, in quota units.
    fn used(&self, now: u64) -> u64 {
        self.usage.read(now, &self.policy).inner().used()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::key_map::Entry, *};
    use crate::{
        check::{Check, Pair},
        key::PartitionKey,
    };

    #[test]
    fn entry_of_a_key_fits_into_two_cache_lines() {
        assert!(size_of::<Entry<Partition>>() <= 128);
    }

    #[test]
    fn partition_holds_slot_of_every_policy_until_removed() {
        let names = ["a", "b", "c"];
        let check = |name: &str| {
            let policy = Policy::new(name, 5, Duration::from_secs(1)).unwrap();
            Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 1)]).unwrap()
        };
        let checks = names.map(check);
        let slot = |check: &Check| Slot::new(check.scope(), check.pairs()[0].borrowed());
        // Every order of removals.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut partition = Partition::of(slot(&checks[0]));
            checks[1..].iter().for_each(|check| partition.push(slot(check)));
            let mut stored = [true; 3];
            for removed in order {
                partition.remove(checks[removed].place(), &checks[removed].pairs()[0].policy);
                stored[removed] = false;
                let holds = |check: &Check| partition.slot(check.scope(), &check.pairs()[0].policy).is_some();
                assert_eq!(checks.each_ref().map(holds), stored);
            }
            assert_eq!(partition.idle_at(), None);
            partition.push(slot(&checks[0]));
            assert_eq!(partition.slots().len(), 1);
        }
    }
}
