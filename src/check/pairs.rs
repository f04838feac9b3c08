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
        pairs(key, self.as_slice(), &costs).collect()
    }
}

/// Pairs this key with each of the policies.
pub(crate) fn pairs(key: &PartitionKey, policies: &[Policy], costs: &Costs) -> impl Iterator<Item = Pair> {
    policies.iter().map(|policy| pair(key.clone(), policy, costs))
}

/// Pairs this key with a policy.
#[inline]
pub(crate) fn pair(key: PartitionKey, policy: &Policy, costs: &Costs) -> Pair {
    Pair::new(key, policy.clone(), cost_of(policy, costs))
}
