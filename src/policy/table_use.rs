//! What a layer requires of the tables that it uses.

use super::{Policies, Policy, check_constant_costs, check_estimates, distinct};
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
    /// Whether a cost is an estimate, which must not be 0.
    pub(crate) settles: bool,
    /// Whether the backend holds the units of policies in flight.
    pub(crate) holds_units: bool,
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

/// Returns an error about the first policy in flight, if the backend cannot hold units.
pub(crate) fn check_held<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    holds_units: bool,
) -> Result<(), ConfigError> {
    match policies.into_iter().find(|policy| !holds_units && policy.properties().is_held) {
        Some(policy) => Err(ConfigError::CannotHold { policy: policy.name().to_owned() }),
        None => Ok(()),
    }
}

impl TableUse {
    /// Returns an error if the layer cannot check the policies of a tier, or if they limit none of its requests.
    pub(super) fn check_policies(&self, tier: &Policies) -> Result<(), ConfigError> {
        if self.keeps_bodies {
            check_kept_bodies(tier.as_slice())?;
        }
        check_held(tier.as_slice(), self.holds_units)?;
        distinct(&[&self.fixed, tier.as_slice()].concat())?;
        self.check_estimates(tier)
    }

    /// Returns an error if the layer settles, and the estimate of each limit is 0 for a policy of the tier.
    fn check_estimates(&self, tier: &Policies) -> Result<(), ConfigError> {
        let mut checked = Ok(());
        for costs in self.limits.iter().filter(|_| self.settles) {
            // Some routes may be free.
            let mut of_all = costs.iter().filter(|(requests, _)| requests.is_empty());
            checked = of_all.try_for_each(|(_, costs)| check_estimates(costs, tier.as_slice()));
            if checked.is_ok() {
                break;
            }
        }
        checked
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
