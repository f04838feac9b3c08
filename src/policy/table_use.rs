//! What a layer requires of the tables that it uses.

use std::collections::BTreeSet;

use super::{Policies, Policy, check_constant_costs, check_estimates, distinct};
use crate::{cost::Costs, error::ConfigError};

/// What a layer requires of each tier of a table.
#[derive(Clone)]
pub(crate) struct TableUse {
    /// The policies that the layer has for every request.
    pub(crate) fixed: Vec<Policy>,
    /// The limits of the layer that choose from the table: the constant costs of each, with the requests that have them.
    pub(crate) limits: Vec<Vec<(String, Costs)>>,
    /// The constant costs whose names must be those of policies: of all limits, or none if other selectors than tables choose policies.
    pub(crate) named: Vec<(String, Costs)>,
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

    /// Returns whether a constant cost has a name.
    pub(super) fn names_policies(&self) -> bool {
        self.named.iter().any(|(_, costs)| costs.names().next().is_some())
    }

    /// Returns an error if a constant cost names a policy that is neither one of the layer nor one of these, which are those of all tiers
    /// of all tables. Without any tier, all names are valid: the tiers may follow.
    pub(super) fn check_names<'a, I: Iterator<Item = &'a Policy>>(
        &self,
        of_tiers: impl Fn() -> I,
    ) -> Result<(), ConfigError> {
        let all =
            self.named.iter().flat_map(|(requests, costs)| costs.names().map(move |name| (requests, name)));
        for (requests, name) in all {
            let is_named = |policy: &Policy| policy.name() == name;
            let is_known = self.fixed.iter().any(is_named) || of_tiers().any(is_named);
            if is_known || of_tiers().next().is_none() {
                continue;
            }
            // The tiers have no order, and repeat names.
            let of_tiers: BTreeSet<&str> = of_tiers().map(Policy::name).collect();
            let known = self.fixed.iter().map(Policy::name).chain(of_tiers).map(str::to_owned).collect();
            return Err(ConfigError::CostWithoutPolicy {
                requests: requests.clone(),
                name: name.to_owned(),
                known,
            });
        }
        Ok(())
    }
}
