//! The policies of the packed counts of a shard. So a count states its policy in one byte.

use crate::{
    check::{Namespace, PairRef},
    policy::Policy,
};

/// The largest number of terms. A search reads all of them.
const MAX_TERMS: usize = 64;

/// The terms of the packed counts of a shard.
#[derive(Default)]
pub(super) struct TermTable(Vec<Term>);

/// The smallest quota of the enforcing pairs that have charged a usage, since nothing was used. The share of this quota decides whether the
/// usage protects its key from an eviction. 0 if only shadow pairs were charged: such usage does not protect it.
///
/// An `Option` takes more instructions to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SmallestQuota(u32);

impl SmallestQuota {
    pub(super) const NONE: Self = Self(0);

    /// Returns the quota of a pair, if it is enforced.
    #[inline]
    pub(super) fn of(pair: PairRef<'_>) -> Self {
        if pair.is_shadow { Self::NONE } else { Self(pair.policy.quota_units()) }
    }

    pub(super) fn get(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0)
    }

    /// Returns the smaller one, if there are two.
    pub(super) fn min(self, other: Self) -> Self {
        self.get().into_iter().chain(other.get()).min().map_or(Self::NONE, Self)
    }
}

/// What a packed count does not state.
pub(super) struct Term {
    pub(super) namespace: Namespace,
    /// With the algorithm of the last charge, and any quota.
    pub(super) policy: Policy,
    pub(super) smallest: SmallestQuota,
    /// How many counts have this term. At 0, another term may take its place.
    counts: u32,
}

impl TermTable {
    /// Returns the term with this number.
    #[inline]
    pub(super) fn get(&self, term: u8) -> &Term {
        &self.0[usize::from(term)]
    }

    /// Returns the number of the term of one more count, or `None` if there are too many terms.
    pub(super) fn acquire(
        &mut self,
        namespace: &Namespace,
        policy: &Policy,
        smallest: SmallestQuota,
    ) -> Option<u8> {
        let is_same = |term: &Term| term.is_for(policy, smallest) && term.namespace == *namespace;
        let known = self.0.iter().position(is_same);
        let index = known.or_else(|| self.0.iter().position(|term| term.counts == 0)).unwrap_or(self.0.len());
        if known.is_none() {
            let term = Term { namespace: namespace.clone(), policy: policy.clone(), smallest, counts: 0 };
            match self.0.get_mut(index) {
                Some(unused) => *unused = term,
                None if index < MAX_TERMS => self.0.push(term),
                None => return None,
            }
        }
        self.0[index].counts += 1;
        Some(index as u8)
    }

    /// Returns how many counts have each term.
    #[cfg(test)]
    pub(super) fn counts(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|term| term.counts)
    }

    /// Notes that a count has this term no longer.
    pub(super) fn release(&mut self, term: u8) {
        self.0[usize::from(term)].counts -= 1;
        while self.0.pop_if(|term| term.counts == 0).is_some() {}
    }
}

impl Term {
    /// Returns whether a count of this policy and this smallest quota has this term, if the namespace is the same. The quota of the last charge
    /// makes no difference to a stored count, so that few terms serve many quotas of a policy. The rate of a token bucket does.
    #[inline(always)]
    pub(super) fn is_for(&self, policy: &Policy, smallest: SmallestQuota) -> bool {
        // Usually a clone of the policy is stored. So most callers need not call the comparison of policies.
        self.smallest == smallest && (self.policy.is_same(policy) || self.is_alike(policy))
    }

    #[cold]
    fn is_alike(&self, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.policy.algorithm() == policy.algorithm()
    }

    /// Returns whether a count of this term counts a policy.
    #[inline]
    pub(super) fn is_of(&self, namespace: &Namespace, policy: &Policy) -> bool {
        self.policy.counts_with(policy) && self.namespace == *namespace
    }
}
