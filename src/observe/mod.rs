//! Log events for operators. Without the feature `tracing` all of them are no-ops, so that no call site needs a `cfg`.

use std::{
    error::Error,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    backend::BackendError,
    check::{Namespace, Pair},
    cost::Costs,
    policy::Policy,
};

#[cfg(feature = "tracing")]
mod conflicts;

/// Whether events are logged.
#[cfg(feature = "redis")]
pub(crate) const IS_LOGGED: bool = cfg!(feature = "tracing");

/// Warns once per policy and its clones about a cost above the quota: such a request can never be admitted, which is a mistake in
/// the configuration.
pub(crate) fn cost_above_quota(pair: &Pair) {
    if pair.policy.first_warning() {
        imp::cost_above_quota(pair);
    }
}

/// The warnings that a limiter logs once.
#[derive(Default)]
pub(crate) struct Warnings {
    unknown_policy: AtomicBool,
    misconfigured: AtomicBool,
}

impl Warnings {
    /// Warns once about an amount for a policy that no pair has.
    pub(crate) fn unknown_policies(&self, costs: &Costs, pairs: &[Pair]) {
        for name in costs.names() {
            let is_known = pairs.iter().any(|pair| pair.policy.name() == name);
            if !is_known && !self.unknown_policy.swap(true, Ordering::Relaxed) {
                imp::unknown_policy(name);
            }
        }
    }

    /// Warns once about a request that is rejected because of a mistake in the server.
    pub(crate) fn misconfigured(&self, error: &dyn Error) {
        if !self.misconfigured.swap(true, Ordering::Relaxed) {
            imp::misconfigured(error);
        }
    }
}

/// Warns about lost settlements: the number so far, and the last error.
pub(crate) fn settlements_lost(lost: u64, error: &BackendError) {
    imp::settlements_lost(lost, error);
}

/// Warns about lost rollbacks: charges of a denied or failed check stand in this number of slots of a cluster.
#[cfg(feature = "redis")]
pub(crate) fn lost_rollback(slots: usize, error: &BackendError) {
    imp::lost_rollback(slots, error);
}

/// Warns that the Redis at this address evicts keys when its memory is full.
#[cfg(feature = "redis")]
pub(crate) fn evicts(address: &str, policy: &str) {
    imp::evicts(address, policy);
}

/// Registers the policies of a new limiter, and warns once per policy about a conflicting policy of another limiter that is
/// `alive`: the same name, store and namespace, but a different quota, window or algorithm.
pub(crate) fn new_limits(store: &str, namespace: &Namespace, policies: &[Policy], alive: Weak<()>) {
    imp::new_limits(store, namespace, policies, alive);
}

#[cfg(feature = "tracing")]
mod imp {
    use std::{error::Error, sync::Weak};

    use super::conflicts;
    use crate::{
        backend::BackendError,
        check::{Namespace, Pair},
        policy::Policy,
    };

    pub(super) fn cost_above_quota(pair: &Pair) {
        tracing::warn!(
            policy = pair.policy.name(),
            cost = pair.cost,
            quota = pair.policy.quota(),
            "the cost of a request is above the quota: it can never be admitted",
        );
    }

    pub(super) fn unknown_policy(name: &str) {
        tracing::warn!(
            policy = name,
            "unknown policy: an amount names a policy that the check does not have"
        );
    }

    pub(super) fn misconfigured(error: &dyn Error) {
        tracing::warn!(%error, "misconfigured rate limit: the request is rejected");
    }

    pub(super) fn settlements_lost(lost: u64, error: &BackendError) {
        let why = error.source().map(ToString::to_string);
        tracing::warn!(lost, %error, why, "lost settlement: the charge stands");
    }

    #[cfg(feature = "redis")]
    pub(super) fn lost_rollback(slots: usize, error: &BackendError) {
        tracing::warn!(slots, %error, "lost rollback: charges of a check that was not admitted stand");
    }

    #[cfg(feature = "redis")]
    pub(super) fn evicts(address: &str, policy: &str) {
        tracing::warn!(
            address,
            policy,
            "Redis evicts keys when its memory is full, and evicted limits start from zero: set maxmemory-policy noeviction",
        );
    }

    pub(super) fn new_limits(store: &str, namespace: &Namespace, policies: &[Policy], alive: Weak<()>) {
        for [earlier, new] in conflicts::register(store, namespace, policies, alive) {
            tracing::warn!(
                policy = new.name(),
                ?earlier,
                ?new,
                "conflicting policies: same name and namespace, different quota, window or algorithm",
            );
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use std::{error::Error, sync::Weak};

    use crate::{
        backend::BackendError,
        check::{Namespace, Pair},
        policy::Policy,
    };

    pub(super) fn cost_above_quota(_pair: &Pair) {}

    pub(super) fn unknown_policy(_name: &str) {}

    pub(super) fn misconfigured(_error: &dyn Error) {}

    pub(super) fn settlements_lost(_lost: u64, _error: &BackendError) {}

    #[cfg(feature = "redis")]
    pub(super) fn lost_rollback(_slots: usize, _error: &BackendError) {}

    #[cfg(feature = "redis")]
    pub(super) fn evicts(_address: &str, _policy: &str) {}

    pub(super) fn new_limits(_: &str, _: &Namespace, _: &[Policy], _: Weak<()>) {}
}
