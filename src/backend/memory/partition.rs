//! The usage of one partition key: a count for every policy.

use std::{mem, slice};

use super::any_count::{AnyCount, Single, SingleDecision};
use crate::{
    backend::generation::Generations,
    check::{Namespace, PairRef, Purpose, Receipt},
    policy::Policy,
};

/// The usage of one partition key under every policy. One count needs no memory of its own.
pub(super) enum Partition {
    One(PairCount),
    /// Two or more, or none.
    Several(Box<[PairCount]>),
}

/// The usage of one pair.
pub(super) struct PairCount {
    namespace: Namespace,
    /// With the quota and the algorithm of the last charge.
    policy: Policy,
    pub(super) count: AnyCount,
}

impl Partition {
    /// Returns the count of a policy, if it is stored.
    #[inline]
    pub(super) fn count(&self, namespace: &Namespace, policy: &Policy) -> Option<&PairCount> {
        self.counts().iter().find(|count| count.is_of(namespace, policy))
    }

    /// Returns the count of a policy, if it is stored.
    #[inline]
    pub(super) fn count_mut(&mut self, namespace: &Namespace, policy: &Policy) -> Option<&mut PairCount> {
        match self {
            // The usual case.
            Self::One(count) => count.is_of(namespace, policy).then_some(count),
            Self::Several(counts) => counts.iter_mut().find(|count| count.is_of(namespace, policy)),
        }
    }

    /// Adds the count of a policy that is not stored.
    pub(super) fn push(&mut self, count: PairCount) {
        let mut counts = self.take();
        counts.push(count);
        self.set(counts);
    }

    /// Removes the count of a policy.
    pub(super) fn remove(&mut self, namespace: &Namespace, policy: &Policy) {
        self.retain(|count| !count.is_of(namespace, policy));
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&PairCount) -> bool) {
        if !self.counts().iter().all(&is_kept) {
            let mut counts = self.take();
            counts.retain(is_kept);
            self.set(counts);
        }
    }

    /// Takes all counts out.
    fn take(&mut self) -> Vec<PairCount> {
        match mem::replace(self, Self::Several(Box::default())) {
            Self::One(count) => vec![count],
            Self::Several(counts) => counts.into_vec(),
        }
    }

    /// Stores these counts, and no others.
    fn set(&mut self, counts: Vec<PairCount>) {
        *self = match <[PairCount; 1]>::try_from(counts) {
            Ok([count]) => Self::One(count),
            Err(counts) => Self::Several(counts.into()),
        };
    }

    #[inline]
    fn counts(&self) -> &[PairCount] {
        match self {
            Self::One(count) => slice::from_ref(count),
            Self::Several(counts) => counts,
        }
    }

    /// Returns the instant at which all policies are idle. None if there is none.
    pub(super) fn idle_at(&self) -> Option<u64> {
        self.counts().iter().map(PairCount::idle_at).max()
    }

    /// Returns the units in use at `now`, over all policies.
    pub(super) fn used(&self, now: u64) -> u64 {
        self.counts().iter().map(|count| count.used(now)).sum()
    }

    /// Returns the largest share of a quota in use, over all enforced policies. 1 is a whole quota.
    pub(super) fn share(&self, now: u64) -> f64 {
        let share = |count: &PairCount| match count.used(now) {
            // A key with held units is never evicted.
            held @ 1.. if count.policy.properties().is_held => held as f64,
            used => used as f64 / f64::from(count.policy.quota_units()),
        };
        self.counts().iter().filter(|pair| !pair.count.is_shadow()).map(share).fold(0.0, f64::max)
    }
}

impl PairCount {
    /// Returns an empty count for a pair.
    #[inline]
    pub(super) fn new(namespace: &Namespace, pair: PairRef<'_>) -> Self {
        Self {
            namespace: namespace.clone(),
            policy: pair.policy.clone(),
            count: AnyCount::new(pair.policy, pair.is_shadow),
        }
    }

    /// Returns whether this count counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Namespace, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.namespace == *namespace
    }

    /// Decides a check of one pair. Returns `None` if the record is full.
    #[inline]
    pub(super) fn decide(&mut self, check: &Single<'_>) -> Option<SingleDecision> {
        let decision = self.count.decide(check)?;
        if decision.is_charged && check.purpose != Purpose::Peek {
            self.note_charge(check.pair);
        }
        Some(decision)
    }

    /// Charges a pair at `clock`. Returns the receipt.
    pub(super) fn charge(&mut self, pair: PairRef<'_>, clock: u64, generations: &Generations) -> Receipt {
        self.note_charge(pair);
        self.count.charge(clock, pair.policy, pair.cost, generations)
    }

    /// Notes whose charge is the last one.
    #[inline]
    fn note_charge(&mut self, pair: PairRef<'_>) {
        if self.policy.quota_units() != pair.policy.quota_units()
            || self.policy.algorithm() != pair.policy.algorithm()
        {
            self.policy = pair.policy.clone();
        }
        // A client must not make its enforced usage evictable by a request in shadow mode.
        self.count.note_charge(pair.is_shadow);
    }

    pub(super) fn idle_at(&self) -> u64 {
        self.count.idle_at(&self.policy)
    }

    /// Returns the usage at `now`, in quota units.
    fn used(&self, now: u64) -> u64 {
        self.count.read(now, &self.policy).used()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::key_map::KeyEntry, *};
    use crate::{
        check::{Check, Pair},
        key::PartitionKey,
    };

    #[test]
    fn entry_of_a_key_fits_into_two_cache_lines() {
        assert!(size_of::<KeyEntry<Partition>>() <= 128);
    }

    #[test]
    fn partition_holds_count_of_every_policy_until_removed() {
        let names = ["a", "b", "c"];
        let check = |name: &str| {
            let policy = Policy::new(name, 5, Duration::from_secs(1)).unwrap();
            Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 1)]).unwrap()
        };
        let checks = names.map(check);
        let count = |check: &Check| PairCount::new(check.scope(), check.pairs()[0].borrowed());
        // Every order of removals.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut partition = Partition::One(count(&checks[0]));
            checks[1..].iter().for_each(|check| partition.push(count(check)));
            let mut stored = [true; 3];
            for removed in order {
                partition.remove(checks[removed].scope(), &checks[removed].pairs()[0].policy);
                stored[removed] = false;
                let holds =
                    |check: &Check| partition.count(check.scope(), &check.pairs()[0].policy).is_some();
                assert_eq!(checks.each_ref().map(holds), stored);
            }
            assert_eq!(partition.idle_at(), None);
            partition.push(count(&checks[0]));
            assert_eq!(partition.counts().len(), 1);
        }
    }
}
