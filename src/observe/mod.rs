//! What a limiter has done: counters for a health page, and the partition keys that are denied most.
//!
//! [`Limiter::stats`](crate::Limiter::stats) and [`Limiter::most_denied`](crate::Limiter::most_denied) return these types. For
//! metrics, log events and alerts, see the [guide](crate::guide::observability).

// Without the feature `tracing` all events are no-ops, and without `metrics` all metrics, so that no call site needs a `cfg`.

#[cfg(feature = "redis")]
use std::sync::atomic::AtomicU64;
use std::{
    error::Error,
    sync::atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use crate::{
    check::{Check, Namespace, NamespaceNumber, Pair, PairRef, Purpose},
    cost::Costs,
    decision::{Decision, Status},
    error::{BackendError, Reason},
    key::{HashSecret, PartitionKey},
    policy::{Policy, PolicyWarning, Tier},
};

mod conflicts;
mod counted;
mod decided_pairs;
mod double_charges;
mod events;
mod first_requests;
mod lifetime;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
mod outcome;
#[cfg(feature = "metrics")]
mod series;
mod server;
pub(crate) mod server_breaker;
mod stats;
mod throttle;

pub(crate) use counted::Counted;
pub(crate) use decided_pairs::DecidedPairs;
#[cfg(feature = "redis")]
pub(crate) use events::{evicts, problem_at_start};
pub(crate) use first_requests::FirstRequests;
pub(crate) use lifetime::{Lifetime, new_limits};
use metrics::LimiterMetrics;
#[cfg(feature = "metrics")]
pub use metrics::describe_metrics;
pub(crate) use metrics::{WaitMetrics, evicted};
pub(crate) use outcome::RequestOutcome;
pub(crate) use server::{LateCause, ServerEvents};
pub(crate) use server_breaker::ServerBreaker;
use stats::LimiterCounters;
pub use stats::{DeniedKey, Stats};
pub(crate) use throttle::{IS_LOGGED, Throttle};

/// The largest number of warnings about policies per minute. A service may make a policy for each request.
const MAX_POLICY_WARNINGS: u32 = 8;

/// Warns once per policy and its clones, if the throttle permits. A policy whose warning is not permitted warns later.
#[cold]
fn warn_once(policy: &Policy, warning: PolicyWarning, throttle: &Throttle, event: impl FnOnce(u64)) {
    let has_warned = policy.has_warned(warning);
    if !has_warned.load(Ordering::Relaxed)
        && let Some(unlogged) = throttle.pass()
        && !has_warned.swap(true, Ordering::Relaxed)
    {
        event(unlogged);
    }
}

/// Warns once per policy and its clones about a calendar period that begins earlier than the one that the store counts.
#[cfg(any(feature = "calendar", feature = "redis"))]
#[cold]
pub(crate) fn earlier_period(policy: &Policy) {
    // A count has no limiter, and threads that count do not wait for each other.
    thread_local! {
        static THROTTLE: Throttle = const { Throttle::per_minute(MAX_POLICY_WARNINGS) };
    }
    THROTTLE.with(|throttle| {
        warn_once(policy, PolicyWarning::EarlierPeriod, throttle, |unlogged| {
            events::earlier_period(policy, unlogged);
        });
    });
}

/// The events of a limiter.
pub(crate) struct LimiterEvents {
    /// The store and the namespace of the limiter.
    store: Box<str>,
    unknown_policy: AtomicBool,
    cost_above_quota: Throttle,
    not_learned: Throttle,
    misconfigured: Throttle,
    /// By the discriminant of the reason.
    failed_checks: [Throttle; Reason::ALL.len()],
    local_memory_full: Throttle,
    settlement_lost: Throttle,
    /// The fraction of a quota that counts as near the limit.
    near_limit: f64,
    /// The secret of the pseudonyms of partition keys, if events have them.
    pseudonyms: Option<HashSecret>,
    pub(crate) counters: LimiterCounters,
    metrics: LimiterMetrics,
}

impl LimiterEvents {
    pub(crate) fn new(
        store: impl Into<Box<str>>,
        policies: &[Policy],
        near_limit: f64,
        pseudonyms: Option<HashSecret>,
    ) -> Self {
        Self {
            store: store.into(),
            unknown_policy: AtomicBool::new(false),
            cost_above_quota: Throttle::per_minute(MAX_POLICY_WARNINGS),
            not_learned: Throttle::default(),
            misconfigured: Throttle::default(),
            failed_checks: [const { Throttle::per_minute(1) }; Reason::ALL.len()],
            local_memory_full: Throttle::default(),
            settlement_lost: Throttle::default(),
            near_limit,
            pseudonyms,
            counters: LimiterCounters::default(),
            metrics: LimiterMetrics::new(policies),
        }
    }

    /// Warns once per policy and its clones about a cost above the quota: such a request can never be admitted, which is a mistake in
    /// the configuration.
    #[inline]
    pub(crate) fn cost_above_quota(&self, pair: PairRef<'_>) {
        if pair.cost > pair.policy.quota_units() {
            warn_once(pair.policy, PolicyWarning::CostAboveQuota, &self.cost_above_quota, |unlogged| {
                events::cost_above_quota(pair, unlogged);
            });
        }
    }

    /// Warns once about an amount for a policy that no pair has.
    #[inline]
    pub(crate) fn unknown_policies<'a>(
        &self,
        costs: &Costs,
        policies: impl IntoIterator<Item = &'a Policy> + Clone,
    ) {
        for name in costs.names() {
            let is_known = policies.clone().into_iter().any(|policy| policy.name() == name);
            if !is_known && !self.unknown_policy.swap(true, Ordering::Relaxed) {
                events::unknown_policy(name);
            }
        }
    }

    /// Warns, at most once per minute, about an answer of an API that was not learned.
    pub(crate) fn not_learned(&self, error: &BackendError) {
        self.not_learned.log(|unlogged| events::not_learned(error, unlogged));
    }

    /// Counts a check that cannot be made. Warns, at most once per minute, about a request that is rejected because of a mistake in the
    /// server.
    pub(crate) fn misconfigured(&self, error: &dyn Error) {
        self.not_made();
        self.misconfigured.log(|unlogged| events::misconfigured(error, unlogged));
    }

    /// Counts a check that cannot be made.
    pub(crate) fn not_made(&self) {
        self.count_undecided(&[], Reason::Misconfigured);
    }

    /// Warns, at most once per minute, about a request that a layer in shadow mode passes uncounted because of a mistake in the server.
    pub(crate) fn misconfigured_shadow(&self, error: &dyn Error) {
        self.misconfigured.log(|unlogged| events::misconfigured_shadow(error, unlogged));
    }

    /// Counts the outcome of a check that is no peek and no debit. The denial of a request that may wait is counted by
    /// [`Limiter::wait`](crate::Limiter::wait). Warns about an error of one check. `started` is the instant at which the store was asked, or
    /// `None` if it was not asked, or has answered at once.
    #[inline]
    pub(crate) fn decided(
        &self,
        check: &Check,
        outcome: &Result<Decision, BackendError>,
        started: Option<Instant>,
    ) {
        let is_counted = check.purpose().is_counted();
        match outcome {
            // A lease request counts as the check itself, whose decision states more remaining quota.
            Ok(decision) if check.purpose() == Purpose::Lease && !decision.is_cached() => {}
            Ok(decision) if is_counted && (decision.is_admitted() || !check.hints.may_wait) => {
                self.decision(decision, DecidedPairs::Check(check));
            }
            Ok(_) => {}
            Err(error) if is_counted => self.undecided(check.pairs(), error),
            Err(error) => self.failed_check(check.pairs(), error),
        }
        if is_counted && let Some(started) = started {
            self.metrics.answered(started);
        }
    }

    /// Counts a check without a decision. Warns about an error of one check. `pairs` is empty if the check cannot be made.
    pub(crate) fn undecided(&self, pairs: &[Pair], error: &BackendError) {
        self.count_undecided(pairs, error.reason());
        self.failed_check(pairs, error);
    }

    fn count_undecided(&self, pairs: &[Pair], reason: Reason) {
        self.counters.unavailable(reason);
        self.metrics.unavailable(pairs, reason);
    }

    /// Warns, at most once per minute and reason, about an error of one check. The events of the server report all other errors.
    fn failed_check(&self, pairs: &[Pair], error: &BackendError) {
        if error.reason().is_of_one_check()
            && let Some(throttle) = self.failed_checks.get(error.reason() as usize)
        {
            throttle.log(|unlogged| {
                let policies = names(pairs.iter().map(|pair| &pair.policy));
                // Of several keys, it is not known which one it is.
                let key = pairs.first().map(|pair| &pair.key);
                let key = key.filter(|key| pairs.iter().all(|pair| pair.key == **key));
                let pseudonym = key.and_then(|key| self.pseudonym(key));
                events::failed_check(&self.store, &policies, pseudonym, error, unlogged);
            });
        }
    }

    /// Counts units, requests or settlements.
    pub(crate) fn count(&self, what: Counted, number: u64) {
        if number > 0 {
            self.counters.count(what, number);
            self.metrics.count(what, number);
        }
    }

    /// Counts the first denial of a request that waits.
    pub(crate) fn delayed(&self, decision: &Decision, check: &Check) {
        self.counters.delayed();
        self.metrics.delayed(decision);
        events::denied(decision, "delayed", || {
            self.pseudonym(DecidedPairs::Check(check).denied_key(decision)?)
        });
    }

    /// Counts a request that is rejected because its wait would be too long: a denial of each enforcing pair.
    pub(crate) fn wait_too_long(&self, check: &Check) {
        self.counters.wait_too_long();
        self.metrics.wait_too_long(check.pairs());
    }

    /// Counts a request that is rejected because too many wait.
    pub(crate) fn too_many_waiting(&self, check: &Check) {
        self.count_undecided(check.pairs(), Reason::Overloaded);
    }

    /// Begins to count a request that waits, until the result is dropped.
    pub(crate) fn waits(&self) -> WaitMetrics {
        WaitMetrics::begin()
    }

    /// Counts the decision of a check that is not a peek. Logs a denial, and shadow pairs that would have denied an admitted check,
    /// at the level `debug`.
    #[inline]
    pub(crate) fn decision(&self, decision: &Decision, pairs: DecidedPairs<'_>) {
        // A shadow pair that does not fit is not charged.
        let is_near = |status: &Status| {
            status.cost() > 0 && status.retry_after().is_zero() && status.is_near(self.near_limit)
        };
        self.metrics.decision(decision, is_near);
        if decision.is_admitted() {
            self.counters.admitted(decision, is_near);
            if decision.is_shadow_denied() {
                self.shadow_denied(decision, pairs);
            }
        } else {
            let key = pairs.denied_key(decision);
            // Only a metric needs it here.
            let secret = self.pseudonyms.as_ref().filter(|_| cfg!(feature = "metrics"));
            if let Some(pseudonym) = self.counters.denied(decision, key, secret) {
                self.metrics.denied_key(&pseudonym);
            }
            events::denied(decision, "denied", || self.pseudonym(key?));
        }
    }

    /// Counts and logs an admitted check that shadow pairs would have denied. If several would have denied it, the key of the one with
    /// the longest wait counts.
    #[cold]
    fn shadow_denied(&self, decision: &Decision, pairs: DecidedPairs<'_>) {
        let mut longest = None;
        pairs.each_shadow_denied(decision, |key, status| {
            events::shadow_denied(status, || self.pseudonym(key));
            let is_longer = |(_, wait)| wait < status.retry_after();
            if longest.is_none_or(is_longer) {
                longest = Some((key, status.retry_after()));
            }
        });
        self.counters.shadow_denied(longest.map(|(key, _)| key));
    }

    /// Returns the pseudonym of a key, if the limiter has a secret for pseudonyms.
    pub(crate) fn pseudonym(&self, key: &PartitionKey) -> Option<String> {
        self.pseudonyms.as_ref().map(|secret| secret.pseudonym(key))
    }

    /// Returns the keys that were denied most, or that shadow pairs would have denied most, at most `max` and at most 128.
    pub(crate) fn most_denied(&self, is_shadow: bool, max: usize) -> Vec<DeniedKey> {
        let mut keys = self.counters.most_denied(is_shadow, max);
        for denied in &mut keys {
            denied.pseudonym = self.pseudonym(&denied.key);
        }
        keys
    }

    /// Warns, at most once per minute, that the memory of the local fallback is full.
    pub(crate) fn local_memory_full(&self) {
        self.local_memory_full.log(|unlogged| events::local_memory_full(&self.store, unlogged));
    }

    /// Warns that a layer with these policies has limited none of its first requests.
    pub(crate) fn limits_nothing(&self, policies: &[Policy]) {
        events::limits_nothing(&self.store, &names(policies));
    }

    /// Warns that a layer with these policies counts by the address of the peer, although its requests come from a proxy.
    pub(crate) fn peer_is_proxy(&self, policies: &[Policy]) {
        events::peer_is_proxy(&self.store, &names(policies));
    }

    /// Warns about a tier of a policy table whose sliding log may become full.
    #[cold]
    pub(crate) fn problem_of_table(&self, problem: &dyn Error) {
        events::problem_of_table(&self.store, problem);
    }

    /// Warns that a constant cost names a policy that neither the layer nor its tables have.
    #[cold]
    pub(crate) fn cost_without_policy(&self, problem: &dyn Error) {
        events::cost_without_policy(&self.store, problem);
    }

    /// Warns that the name of a request is not in a policy table with this default.
    #[cold]
    pub(crate) fn unlisted_name(&self, default: &Tier) {
        let default = default.policies().map(|policies| names(policies.as_slice()));
        events::unlisted_name(&self.store, default.as_deref().unwrap_or("unlimited"));
    }

    /// Counts a request of a layer. `route` returns the matched route.
    pub(crate) fn responded<'a>(&self, outcome: RequestOutcome, route: impl FnOnce() -> Option<&'a str>) {
        self.metrics.responded(outcome, route);
    }

    /// Counts a lost settlement. Warns, at most once per minute, about lost settlements: the number so far, and the last error.
    pub(crate) fn settlement_lost(&self, error: &BackendError) {
        self.count(Counted::SettlementLost, 1);
        let lost = self.counters.counted(Counted::SettlementLost);
        self.settlement_lost.log(|unlogged| events::settlement_lost(lost, error, unlogged));
    }
}

/// Returns the names of policies, which distinguish the layers of a service.
fn names<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> String {
    policies.into_iter().map(Policy::name).collect::<Vec<_>>().join(", ")
}

/// Warns that none of the first requests had a key that an outer layer provides.
pub(crate) fn extension_not_found(key: &str, requests: u32) {
    events::extension_not_found(key, requests);
}

/// Warns that a handler needs what its request does not have.
#[cfg(feature = "axum")]
pub(crate) fn missing_value(error: &dyn Error, throttle: &Throttle) {
    throttle.log(|unlogged| events::missing_value(error, unlogged));
}

/// Counts units in flight that the store did not hold. Warns about them, if the throttle permits. `all` is their number so far.
#[cfg(feature = "redis")]
pub(crate) fn interrupted_units(units: u64, all: u64, throttle: &Throttle) {
    metrics::units_interrupted(units);
    throttle.log(|unlogged| events::interrupted_units(units, all, unlogged));
}

/// Counts a lost rollback: charges of a denied or failed check stand in a slot of a cluster. Warns about it, if the throttle
/// permits. `lost` is the number of lost rollbacks so far.
#[cfg(feature = "redis")]
pub(crate) fn lost_rollback(lost: u64, error: &BackendError, throttle: &Throttle) {
    metrics::rollback_lost();
    throttle.log(|unlogged| events::lost_rollback(lost, error, unlogged));
}

/// Counts a check that was sent and got no reply.
#[cfg(feature = "redis")]
pub(crate) fn unanswered(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
    // A check may be dropped while a panic unwinds.
    crate::foreign::contain(metrics::check_unanswered);
}

/// Warns, once for each policy in a namespace of a store, that two nested layers charge the same pair of a key and a policy.
pub(crate) fn charged_twice(place: NamespaceNumber, policy: &Policy) {
    if double_charges::is_first(place, policy)
        && let Some(namespace) = Namespace::of_number(place)
    {
        events::charged_twice(namespace.as_str(), policy);
    }
}
