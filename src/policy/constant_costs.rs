//! Constant costs, compared with policies.

use super::{Policy, cost_of};
use crate::{cost::Costs, error::ConfigError};

/// Compares a constant cost with the quotas of these policies and with the size of a sliding log. Returns the first mistake.
/// `requests` names the requests that have the cost. `may_exceed` states whether the cost may be above a quota.
pub(crate) fn check_constant_costs(
    requests: &str,
    costs: &Costs,
    policies: &[Policy],
    may_exceed: bool,
) -> Result<(), ConfigError> {
    for policy in policies {
        let (cost, quota) = (cost_of(policy, costs), policy.quota_units());
        let names = || (requests.to_owned(), policy.name().to_owned());
        if cost > quota && !may_exceed {
            let (requests, policy) = names();
            return Err(ConfigError::CostAboveQuota { requests, policy, cost, quota });
        }
        let charges = quota.checked_div(cost).unwrap_or(0);
        let max = policy.properties().max_charges;
        if charges > max {
            let (requests, policy) = names();
            return Err(ConfigError::TooManyCharges { requests, policy, cost, quota, max });
        }
    }
    Ok(())
}

/// Returns an error if the estimate of all requests is 0 for one of these policies.
pub(crate) fn check_estimates(costs: &Costs, policies: &[Policy]) -> Result<(), ConfigError> {
    match policies.iter().find(|policy| cost_of(policy, costs) == 0) {
        Some(policy) => Err(ConfigError::ZeroEstimate { policy: policy.name().to_owned() }),
        None => Ok(()),
    }
}
