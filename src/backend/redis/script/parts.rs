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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `remaining`, the missing parts and the time in which all parts return, as the script does.
    fn status(TokenParts { quota, of_unit, returned }: &TokenParts, used: u64) -> (u32, u64, u64) {
        let capacity = u64::from(*quota) * of_unit;
        let remaining = capacity.saturating_sub(used) / of_unit;
        let missing = if used == 0 { 0 } else { (remaining + 1) * of_unit + used - capacity };
        (remaining as u32, missing, used.div_ceil(*returned))
    }

    #[test]
    fn times_follow_from_remaining_and_missing_parts() {
        for (quota, of_unit, returned) in
            [(1, 1, 1), (10, 7, 3), (100, 10_000, 1), (5, 3, 7), (9, 1_000_000, 7)]
        {
            let parts = TokenParts { quota, of_unit, returned };
            let capacity = u64::from(quota) * of_unit;
            // An overage, too.
            let usages = [0, 1, of_unit - 1, of_unit, of_unit + 1, capacity / 2, capacity - 1, capacity];
            for used in usages.into_iter().chain([capacity + 1, 2 * capacity]) {
                let (remaining, missing, reset_after) = status(&parts, used);
                // The clock is behind the last charge by this.
                for behind in [0, 9] {
                    let next_after = parts.next_after(remaining, missing, reset_after + behind);
                    assert_eq!(next_after, behind + missing.div_ceil(returned), "{quota} {of_unit} {used}");
                    for cost in 0..=3 {
                        let Some(before) = used.checked_sub(u64::from(cost) * of_unit) else { continue };
                        let reset = parts.reset_before(remaining, missing, reset_after + behind, cost);
                        assert_eq!(
                            reset,
                            behind + before.div_ceil(returned),
                            "{quota} {of_unit} {used} {cost}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn broken_status_causes_no_panic() {
        let parts = TokenParts { quota: u32::MAX, of_unit: 1 << 44, returned: 1 };
        for (remaining, number) in [(0, u64::MAX), (u32::MAX, 0), (u32::MAX, u64::MAX), (7, 1 << 63)] {
            parts.next_after(remaining, number, number);
            parts.reset_before(remaining, number, number, u32::MAX);
            parts.reset_before(remaining, number, 0, u32::MAX);
        }
    }
}
