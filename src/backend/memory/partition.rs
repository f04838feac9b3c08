//! The counts of one partition key that are not packed, one for every policy.

use std::{mem, slice};

use super::any_count::{AnyCount, PackedCount, Single};
use crate::{
    check::{Namespace, PairRef},
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
    pub(super) namespace: Namespace,
    /// With the quota and the algorithm of the last charge.
    pub(super) policy: Policy,
    pub(super) count: AnyCount,
}

impl Partition {
    pub(super) fn new(counts: Vec<PairCount>) -> Self {
        match <[PairCount; 1]>::try_from(counts) {
            Ok([count]) => Self::One(count),
            Err(counts) => Self::Several(counts.into()),
        }
    }

    /// Returns the count of a policy, if it is stored. Searches at the likely position first.
    #[inline]
    pub(super) fn count(&self, namespace: &Namespace, policy: &Policy, likely: usize) -> Option<&PairCount> {
        let counts = self.counts();
        counts.get(position(counts, namespace, policy, likely, PairCount::pair)?)
    }

    /// Returns the count of a policy, if it is stored. Searches at the likely position first.
    #[inline]
    pub(super) fn count_mut(
        &mut self,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> Option<&mut PairCount> {
        match self {
            // The usual case.
            Self::One(count) => count.is_of(namespace, policy).then_some(count),
            Self::Several(counts) => {
                let position = position(counts, namespace, policy, likely, PairCount::pair)?;
                counts.get_mut(position)
            }
        }
    }

    /// Adds the count of a policy that is not stored.
    pub(super) fn push(&mut self, count: PairCount) {
        let mut counts = self.take();
        counts.push(count);
        *self = Self::new(counts);
    }

    /// Removes the count of a policy.
    pub(super) fn remove(&mut self, namespace: &Namespace, policy: &Policy) {
        self.retain(|count| !count.is_of(namespace, policy));
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&PairCount) -> bool) {
        if !self.counts().iter().all(&is_kept) {
            let mut counts = self.take();
            counts.retain(is_kept);
            *self = Self::new(counts);
        }
    }

    /// Takes all counts out.
    fn take(&mut self) -> Vec<PairCount> {
        match mem::replace(self, Self::Several(Box::default())) {
            Self::One(count) => vec![count],
            Self::Several(counts) => counts.into_vec(),
        }
    }

    #[inline]
    pub(super) fn counts(&self) -> &[PairCount] {
        match self {
            Self::One(count) => slice::from_ref(count),
            Self::Several(counts) => counts,
        }
    }
}

impl PairCount {
    /// Returns the count of a pair whose last charge was of this policy.
    pub(super) fn new(namespace: &Namespace, policy: &Policy, count: PackedCount) -> Self {
        Self { namespace: namespace.clone(), policy: policy.clone(), count: count.unpacked(policy) }
    }

    fn pair(&self) -> (&Namespace, &Policy) {
        (&self.namespace, &self.policy)
    }

    /// Returns whether this count counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Namespace, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.namespace == *namespace
    }

    /// Decides a check of one pair. Returns `None` if the record is full.
    #[inline(always)]
    pub(super) fn decide(&mut self, check: &mut Single<'_>) -> Option<()> {
        self.count.decide(check)?;
        if check.changes() {
            self.note_charge(check.pair);
        }
        Some(())
    }

    /// Notes whose charge is the last one.
    #[inline]
    fn note_charge(&mut self, pair: PairRef<'_>) {
        if self.policy != *pair.policy {
            self.policy = pair.policy.clone();
        }
        // A client must not make its enforced usage evictable by a request in shadow mode.
        self.count.note_charge(pair.is_shadow);
    }

    pub(super) fn idle_at(&self) -> u64 {
        self.count.idle_at(&self.policy)
    }
}

/// Returns the position of the count of a policy, if it is stored. Searches at the likely position first. `pair` states the policy of a count.
#[inline]
pub(super) fn position<'c, C>(
    counts: &'c [C],
    namespace: &Namespace,
    policy: &Policy,
    likely: usize,
    pair: impl Fn(&'c C) -> (&'c Namespace, &'c Policy),
) -> Option<usize> {
    // Usually a clone of the policy is stored, which one number tells from the others.
    let is_clone = |count| {
        let (namespace_of, policy_of) = pair(count);
        policy_of.is_same(policy) && namespace_of == namespace
    };
    let is_of = |count| {
        let (namespace_of, policy_of) = pair(count);
        policy_of.counts_with(policy) && namespace_of == namespace
    };
    match counts.get(likely) {
        Some(count) if is_clone(count) => Some(likely),
        _ => counts.iter().position(is_clone).or_else(|| counts.iter().position(is_of)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        check::{Check, Pair},
        key::PartitionKey,
    };

    #[test]
    fn partition_holds_count_of_every_policy_until_removed() {
        let names = ["a", "b", "c"];
        let check = |name: &str| {
            let policy = Policy::new(name, 5, Duration::from_secs(1)).unwrap();
            Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 1)]).unwrap()
        };
        let checks = names.map(check);
        let count = |check: &Check| {
            let policy = &check.pairs()[0].policy;
            PairCount::new(check.scope(), policy, PackedCount::Words { words: [0; 2], is_shadow: false })
        };
        // Every order of removals.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut partition = Partition::One(count(&checks[0]));
            checks[1..].iter().for_each(|check| partition.push(count(check)));
            let mut stored = [true; 3];
            for removed in order {
                partition.remove(checks[removed].scope(), &checks[removed].pairs()[0].policy);
                stored[removed] = false;
                let holds =
                    |check: &Check| partition.count(check.scope(), &check.pairs()[0].policy, 0).is_some();
                assert_eq!(checks.each_ref().map(holds), stored);
            }
            assert!(partition.counts().is_empty());
            partition.push(count(&checks[0]));
            assert_eq!(partition.counts().len(), 1);
        }
    }
}
