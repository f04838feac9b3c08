//! The parts of a unit in the status of a token bucket. `lua/README.md` is the contract.

use crate::policy::{EqualChecks, Policy, Properties, RedisProperties};

/// A token bucket, as a script knows it.
pub(super) struct TokenParts {
    quota: u32,
    of_unit: u64,
    /// Those that return in a microsecond, at least 1.
    returned: u64,
}

impl TokenParts {
    /// Returns those of a policy, or `None` if its statuses state no parts.
    pub(super) fn of_policy(policy: &Policy) -> Option<Self> {
        let Properties { arguments: [of_unit, returned], redis, .. } = policy.properties();
        Self::of_type(redis, policy.quota_units(), *of_unit, *returned)
    }

    /// Returns those of the fields of a pair, or `None` if its statuses state no parts.
    pub(super) fn of_type(
        RedisProperties { equal_checks, .. }: &RedisProperties,
        quota: u32,
        of_unit: u64,
        returned: u64,
    ) -> Option<Self> {
        (*equal_checks == EqualChecks::Parts && returned > 0).then_some(Self { quota, of_unit, returned })
    }

    /// Returns the time until one more unit remains, in microseconds, by a status: what remains, the parts until then, and `reset_after`.
    pub(super) fn next_after(&self, remaining: u32, missing: u64, reset_after: u64) -> u64 {
        let used = self.used(remaining, missing);
        // While the clock is behind the last charge, both times are longer.
        reset_after.saturating_sub(self.time_of(used)).saturating_add(self.time_of(missing))
    }

    /// Returns the `reset_after` of the check before one with this status and cost.
    pub(super) fn reset_before(&self, remaining: u32, missing: u64, reset_after: u64, cost: u32) -> u64 {
        let used = self.used(remaining, missing);
        let before = used.saturating_sub(self.of_unit.saturating_mul(cost.into()));
        reset_after.saturating_sub(self.time_of(used) - self.time_of(before))
    }

    /// Returns the parts that have not returned.
    fn used(&self, remaining: u32, missing: u64) -> u64 {
        // If nothing is used, nothing is missing.
        let whole = u64::from(self.quota).saturating_sub(u64::from(remaining) + 1);
        whole.saturating_mul(self.of_unit).saturating_add(missing)
    }

    fn time_of(&self, parts: u64) -> u64 {
        parts.div_ceil(self.returned)
    }
}
