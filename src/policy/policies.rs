//! Sets of policies.

use std::{fmt, sync::Arc};

use super::Policy;
use crate::{cost::Costs, error::ConfigError};

/// The largest number of pairs in one check, and so of policies in one limiter.
pub const MAX_PAIRS: usize = 8;

/// A set of policies that are in force together: 1 to [`MAX_PAIRS`] policies with different names.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Policies(Arc<Box<[Policy]>>);

impl Policies {
    /// Creates a set of policies. Their order has no effect except on the order of statuses and header fields.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::NoPolicies`], [`ConfigError::TooManyPolicies`] or [`ConfigError::DuplicatePolicy`].
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, ConfigError> {
        let policies: Box<[Policy]> = policies.into_iter().collect();
        if policies.is_empty() {
            return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
        }
        distinct(&policies)?;
        Ok(Self(Arc::new(policies)))
    }

    /// Creates a set without validation. The check that uses it is validated.
    pub(crate) fn unchecked(policies: Vec<Policy>) -> Self {
        Self(Arc::new(policies.into()))
    }

    /// Returns the policies in the order in which they were added.
    pub fn as_slice(&self) -> &[Policy] {
        &self.0
    }
}

/// Validates that there are at most [`MAX_PAIRS`] policies, with different names.
pub(crate) fn distinct(policies: &[Policy]) -> Result<(), ConfigError> {
    if policies.len() > MAX_PAIRS {
        return Err(ConfigError::TooManyPolicies { given: policies.len(), max: MAX_PAIRS });
    }
    for (i, policy) in policies.iter().enumerate() {
        if policies[..i].iter().any(|other| other.name() == policy.name()) {
            return Err(ConfigError::DuplicatePolicy { name: policy.name().to_owned() });
        }
    }
    Ok(())
}

/// Returns the cost of a policy: 1 unit if `costs` does not name it.
#[inline]
pub(crate) fn cost_of(policy: &Policy, costs: &Costs) -> u32 {
    costs.amount(policy.name()).unwrap_or(1)
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self(Arc::new([policy].into()))
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}
