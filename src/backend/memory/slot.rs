//! The usage of one partition key: a slot for every policy.

use std::sync::Arc;

use smallvec::SmallVec;

use super::usage::Usage;
use crate::{
    backend::generation::Generations,
    check::{Check, Pair, Receipt},
    policy::Policy,
};

/// The usage of one partition key under every policy. The slot of one policy needs no memory of its own.
pub(super) struct Partition(SmallVec<[Slot; 1]>);

/// The usage of one pair.
pub(super) struct Slot {
    namespace: Arc<str>,
    /// With the quota of the last charge.
    policy: Policy,
    /// Whether only shadow pairs were charged. Such usage does not protect the key from an eviction.
    is_shadow: bool,
    pub(super) usage: Usage,
}

impl Partition {
    /// Returns the usage under one policy.
    #[inline]
    pub(super) fn of(slot: Slot) -> Self {
        Self(SmallVec::from_buf([slot]))
    }

    /// Returns the slot of a policy, if it is stored.
    #[inline]
    pub(super) fn slot(&self, namespace: &Arc<str>, policy: &Policy) -> Option<&Slot> {
        self.0.iter().find(|slot| slot.is_of(namespace, policy))
    }

    /// Returns the slot of a policy, if it is stored.
    #[inline]
    pub(super) fn slot_mut(&mut self, namespace: &Arc<str>, policy: &Policy) -> Option<&mut Slot> {
        self.0.iter_mut().find(|slot| slot.is_of(namespace, policy))
    }

    /// Adds the slot of a policy that is not stored.
    pub(super) fn push(&mut self, slot: Slot) {
        // From their first check on, most keys have as many slots as the limiter has policies.
        self.0.reserve_exact(1);
        self.0.push(slot);
    }

    /// Removes the slot of a policy.
    pub(super) fn remove(&mut self, namespace: &Arc<str>, policy: &Policy) {
        self.0.retain(|slot| !slot.is_of(namespace, policy));
    }

    /// Removes the slots that are idle at `now`.
    pub(super) fn remove_idle(&mut self, now: u64) {
        self.0.retain(|slot| slot.idle_at() > now);
    }

    /// Returns the instant at which all policies are idle. None if there is none.
    pub(super) fn idle_at(&self) -> Option<u64> {
        self.0.iter().map(Slot::idle_at).max()
    }

    /// Returns the units in use at `now`, over all policies.
    pub(super) fn used(&self, now: u64) -> u64 {
        self.0.iter().map(|slot| slot.used(now)).sum()
    }

    /// Returns the largest share of a quota in use, over all enforced policies. 1 is a whole quota.
    pub(super) fn share(&self, now: u64) -> f64 {
        let share = |slot: &Slot| slot.used(now) as f64 / f64::from(slot.policy.quota());
        self.0.iter().filter(|slot| !slot.is_shadow).map(share).fold(0.0, f64::max)
    }
}

impl Slot {
    /// Returns an empty slot for a pair.
    #[inline]
    pub(super) fn new(check: &Check, pair: &Pair) -> Self {
        Self {
            namespace: check.namespace_shared().clone(),
            policy: pair.policy.clone(),
            is_shadow: pair.is_shadow,
            usage: Usage::new(&pair.policy),
        }
    }

    /// Returns whether this slot counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Arc<str>, policy: &Policy) -> bool {
        let is_same_namespace = || Arc::ptr_eq(&self.namespace, namespace) || self.namespace == *namespace;
        self.policy.counts_with(policy) && is_same_namespace()
    }

    /// Charges a pair at `clock`. Returns the receipt.
    pub(super) fn charge(&mut self, pair: &Pair, clock: u64, generations: &Generations) -> Receipt {
        self.note_charge(pair);
        self.usage.charge(clock, &pair.policy, pair.cost, generations)
    }

    /// Notes whose charge is the last one.
    #[inline]
    pub(super) fn note_charge(&mut self, pair: &Pair) {
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
