//! Changes that return units: the denials that were decided before are true no longer, and a request that waits may have room.

use super::{Namespace, PairKey};
use crate::{key::PartitionKey, policy::Policy};

/// A refund, a rollback or a reset of some pairs. It invalidates their known denials when it begins and when it is dropped, because a
/// denial in between may have been decided before the change. It does so for all limiters of this process with the store and the
/// namespace. At its end, it wakes requests that wait for the pairs.
pub(crate) struct Invalidation {
    namespace: Namespace,
    /// Each pair, and whether its denials are removed. Otherwise they hold if the store makes no decision.
    pairs: Vec<(PairKey, bool)>,
}

impl Invalidation {
    /// Removes the denials of these pairs, now and at its end. Unless the change is certain, they hold if the store makes no decision,
    /// until the change is [made](Self::made).
    pub(crate) fn begin<'a>(
        namespace: &Namespace,
        pairs: impl Iterator<Item = (&'a PartitionKey, &'a Policy)>,
        is_certain: bool,
    ) -> Self {
        // A limiter that is built later may learn a denial while the change is in progress. Only a store that never waits has none.
        let pairs = pairs.map(|(key, policy)| (PairKey::new(key, policy), is_certain)).collect();
        let invalidation = Self { namespace: namespace.clone(), pairs };
        invalidation.invalidate();
        invalidation
    }

    /// Notes that the change is made.
    pub(crate) fn made(&mut self) {
        self.pairs.iter_mut().for_each(|(_, is_made)| *is_made = true);
    }

    /// Notes that the change of one pair is made.
    #[cfg(feature = "redis")]
    pub(crate) fn made_for(&mut self, key: &PartitionKey, policy: &Policy) {
        let of_pair = PairKey::new(key, policy);
        self.pairs.iter_mut().filter(|(pair, _)| *pair == of_pair).for_each(|(_, is_made)| *is_made = true);
    }

    fn invalidate(&self) {
        for denials in self.namespace.known_denials() {
            for (pair, is_made) in &self.pairs {
                denials.invalidate(pair, *is_made);
            }
        }
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.invalidate();
        for (pair, _) in self.pairs.iter().filter(|(_, is_made)| *is_made) {
            self.namespace.released_pair(pair);
        }
    }
}
