//! What a shard stores of one partition key: a count for every policy. Most keys are short, and most counts are two words. Such a key needs
//! no memory of its own for one policy, and three words for each of several.

use std::{mem, slice};

use super::{
    any_count::{AnyCount, PackedCount, Single},
    key_map::Keyed,
    terms::{Term, TermTable},
};
use crate::{check::Namespace, key::PartitionKey, policy::Policy};

/// The length of the longest key that a slot holds itself.
const SHORT: usize = 37;

/// A partition key with its usage under every policy. It holds the term of each packed count.
pub(super) enum KeySlot {
    /// One packed count.
    Small {
        key: ShortKey,
        term: u8,
        words: [u64; 2],
    },
    /// Several packed counts, or none.
    Several {
        key: ShortKey,
        counts: Box<[TermCount]>,
    },
    Large {
        key: ShortKey,
        large: Box<Large>,
    },
}

/// A key of at most [`SHORT`] bytes. That of a longer key is empty.
#[derive(Clone, Copy)]
pub(super) struct ShortKey {
    length: u8,
    buffer: [u8; SHORT],
}

/// A packed count, with the number of its term.
#[derive(Clone, Copy)]
pub(super) struct TermCount {
    pub(super) term: u8,
    pub(super) words: [u64; 2],
}

pub(super) struct Large {
    long_key: Option<Box<[u8]>>,
    pub(super) partition: Partition,
}

impl KeySlot {
    /// Returns the slot of a key with one count.
    pub(super) fn new(
        terms: &mut TermTable,
        key: &PartitionKey,
        namespace: &Namespace,
        policy: &Policy,
        count: PackedCount,
    ) -> Self {
        let (key, long_key) = ShortKey::new(key);
        if long_key.is_none()
            && let Some(TermCount { term, words }) = TermCount::new(terms, namespace, policy, &count)
        {
            return Self::Small { key, term, words };
        }
        let partition = Partition::One(PairCount::new(namespace, policy, count));
        Self::Large { key, large: Box::new(Large { long_key, partition }) }
    }

    /// Adds the count of a policy that is not stored.
    pub(super) fn push(
        &mut self,
        terms: &mut TermTable,
        namespace: &Namespace,
        policy: &Policy,
        count: PackedCount,
    ) {
        if !matches!(self, Self::Large { .. })
            && let Some(packed) = TermCount::new(terms, namespace, policy, &count)
        {
            let mut counts = self.take_packed();
            counts.reserve_exact(1);
            counts.push(packed);
            self.set_packed(counts);
        } else if let Some(partition) = self.unpack(terms) {
            partition.push(PairCount::new(namespace, policy, count));
        }
    }

    /// Replaces the packed count of a policy.
    pub(super) fn replace(
        &mut self,
        terms: &mut TermTable,
        namespace: &Namespace,
        policy: &Policy,
        count: PackedCount,
    ) {
        let Some((number, _, words)) = self.packed_mut(terms, namespace, policy, 0) else { return };
        if let Some(packed) = TermCount::new(terms, namespace, policy, &count) {
            terms.release(mem::replace(number, packed.term));
            *words = packed.words;
        } else if let Some(stored) =
            self.unpack(terms).and_then(|partition| partition.count_mut(namespace, policy, 0))
        {
            *stored = PairCount::new(namespace, policy, count);
        }
    }

    /// Removes the count of a policy.
    pub(super) fn remove(&mut self, terms: &mut TermTable, namespace: &Namespace, policy: &Policy) {
        match self {
            Self::Large { large, .. } => large.partition.remove(namespace, policy),
            _ => self.retain_packed(terms, |_, term| !term.is_of(namespace, policy)),
        }
    }

    /// Removes the counts of all policies that are idle at `now`, if there are several.
    pub(super) fn remove_idle(&mut self, terms: &mut TermTable, now: u64) {
        match self {
            Self::Small { .. } => {}
            Self::Several { .. } => {
                self.retain_packed(terms, |words, term| {
                    AnyCount::of_term(words, term).idle_at(&term.policy) > now
                });
            }
            Self::Large { large, .. } => large.partition.retain(|count| count.idle_at() > now),
        }
    }

    /// Releases all terms of a slot that is not stored any longer.
    pub(super) fn release(&self, terms: &mut TermTable) {
        self.packed_counts().for_each(|count| terms.release(count.term));
    }

    /// Returns the packed counts.
    pub(super) fn packed_counts(&self) -> impl Iterator<Item = TermCount> {
        let (one, several) = match self {
            Self::Small { term, words, .. } => (Some(TermCount { term: *term, words: *words }), &[][..]),
            Self::Several { counts, .. } => (None, &counts[..]),
            Self::Large { .. } => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// Returns the number of the term, the term and the words of the packed count of a policy, if it is stored. Searches at the likely
    /// position first.
    #[inline(always)]
    pub(super) fn packed_mut<'t>(
        &mut self,
        terms: &'t TermTable,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> Option<(&mut u8, &'t Term, &mut [u64; 2])> {
        match self {
            Self::Small { term: number, words, .. } => {
                let term = terms.get(*number);
                term.is_of(namespace, policy).then_some((number, term, words))
            }
            Self::Several { counts, .. } => {
                let position = TermCount::position(counts, terms, namespace, policy, likely)?;
                let TermCount { term: number, words } = counts.get_mut(position)?;
                let term = terms.get(*number);
                Some((number, term, words))
            }
            Self::Large { .. } => None,
        }
    }

    /// Returns the packed count of a policy, if it is stored. Searches at the likely position first.
    pub(super) fn packed(
        &self,
        terms: &TermTable,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> Option<TermCount> {
        match self {
            &Self::Small { term, words, .. } => {
                terms.get(term).is_of(namespace, policy).then_some(TermCount { term, words })
            }
            Self::Several { counts, .. } => {
                counts.get(TermCount::position(counts, terms, namespace, policy, likely)?).copied()
            }
            Self::Large { .. } => None,
        }
    }

    /// Removes the packed counts that are not kept, and releases their terms.
    fn retain_packed(&mut self, terms: &mut TermTable, is_kept: impl Fn([u64; 2], &Term) -> bool) {
        let mut counts = self.take_packed();
        counts.retain(|TermCount { term, words }| {
            let is_kept = is_kept(*words, terms.get(*term));
            if !is_kept {
                terms.release(*term);
            }
            is_kept
        });
        self.set_packed(counts);
    }

    /// Takes the packed counts out.
    fn take_packed(&mut self) -> Vec<TermCount> {
        match self {
            Self::Small { term, words, .. } => vec![TermCount { term: *term, words: *words }],
            Self::Several { counts, .. } => mem::take(counts).into_vec(),
            Self::Large { .. } => Vec::new(),
        }
    }

    /// Stores these packed counts, and no others.
    fn set_packed(&mut self, counts: Vec<TermCount>) {
        let key = self.short_key();
        *self = match counts[..] {
            [TermCount { term, words }] => Self::Small { key, term, words },
            _ => Self::Several { key, counts: counts.into() },
        };
    }

    /// Returns the counts, none of which is packed any longer.
    fn unpack(&mut self, terms: &mut TermTable) -> Option<&mut Partition> {
        if !matches!(self, Self::Large { .. }) {
            let unpacked = |TermCount { term, words }| {
                let stated = terms.get(term);
                let (namespace, policy) = (stated.namespace.clone(), stated.policy.clone());
                let count = PairCount { namespace, policy, count: AnyCount::of_term(words, stated) };
                terms.release(term);
                count
            };
            let counts = self.take_packed().into_iter().map(unpacked).collect();
            let large = Large { long_key: None, partition: Partition::new(counts) };
            *self = Self::Large { key: self.short_key(), large: Box::new(large) };
        }
        match self {
            Self::Large { large, .. } => Some(&mut large.partition),
            _ => None,
        }
    }

    fn short_key(&self) -> ShortKey {
        match self {
            Self::Small { key, .. } | Self::Several { key, .. } | Self::Large { key, .. } => *key,
        }
    }

    /// Calls `each` with every count and its policy.
    fn each_count(&self, terms: &TermTable, mut each: impl FnMut(&Policy, &AnyCount)) {
        if let Self::Large { large, .. } = self {
            large.partition.counts().iter().for_each(|pair| each(&pair.policy, &pair.count));
        }
        for TermCount { term, words } in self.packed_counts() {
            let term = terms.get(term);
            each(&term.policy, &AnyCount::of_term(words, term));
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

    /// Returns the largest share of a quota in use, over all policies: of the smallest quota that was enforced on the usage. 1 is a whole quota, and
    /// so is a unit in flight.
    pub(super) fn share(&self, terms: &TermTable, now: u64) -> f64 {
        let mut largest: f64 = 0.0;
        self.each_count(terms, |policy, count| {
            // A key with held units is never evicted, because their release would return the units of others.
            let is_held = policy.properties().is_held;
            let whole = if is_held { Some(1) } else { count.smallest().get() };
            if let Some(whole) = whole {
                largest = largest.max(count.read(now, policy).used() as f64 / f64::from(whole));
            }
        });
        largest
    }
}

impl Keyed for KeySlot {
    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Self::Small { key, .. } | Self::Several { key, .. } => key.as_bytes(),
            Self::Large { key, large } => large.long_key.as_deref().unwrap_or_else(|| key.as_bytes()),
        }
    }

    #[inline]
    fn has_key(&self, key: &PartitionKey) -> bool {
        match self {
            Self::Small { key: short, .. } | Self::Several { key: short, .. } => short.is(key),
            Self::Large { .. } => self.key() == key.as_bytes(),
        }
    }
}

impl ShortKey {
    /// Returns a short key, or an empty one and the bytes of a longer key.
    fn new(key: &PartitionKey) -> (Self, Option<Box<[u8]>>) {
        let (bytes, mut short) = (key.as_bytes(), Self { length: 0, buffer: [0; SHORT] });
        match short.buffer.get_mut(..bytes.len()) {
            Some(buffer) => {
                buffer.copy_from_slice(bytes);
                // At most `SHORT`.
                short.length = bytes.len() as u8;
                (short, None)
            }
            None => (short, Some(bytes.into())),
        }
    }

    /// Returns whether this is the short form of a key. Compares the words of whole buffers, because zeros follow the bytes of both. A call
    /// that compares only the bytes takes longer.
    #[inline]
    fn is(&self, key: &PartitionKey) -> bool {
        let Some((length, bytes)) = key.as_inline() else { return false };
        let word = |bytes: &[u8], at| bytes[at..].first_chunk().copied().map(u64::from_ne_bytes);
        length == self.length
            && [0, 8, 16, 24, SHORT - 8].iter().all(|at| word(&self.buffer, *at) == word(bytes, *at))
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        self.buffer.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl TermCount {
    /// Returns the position of the count of a policy, if it is stored. Searches at the likely position first.
    fn position(
        counts: &[Self],
        terms: &TermTable,
        namespace: &Namespace,
        policy: &Policy,
        likely: usize,
    ) -> Option<usize> {
        position(counts, namespace, policy, likely, |count| {
            let term = terms.get(count.term);
            (&term.namespace, &term.policy)
        })
    }

    /// Packs a count, and acquires its term. Returns `None` if the count is not two words, or if there are too many terms.
    fn new(
        terms: &mut TermTable,
        namespace: &Namespace,
        policy: &Policy,
        count: &PackedCount,
    ) -> Option<Self> {
        let PackedCount::Words { words, smallest } = *count else { return None };
        Some(Self { term: terms.acquire(namespace, policy, smallest)?, words })
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
    /// With the algorithm of the last charge, and the quota of a charge. No quota changes what is stored.
    pub(super) policy: Policy,
    pub(super) count: AnyCount,
}

impl Partition {
    fn new(counts: Vec<PairCount>) -> Self {
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

    /// Decides a check of one pair. Returns whether the rate of the count has changed, or `None` if the record is full.
    #[inline(always)]
    pub(super) fn decide(&mut self, check: &mut Single<'_>) -> Option<bool> {
        self.count.decide(check)?;
        let mut has_new_rate = false;
        if check.changes() {
            if self.policy != *check.pair.policy {
                has_new_rate = self.policy.algorithm() != check.pair.policy.algorithm();
                self.policy = check.pair.policy.clone();
            }
            // A client must not make its usage evictable by a request in shadow mode, or of a larger quota.
            self.count.note_charge(check);
        }
        Some(has_new_rate)
    }

    pub(super) fn idle_at(&self) -> u64 {
        self.count.idle_at(&self.policy)
    }
}

/// Returns the position of the count of a policy, if it is stored. Searches at the likely position first. `pair` states the policy of a count.
#[inline]
fn position<'c, C>(
    counts: &'c [C],
    namespace: &Namespace,
    policy: &Policy,
    likely: usize,
    pair: impl Fn(&'c C) -> (&'c Namespace, &'c Policy),
) -> Option<usize> {
    // Usually a clone of the policy is stored, and one number identifies it.
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

    use super::{super::terms::SmallestQuota, *};
    use crate::check::{Check, Pair};

    /// A row of slots takes the memory of its keys, and little more.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn slot_is_seven_words() {
        let sizes = [size_of::<KeySlot>(), size_of::<Option<KeySlot>>(), size_of::<TermCount>()];
        assert_eq!(sizes, [56, 56, 24]);
    }

    /// Keys of every length near the bounds of words and of short keys, and those that differ from them in one byte or in a zero at the end.
    #[test]
    fn slot_has_only_its_own_key() {
        let terms = &mut TermTable::default();
        let (namespace, policy) =
            (Namespace::default(), Policy::new("p", 5, Duration::from_secs(1)).unwrap());
        for length in (0..=50).chain([300]) {
            let bytes = vec![b'x'; length];
            let count = PackedCount::Words { words: [0; 2], smallest: SmallestQuota::NONE };
            let key = PartitionKey::from_bytes(&bytes);
            let slot = KeySlot::new(terms, &key, &namespace, &policy, count);
            assert!(slot.has_key(&key), "{length} bytes");
            let mut others: Vec<Vec<u8>> = (0..length)
                .map(|at| {
                    let mut other = bytes.clone();
                    other[at] = 0;
                    other
                })
                .collect();
            others.push([&bytes[..], &[0]].concat());
            others.push(bytes[..length.saturating_sub(1)].to_vec());
            for other in others.into_iter().filter(|other| *other != bytes) {
                assert!(!slot.has_key(&PartitionKey::from_bytes(&other)), "{length} bytes: {other:?}");
            }
            slot.release(terms);
        }
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
            PairCount::new(
                check.scope(),
                policy,
                PackedCount::Words { words: [0; 2], smallest: SmallestQuota::NONE },
            )
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
