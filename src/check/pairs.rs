//! The pairs of a partition key and the policies of a set.

use super::Pair;
use crate::{
    cost::{Costs, IntoCosts},
    key::PartitionKey,
    policy::{Policies, Policy, cost_of},
};

impl Policies {
    /// Pairs this key with each of the policies, for a check of several keys. A policy that `costs` does not name costs 1
    /// unit.
    pub fn pairs(&self, key: &PartitionKey, costs: impl IntoCosts) -> Vec<Pair> {
        let costs = costs.into_costs();
        Pair::for_policies(key, self.as_slice(), &costs).collect()
    }
}

impl Pair {
    /// Pairs a key with each of these policies.
    pub(crate) fn for_policies(
        key: &PartitionKey,
        policies: &[Policy],
        costs: &Costs,
    ) -> impl Iterator<Item = Self> {
        policies.iter().map(|policy| Self::for_policy(key.clone(), policy, costs))
    }

    /// Pairs a key with a policy.
    #[inline]
    pub(crate) fn for_policy(key: PartitionKey, policy: &Policy, costs: &Costs) -> Self {
        Self::new(key, policy.clone(), cost_of(policy, costs))
    }
}
