//! What an operator is told. Silent where the feature `tracing` is off, so that no call site carries a `cfg`.

#[cfg(feature = "redis")]
use crate::backend::BackendError;
use crate::check::Pair;

/// Warns, once per policy, that a cost is above the quota: such a request is refused for ever, which is a mistake in
/// the configuration.
pub(crate) fn cost_above_quota(pair: &Pair) {
    if pair.policy.first_warning() {
        imp::cost_above_quota(pair);
    }
}

/// Warns that charges stand although their check was denied or failed: what was charged in one slot of a cluster did not
/// go back when another slot did not charge.
#[cfg(feature = "redis")]
pub(crate) fn not_given_back(slots: usize, error: &BackendError) {
    imp::not_given_back(slots, error);
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

    #[cfg(feature = "redis")]
    pub(super) fn not_given_back(slots: usize, error: &crate::backend::BackendError) {
        tracing::warn!(slots, %error, "charges stand although their check was not admitted");
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use crate::check::Pair;

    pub(super) fn cost_above_quota(_pair: &Pair) {}

    #[cfg(feature = "redis")]
    pub(super) fn not_given_back(_slots: usize, _error: &crate::backend::BackendError) {}
}
