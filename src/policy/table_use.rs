//! What a layer requires of the tables that it uses.

use super::{Policies, Policy, check_constant_costs, distinct};
use crate::{cost::Costs, error::ConfigError};

/// What a layer requires of each tier of a table.
#[derive(Clone)]
pub(crate) struct TableUse {
    /// The policies that the layer has for every request.
    pub(crate) fixed: Vec<Policy>,
    /// The limits of the layer that choose from the table: the constant costs of each, with the requests that have them.
    pub(crate) limits: Vec<Vec<(String, Costs)>>,
    /// Whether a cost may be above a quota.
    pub(crate) clamps: bool,
    /// Whether the layer keeps the type of a body, and cannot see its end.
    pub(crate) keeps_bodies: bool,
}

/// Returns an error if a policy is in flight, which a layer that keeps the type of a body cannot hold.
pub(crate) fn check_kept_bodies(policies: &[Policy]) -> Result<(), ConfigError> {
    match policies.iter().find(|policy| policy.properties().is_held) {
        Some(policy) => Err(ConfigError::SameBody { policy: policy.name().to_owned() }),
        None => Ok(()),
    }
}

impl TableUse {
    /// Returns an error if the policies of a tier cannot be checked together with those of the layer.
    pub(super) fn check_policies(&self, tier: &Policies) -> Result<(), ConfigError> {
        if self.keeps_bodies {
            check_kept_bodies(tier.as_slice())?;
        }
        distinct(&[&self.fixed, tier.as_slice()].concat())
    }

    /// Compares the constant costs of each limit with the policies of a tier.
    pub(super) fn check_costs(&self, tier: &Policies) -> impl Iterator<Item = Result<(), ConfigError>> {
        self.limits.iter().map(|costs| {
            costs.iter().try_for_each(|(requests, costs)| {
                // A tier may exclude expensive routes, but not all requests.
                let may_exceed = self.clamps || !requests.is_empty();
                check_constant_costs(requests, costs, tier.as_slice(), may_exceed)
            })
        })
    }
}
