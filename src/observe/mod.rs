//! What an operator is told. Silent where the feature `tracing` is off, so that no call site carries a `cfg`.

use std::sync::{
    Weak,
    atomic::{AtomicBool, Ordering},
};

use crate::{
    backend::BackendError,
    check::{Namespace, Pair},
    cost::Costs,
    error::ConfigError,
    policy::Policy,
};

#[cfg(feature = "tracing")]
mod rivals;

/// Whether anybody is told anything.
#[cfg(feature = "redis")]
pub(crate) const IS_HEARD: bool = cfg!(feature = "tracing");

/// Warns, once per policy and its clones, that a cost is above the quota: such a request is refused for ever, which is a mistake in
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

    /// Warns once about a request that cannot be checked and is rejected.
    pub(crate) fn misconfigured(&self, error: &ConfigError) {
        if !self.misconfigured.swap(true, Ordering::Relaxed) {
            imp::misconfigured(error);
        }
    }
}

/// Warns that so many settlements were lost so far, the last one for this reason.
pub(crate) fn settlements_lost(lost: u64, error: &BackendError) {
    imp::settlements_lost(lost, error);
}

/// Warns that charges stand although their check was denied or failed: what was charged in so many slots of a cluster did
/// not go back when another slot did not charge.
#[cfg(feature = "redis")]
pub(crate) fn not_given_back(slots: usize, error: &BackendError) {
    imp::not_given_back(slots, error);
}

/// Warns that the Redis at this address throws keys away when its memory is full.
#[cfg(feature = "redis")]
pub(crate) fn evicts(address: &str, policy: &str) {
    imp::evicts(address, policy);
}

/// Warns, once for each policy, that a limiter has a policy of the same name on the same store and in the same namespace as
/// one of other numbers that is `alive`: they share a count and disagree about it, or believe that they share one.
pub(crate) fn new_limits(store: &str, namespace: &Namespace, policies: &[Policy], alive: Weak<()>) {
    imp::new_limits(store, namespace, policies, alive);
}

#[cfg(feature = "tracing")]
mod imp {
    use std::{error::Error, sync::Weak};

    use super::rivals;
    use crate::{
        backend::BackendError,
        check::{Namespace, Pair},
        error::ConfigError,
        policy::Policy,
    };

    pub(super) fn cost_above_quota(pair: &Pair) {
        tracing::warn!(
            policy = pair.policy.name(),
            cost = pair.cost,
            quota = pair.policy.quota(),
            "a request costs more than the whole quota: it can never be admitted",
        );
    }

    pub(super) fn unknown_policy(name: &str) {
        tracing::warn!(policy = name, "an amount is named for a policy that the check does not have");
    }

    pub(super) fn misconfigured(error: &ConfigError) {
        tracing::warn!(%error, "a request asks for what cannot be a check, and is refused");
    }

    pub(super) fn settlements_lost(lost: u64, error: &BackendError) {
        let why = error.source().map(ToString::to_string);
        tracing::warn!(lost, %error, why, "settlements were lost: their charges stand");
    }

    #[cfg(feature = "redis")]
    pub(super) fn not_given_back(slots: usize, error: &BackendError) {
        tracing::warn!(slots, %error, "charges stand although their check was not admitted");
    }

    #[cfg(feature = "redis")]
    pub(super) fn evicts(address: &str, policy: &str) {
        tracing::warn!(
            address,
            policy,
            "this Redis evicts keys when its memory is full, and limits start afresh then: set maxmemory-policy noeviction",
        );
    }

    pub(super) fn new_limits(store: &str, namespace: &Namespace, policies: &[Policy], alive: Weak<()>) {
        for [there, new] in rivals::register(store, namespace, policies, alive) {
            tracing::warn!(
                policy = new.name(),
                ?there,
                ?new,
                "two limits of one name on one store and in one namespace have other numbers",
            );
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use std::sync::Weak;

    use crate::{
        backend::BackendError,
        check::{Namespace, Pair},
        error::ConfigError,
        policy::Policy,
    };

    pub(super) fn cost_above_quota(_pair: &Pair) {}

    pub(super) fn unknown_policy(_name: &str) {}

    pub(super) fn misconfigured(_error: &ConfigError) {}

    pub(super) fn settlements_lost(_lost: u64, _error: &BackendError) {}

    #[cfg(feature = "redis")]
    pub(super) fn not_given_back(_slots: usize, _error: &BackendError) {}

    #[cfg(feature = "redis")]
    pub(super) fn evicts(_address: &str, _policy: &str) {}

    pub(super) fn new_limits(_: &str, _: &Namespace, _: &[Policy], _: Weak<()>) {}
}
