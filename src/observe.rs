//! What an operator is told. Silent where the feature `tracing` is off, so that no call site carries a `cfg`.

use crate::check::Pair;

/// Warns, once per policy, that a cost is above the quota: such a request is refused for ever, which is a mistake in
/// the configuration.
pub(crate) fn cost_above_quota(pair: &Pair) {
    if pair.policy.first_warning() {
        imp::cost_above_quota(pair);
    }
}

#[cfg(feature = "tracing")]
mod imp {
    use crate::check::Pair;

    pub(super) fn cost_above_quota(pair: &Pair) {
        tracing::warn!(
            policy = pair.policy.name(),
            cost = pair.cost,
            quota = pair.policy.quota(),
            "a request costs more than the whole quota: it can never be admitted",
        );
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use crate::check::Pair;

    pub(super) fn cost_above_quota(_pair: &Pair) {}
}
