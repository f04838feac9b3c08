//! A pair as the key of a map.

use std::hash::{Hash, Hasher};

use crate::{key::PartitionKey, policy::Policy};

/// A partition key and a policy. The quota of the policy makes no difference, because usage does not depend on it.
#[derive(Clone)]
pub(crate) struct PairKey {
    key: PartitionKey,
    policy: Policy,
}

impl PairKey {
    pub(crate) fn new(key: &PartitionKey, policy: &Policy) -> Self {
        Self { key: key.bounded().into_owned(), policy: policy.clone() }
    }

    /// Hashes the pair without the hash of its key, which differs between processes.
    pub(crate) fn hash_reproducibly(&self, state: &mut impl Hasher) {
        self.key.as_bytes().hash(state);
        self.hash_policy(state);
    }

    fn hash_policy(&self, state: &mut impl Hasher) {
        self.policy.name().hash(state);
        self.policy.window_micros().hash(state);
        self.policy.algorithm().hash(state);
    }
}

impl PartialEq for PairKey {
    fn eq(&self, other: &Self) -> bool {
        self.policy.counts_with(&other.policy) && self.key == other.key
    }
}

impl Eq for PairKey {}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.hash_policy(state);
    }
}
