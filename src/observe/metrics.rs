//! The metrics, for the facade of the crate `metrics`: their names, labels and values. Without the feature `metrics`,
//! `no_metrics.rs` replaces this file.
//!
//! No label contains a partition key or a path. That of the denied keys begins a pseudonym of a key.

use metrics::{
    Gauge, Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
};
use tokio::time::Instant;

use super::{
    Counted, RequestOutcome,
    series::{ByName, Series},
};
use crate::{
    check::Pair,
    decision::{Decision, Status},
    error::Reason,
    foreign::contain,
    lock::Lock,
    policy::Policy,
};

const REQUESTS: &str = "rate_limit_requests_total";
const DECISIONS: &str = "rate_limit_decisions_total";
const CHARGED_UNITS: &str = "rate_limit_charged_units_total";
const NEAR_LIMIT: &str = "rate_limit_near_limit_total";
const CHECK_DURATION: &str = "rate_limit_check_duration_seconds";
const UNAVAILABLE_CHECKS: &str = "rate_limit_unavailable_checks_total";
const UNDECIDED_ADMISSIONS: &str = "rate_limit_undecided_admissions_total";
const UNANSWERED_CHECKS: &str = "rate_limit_unanswered_checks_total";
const WAITING: &str = "rate_limit_waiting_requests";
const WAIT_DURATION: &str = "rate_limit_wait_duration_seconds";
const BREAKER_OPEN: &str = "rate_limit_breaker_open";
const SERVER_FAILURES: &str = "rate_limit_server_failures_total";
const DENY_CACHE_HITS: &str = "rate_limit_deny_cache_hits_total";
const SETTLEMENTS: &str = "rate_limit_settlements_total";
const DENIED_KEYS: &str = "rate_limit_denied_keys_total";
const LEASED_UNITS: &str = "rate_limit_leased_units_total";
const LOST_ROLLBACKS: &str = "rate_limit_lost_rollbacks_total";
const INTERRUPTED_UNITS: &str = "rate_limit_interrupted_units_total";
const EVICTED_KEYS: &str = "rate_limit_evicted_keys_total";
const EVICTED_UNITS: &str = "rate_limit_evicted_units_total";

/// The metrics and their outcomes, by the discriminant of what they count.
const COUNTED: [(&str, &str); Counted::NUMBER] = [
    (LEASED_UNITS, "charged"),
    (LEASED_UNITS, "granted"),
    (LEASED_UNITS, "returned"),
    (LEASED_UNITS, "lost"),
    (UNDECIDED_ADMISSIONS, "unchecked"),
    (UNDECIDED_ADMISSIONS, "local_fallback"),
    (SETTLEMENTS, "done"),
    (SETTLEMENTS, "lost"),
];

/// The number of hexadecimal digits of a pseudonym in a label, so that there are at most 4,096 series.
const PSEUDONYM_DIGITS: usize = 3;

/// Describes all metrics of this crate to the recorder: their units and help texts.
///
/// Building a limiter does the same. Call this function only if a limiter is built before the recorder is installed. The
/// [guide](crate::guide::observability#metrics) lists the metrics.
pub fn describe_metrics() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests of the rate limit layers, by outcome and matched route."
    );
    describe_counter!(DECISIONS, Unit::Count, "Decisions, by policy and outcome.");
    describe_counter!(CHARGED_UNITS, Unit::Count, "Quota units charged by admitted checks, by policy.");
    describe_counter!(NEAR_LIMIT, Unit::Count, "Admitted checks that are near the limit, by policy.");
    describe_histogram!(CHECK_DURATION, Unit::Seconds, "Time until the store has decided a check.");
    describe_counter!(UNAVAILABLE_CHECKS, Unit::Count, "Checks without a decision, by reason.");
    describe_counter!(
        UNDECIDED_ADMISSIONS,
        Unit::Count,
        "Requests that the outage rule has admitted without a decision of the store, by outcome."
    );
    describe_counter!(UNANSWERED_CHECKS, Unit::Count, "Checks that were sent to Redis and got no reply.");
    describe_gauge!(WAITING, Unit::Count, "Requests that wait until their limit admits them.");
    describe_histogram!(WAIT_DURATION, Unit::Seconds, "Time that requests have waited, by outcome.");
    describe_gauge!(BREAKER_OPEN, Unit::Count, "Circuit breakers that are open or half-open, by server.");
    describe_counter!(
        SERVER_FAILURES,
        Unit::Count,
        "Failed checks that show an outage of the server, by server."
    );
    describe_counter!(DENY_CACHE_HITS, Unit::Count, "Checks that the deny cache has answered.");
    describe_counter!(
        DENIED_KEYS,
        Unit::Count,
        "Denied checks of keys that were denied before, by the beginning of the key's pseudonym."
    );
    describe_counter!(SETTLEMENTS, Unit::Count, "Settlements, by outcome.");
    describe_counter!(LEASED_UNITS, Unit::Count, "Leased quota units, by what happened to them.");
    describe_counter!(LOST_ROLLBACKS, Unit::Count, "Rollbacks that were lost, so that a charge stands.");
    describe_counter!(
        INTERRUPTED_UNITS,
        Unit::Count,
        "Units in flight that the store did not hold for some time."
    );
    describe_counter!(EVICTED_KEYS, Unit::Count, "Partition keys that memory backends have evicted.");
    describe_counter!(EVICTED_UNITS, Unit::Count, "Quota units in use by evicted partition keys.");
}

/// The metrics of a limiter.
pub(super) struct LimiterMetrics {
    policies: ByName<PolicyMetrics>,
    routes: ByName<RequestMetrics>,
    /// The requests without a matched route.
    unrouted: RequestMetrics,
    /// By the discriminant of the reason.
    unavailable: Vec<Series>,
    duration: Series,
    deny_cache_hits: Series,
    /// By the discriminant of the subject.
    counted: [Series; Counted::NUMBER],
}

/// The metrics of one policy.
struct PolicyMetrics {
    admitted: Series,
    denied: Series,
    denied_from_cache: Series,
    shadow_denied: Series,
    delayed: Series,
    unavailable: Series,
    charged_units: Series,
    near_limit: Series,
}

/// The requests of one route, by the discriminant of the outcome.
struct RequestMetrics([Series; RequestOutcome::NAMES.len()]);

impl LimiterMetrics {
    pub(super) fn new(policies: &[Policy]) -> Self {
        describe_metrics();
        let unavailable =
            |reason: &Reason| Series::new(UNAVAILABLE_CHECKS, vec![label("reason", reason.name())]);
        let metrics = Self {
            policies: ByName::new(policies.iter().map(Policy::name), PolicyMetrics::new, |_| {}),
            routes: ByName::new([], |route| RequestMetrics::new(Some(route)), RequestMetrics::register),
            unrouted: RequestMetrics::new(None),
            unavailable: Reason::ALL.iter().map(unavailable).collect(),
            duration: Series::new(CHECK_DURATION, vec![]),
            deny_cache_hits: Series::new(DENY_CACHE_HITS, vec![]),
            counted: COUNTED.map(|(name, outcome)| Series::new(name, vec![label("outcome", outcome)])),
        };
        // An alert may ask for these. Registered, they are 0 and not absent before their first values.
        drop(counter!(LOST_ROLLBACKS));
        drop((counter!(INTERRUPTED_UNITS), counter!(UNANSWERED_CHECKS), gauge!(WAITING)));
        metrics.policies.known().for_each(PolicyMetrics::register);
        metrics.unrouted.register();
        // Most limiters have no leases.
        let counted = metrics.counted.iter().skip(Counted::Unchecked as usize);
        for counter in counted.chain(&metrics.unavailable).chain([&metrics.deny_cache_hits]) {
            drop(counter.counter());
        }
        metrics
    }

    /// Counts the decision of a check that is not a peek.
    pub(super) fn decision(&self, decision: &Decision, is_near: impl Fn(&Status) -> bool) {
        let is_admitted = decision.is_admitted();
        for status in decision.statuses() {
            self.policies.with(status.policy().name(), |policy| {
                let has_room = status.retry_after().is_zero();
                match (is_admitted, has_room) {
                    (true, true) => {
                        policy.admitted.count(1);
                        // A gate has no quota, and is not charged.
                        policy.charged_units.count(status.quota().map_or(0, |_| status.cost().into()));
                        if is_near(status) {
                            policy.near_limit.count(1);
                        }
                    }
                    // Only a shadow policy denies an admitted check.
                    (true, false) => policy.shadow_denied.count(1),
                    (false, false) if status.is_shadow() => {}
                    (false, false) if decision.is_cached() => policy.denied_from_cache.count(1),
                    (false, false) => policy.denied.count(1),
                    (false, true) => {}
                }
            });
        }
        if decision.is_cached() {
            self.deny_cache_hits.count(1);
        }
    }

    /// Counts the first denial of a request that waits.
    pub(super) fn delayed(&self, decision: &Decision) {
        for status in decision.statuses() {
            if !status.is_shadow() && !status.retry_after().is_zero() {
                self.policies.with(status.policy().name(), |policy| policy.delayed.count(1));
            }
        }
        if decision.is_cached() {
            self.deny_cache_hits.count(1);
        }
    }

    /// Counts a request that is rejected because its wait would be too long.
    pub(super) fn wait_too_long(&self, pairs: &[Pair]) {
        for pair in pairs.iter().filter(|pair| !pair.is_shadow) {
            self.policies.with(pair.policy.name(), |policy| policy.denied.count(1));
        }
    }

    /// Counts a check without a decision.
    pub(super) fn unavailable(&self, pairs: &[Pair], reason: Reason) {
        for pair in pairs {
            self.policies.with(pair.policy.name(), |policy| policy.unavailable.count(1));
        }
        if let Some(counter) = self.unavailable.get(reason as usize) {
            counter.count(1);
        }
    }

    /// Counts a denial of the key with this pseudonym.
    pub(super) fn denied_key(&self, pseudonym: &str) {
        let prefix = pseudonym.get(..PSEUDONYM_DIGITS).unwrap_or(pseudonym);
        Series::new(DENIED_KEYS, vec![label("pseudonym", prefix.to_owned())]).count(1);
    }

    /// Records how long the store took to answer a check. `started` is the instant at which it was asked.
    pub(super) fn answered(&self, started: Instant) {
        self.duration.histogram().record(started.elapsed());
    }

    /// Counts a request of a layer.
    pub(super) fn responded<'a>(&self, outcome: RequestOutcome, route: impl FnOnce() -> Option<&'a str>) {
        match route() {
            Some(route) => self.routes.with(route, |requests| requests.count(outcome)),
            None => self.unrouted.count(outcome),
        }
    }

    pub(super) fn count(&self, what: Counted, number: u64) {
        self.counted[what as usize].count(number);
    }
}

impl PolicyMetrics {
    fn new(policy: SharedString) -> Self {
        let plain = |name| Series::new(name, vec![label("policy", policy.clone())]);
        let decisions = |outcome| {
            Series::new(DECISIONS, vec![label("policy", policy.clone()), label("outcome", outcome)])
        };
        Self {
            admitted: decisions("admitted"),
            denied: decisions("denied"),
            denied_from_cache: decisions("denied_from_cache"),
            shadow_denied: decisions("shadow_denied"),
            delayed: decisions("delayed"),
            unavailable: decisions("unavailable"),
            charged_units: plain(CHARGED_UNITS),
            near_limit: plain(NEAR_LIMIT),
        }
    }

    fn register(&self) {
        let denials =
            [&self.denied, &self.denied_from_cache, &self.shadow_denied, &self.delayed, &self.unavailable];
        for counter in denials.into_iter().chain([&self.admitted, &self.charged_units, &self.near_limit]) {
            drop(counter.counter());
        }
    }
}

impl RequestMetrics {
    fn new(route: Option<SharedString>) -> Self {
        let route = route.map(|route| label("route", route));
        Self(RequestOutcome::NAMES.map(|outcome| {
            Series::new(REQUESTS, [label("outcome", outcome)].into_iter().chain(route.clone()).collect())
        }))
    }

    /// Registers all outcomes. Otherwise, `rate` would miss the first requests of an outage.
    fn register(&self) {
        self.0.iter().for_each(|counter| drop(counter.counter()));
    }

    fn count(&self, outcome: RequestOutcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            counter.count(1);
        }
    }
}

/// A request that waits. Dropping it ends the wait.
pub(crate) struct WaitMetrics {
    began: Instant,
    /// The gauge that counts this request.
    waiting: Gauge,
    outcome: &'static str,
}

impl WaitMetrics {
    pub(super) fn begin() -> Self {
        let waiting = gauge!(WAITING);
        waiting.increment(1.0);
        Self { began: Instant::now(), waiting, outcome: "dropped" }
    }

    /// Ends the wait of a request that is admitted, or else rejected.
    pub(crate) fn end(mut self, is_admitted: bool) {
        self.outcome = if is_admitted { "admitted" } else { "rejected" };
    }
}

impl Drop for WaitMetrics {
    fn drop(&mut self) {
        contain(|| self.waiting.decrement(1.0));
        let duration = Series::new(WAIT_DURATION, vec![label("outcome", self.outcome)]);
        contain(|| duration.histogram().record(self.began.elapsed()));
    }
}

/// The gauge of a circuit breaker. The breakers of one server in several backends add up.
pub(super) struct BreakerMetrics {
    open: Series,
    failures: Series,
    /// The gauge that counts this breaker as open. A recorder that was installed since then counts it from the next failure on.
    counted: Lock<Option<Gauge>>,
}

impl BreakerMetrics {
    pub(super) fn new(server: &str) -> Self {
        let labels = || vec![label("server", SharedString::from_shared(server.into()))];
        Self {
            open: Series::new(BREAKER_OPEN, labels()),
            failures: Series::new(SERVER_FAILURES, labels()),
            counted: Lock::default(),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn register(&self) {
        drop(self.open.gauge());
        drop(self.failures.counter());
    }

    /// Counts a failure.
    pub(super) fn failed(&self) {
        self.failures.count(1);
    }

    /// Counts the breaker as open or closed. `is_open` reads its present state under the lock, so the gauge is right after the last
    /// call, in any order of the calls. An open breaker is counted anew: a recorder may have removed the gauge, which was idle. The recorder
    /// may use the backend, so it is called without the lock.
    pub(super) fn sync(&self, is_open: impl Fn() -> bool) {
        let gauge = is_open().then(|| self.open.gauge());
        let mut counted = self.counted.lock();
        let (before, after) = match (is_open(), &gauge) {
            (false, _) => (counted.take(), None),
            (true, Some(gauge)) => (counted.replace(gauge.clone()), Some(gauge)),
            // It has opened since then. The caller that has opened it counts it.
            (true, None) => return,
        };
        drop(counted);
        if let Some(gauge) = after {
            gauge.increment(1.0);
        }
        if let Some(gauge) = before {
            gauge.decrement(1.0);
        }
    }
}

impl Drop for BreakerMetrics {
    /// A server that has left a cluster must not stay open.
    fn drop(&mut self) {
        contain(|| self.sync(|| false));
    }
}

/// Counts a lost rollback.
#[cfg(feature = "redis")]
pub(super) fn rollback_lost() {
    counter!(LOST_ROLLBACKS).increment(1);
}

#[cfg(feature = "redis")]
pub(super) fn check_unanswered() {
    counter!(UNANSWERED_CHECKS).increment(1);
}

#[cfg(feature = "redis")]
pub(super) fn units_interrupted(units: u64) {
    counter!(INTERRUPTED_UNITS).increment(units);
}

/// Counts an evicted key, with the units that were in use.
pub(crate) fn evicted(units: u64) {
    counter!(EVICTED_KEYS).increment(1);
    counter!(EVICTED_UNITS).increment(units);
}

fn label(name: &'static str, value: impl Into<SharedString>) -> Label {
    Label::new(name, value)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::foreign::hooked_recorder::HookedRecorder;

    #[test]
    fn recorder_of_breaker_may_change_the_breaker() {
        let breaker = Arc::new(BreakerMetrics::new("server"));
        let (read, calls) = (breaker.clone(), Arc::new(AtomicUsize::new(0)));
        let count = calls.clone();
        let recorder = HookedRecorder::new(move |_| {
            assert!(read.counted.try_lock().is_some());
            count.fetch_add(1, Ordering::SeqCst);
        });
        metrics::with_local_recorder(&recorder, || {
            breaker.sync(|| true);
            breaker.sync(|| true);
            breaker.sync(|| false);
        });
        // Each of the first two looks the gauge up and counts anew.
        assert_eq!(calls.load(Ordering::SeqCst), 6);
    }
}
