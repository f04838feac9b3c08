//! What a shard stores of one partition key: a count for every policy. Most keys are short and have one policy, whose count is two words:
//! they need no memory of their own.

use std::{mem, num::NonZeroU8, slice};

use super::{
    any_count::{AnyCount, PackedCount, Single},
    key_map::Keyed,
    terms::TermTable,
};
use crate::{
    backend::generation::Generations,
    check::{Namespace, PairRef, Purpose, Receipt},
    key::PartitionKey,
    policy::Policy,
};

/// The length of the longest key that a slot holds itself.
const SHORT: usize = 37;

/// A partition key with its usage under every policy.
pub(super) enum KeySlot {
    /// One packed count.
    Small {
        key: ShortKey,
        term: u8,
        words: [u64; 2],
    },
    Large {
        key: ShortKey,
        large: Box<Large>,
    },
}

/// A key of at most [`SHORT`] bytes. That of a longer key is empty.
#[derive(Clone, Copy)]
pub(super) struct ShortKey {
    /// The length plus one.
    end: NonZeroU8,
    buffer: [u8; SHORT],
}

pub(super) struct Large {
    pub(super) long_key: Option<Box<[u8]>>,
    pub(super) partition: Partition,
}

impl KeySlot {
    /// Returns the slot of a key with one count that is not packed.
    pub(super) fn large(key: ShortKey, long_key: Option<Box<[u8]>>, count: PairCount) -> Self {
        Self::Large { key, large: Box::new(Large { long_key, partition: Partition::One(count) }) }
    }

    /// Calls `each` with every count and its policy.
    fn each_count(&self, terms: &TermTable, mut each: impl FnMut(&Policy, &AnyCount)) {
        match self {
            Self::Small { term, words, .. } => {
                let term = terms.get(*term);
                each(&term.policy, &AnyCount::of_term(*words, term));
            }
            Self::Large { large, .. } => {
                large.partition.counts().iter().for_each(|pair| each(&pair.policy, &pair.count));
            }
        }
    }

    /// Returns the instant at which all policies are idle. 0 if there are none.
    pub(super) fn idle_at(&self, terms: &TermTable) -> u64 {
        let mut idle_at = 0;
        self.each_count(terms, |policy, count| idle_at = idle_at.max(count.idle_at(policy)));
        idle_at
    }

    /// Returns the units in use at `now`, over all policies.
    pub(super) fn used(&self, terms: &TermTable, now: u64) -> u64 {
        let mut used = 0;
        self.each_count(terms, |policy, count| used += count.read(now, policy).used());
        used
    }

    /// Returns the largest share of a quota in use, over all enforced policies. 1 is a whole quota.
    pub(super) fn share(&self, terms: &TermTable, now: u64) -> f64 {
        let mut largest: f64 = 0.0;
        self.each_count(terms, |policy, count| {
            if !count.is_shadow() {
                let used = count.read(now, policy).used() as f64;
                // A key with held units is never evicted.
                let quota = if policy.properties().is_held { 1.0 } else { f64::from(policy.quota_units()) };
                largest = largest.max(used / quota);
            }
        });
        largest
    }
}

impl Keyed for KeySlot {
    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Self::Small { key, .. } => key.as_bytes(),
            Self::Large { key, large } => large.long_key.as_deref().unwrap_or_else(|| key.as_bytes()),
        }
    }
}

impl ShortKey {
    /// Returns a short key, or an empty one and the bytes of a longer key.
    pub(super) fn new(key: &PartitionKey) -> (Self, Option<Box<[u8]>>) {
        let (bytes, mut short) = (key.as_bytes(), Self { end: NonZeroU8::MIN, buffer: [0; SHORT] });
        match short.buffer.get_mut(..bytes.len()) {
            Some(buffer) => {
                buffer.copy_from_slice(bytes);
                // At most `SHORT`.
                short.end = NonZeroU8::MIN.saturating_add(bytes.len() as u8);
                (short, None)
            }
            None => (short, Some(bytes.into())),
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        self.buffer.get(..usize::from(self.end.get()) - 1).unwrap_or_default()
    }
}

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

    /// Returns whether this count counts a policy.
    #[inline]
    fn is_of(&self, namespace: &Namespace, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.namespace == *namespace
    }

    /// Decides a check of one pair. Returns `None` if the record is full.
    #[inline]
    pub(super) fn decide(&mut self, check: &mut Single<'_>) -> Option<()> {
        self.count.decide(check)?;
        if check.changes() {
            self.note_charge(check.pair);
        }
        Some(())
    }

    /// Charges a pair at `clock`. Returns the receipt, if the purpose has receipts.
    pub(super) fn charge(
        &mut self,
        pair: PairRef<'_>,
        clock: u64,
        purpose: Purpose,
        generations: &Generations,
    ) -> Receipt {
        self.note_charge(pair);
        self.count.charge(clock, pair, purpose, generations)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::check::{Check, Pair};

    /// A row of slots takes the memory of its keys, and little more.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn slot_is_seven_words() {
        assert_eq!(size_of::<KeySlot>(), 56);
    }

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
            PairCount::new(check.scope(), policy, PackedCount::Count(AnyCount::new(policy, false)))
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
                    |check: &Check| partition.count(check.scope(), &check.pairs()[0].policy).is_some();
                assert_eq!(checks.each_ref().map(holds), stored);
            }
            assert!(partition.counts().is_empty());
            partition.push(count(&checks[0]));
            assert_eq!(partition.counts().len(), 1);
        }
    }
}
