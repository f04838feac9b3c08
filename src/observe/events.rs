//! The texts and fields of all events. Without the feature `tracing`, each function does nothing.
//!
//! No event contains a partition key, a password, or the URL of a server. A pseudonym of a partition key is a keyed hash.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

#[cfg(feature = "redis")]
use std::fmt;
use std::{error::Error, time::Duration};

#[cfg(feature = "tracing")]
use crate::decision::Wait;
use crate::{
    check::PairRef,
    decision::{Decision, Status},
    error::{BackendError, Reason},
    policy::Policy,
};

// The target is part of the documentation. The default target would be the path of this module.
macro_rules! event {
    ($level:ident, $($event:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_sliding_window", $($event)*);
    };
}

/// Returns the text of the cause of an error.
#[cfg(feature = "tracing")]
fn cause(error: &BackendError) -> Option<String> {
    error.source().map(ToString::to_string)
}

#[cfg(feature = "tracing")]
fn wait_text(wait: Wait) -> String {
    match wait {
        Wait::For(wait) => format!("{wait:?}"),
        Wait::Unknown => "not known".to_owned(),
        Wait::Never => "never".to_owned(),
    }
}

/// Warns that a breaker has opened: now, or so long ago if that was not logged.
pub(super) fn breaker_opened(server: &str, error: &BackendError, open_for: Option<Duration>, unlogged: u64) {
    event!(
        warn,
        server,
        reason = %error.reason(),
        cause = cause(error),
        open_for = open_for.map(tracing::field::debug),
        unlogged,
        "circuit breaker opened: the outage rule applies to the checks of this server",
    );
}

pub(super) fn breaker_closed(server: &str, open_for: Duration) {
    event!(info, server, ?open_for, "circuit breaker closed: the server answers");
}

#[cfg(feature = "redis")]
pub(super) fn server_left(server: &str, open_for: Duration) {
    event!(
        info,
        server,
        ?open_for,
        "circuit breaker closed: the server owns no slots of the cluster any more"
    );
}

pub(super) fn check_failed(server: &str, error: &BackendError, unlogged: u64) {
    event!(
        warn,
        server,
        reason = %error.reason(),
        cause = cause(error),
        unlogged,
        "no rate limit decision: the outage rule applies to some checks of this server",
    );
}

pub(super) fn answers_late(server: &str, problem: &str, unlogged: u64) {
    event!(
        warn,
        server,
        unlogged,
        "overloaded: checks of this server are not answered within their deadline: {problem}",
    );
}

pub(super) fn overloaded(server: &str, max_checks_in_flight: usize, unlogged: u64) {
    event!(
        warn,
        server,
        max_checks_in_flight,
        unlogged,
        "overloaded: too many checks in flight, so this server is not asked for some checks",
    );
}

/// Warns about an error of one check, and states what to do.
pub(super) fn failed_check(
    store: &str,
    policies: &str,
    pseudonym: Option<String>,
    error: &BackendError,
    unlogged: u64,
) {
    let problem = match error.reason() {
        Reason::Full => {
            "a storage bound is reached: checks of new partition keys, or of a full log, get no decision"
        }
        Reason::ForeignValue => {
            "foreign value: this version of the crate has not written what a key in the store contains, so its checks get no decision; \
             delete the key with `Limiter::reset`, that of a gate with `Limiter::unblock`, and that of a policy in flight in the store, by the \
             name that `RedisBackend::key_name` returns"
        }
        Reason::CrossSlot => {
            "keys in different slots: the backend could not split a check, so it gets no decision; check each key on its own"
        }
        Reason::Unsupported => {
            "unsupported check: the backend can only charge, so it makes no decision; use a backend that changes charges"
        }
        _ => "misconfigured check: it gets no decision; correct the mistake in the server",
    };
    event!(
        warn,
        store,
        policies,
        pseudonym,
        reason = %error.reason(),
        cause = cause(error),
        unlogged,
        "{problem}",
    );
}

pub(super) fn local_memory_full(store: &str, unlogged: u64) {
    event!(
        warn,
        store,
        unlogged,
        "the memory of the local fallback is full: checks of new partition keys are rejected",
    );
}

pub(super) fn denied(decision: &Decision, outcome: &str, pseudonym: impl FnOnce() -> Option<String>) {
    // A field is computed only if the event is logged, which it usually is not.
    event!(
        debug,
        policy = decision.longest_wait().map(|status| status.policy().name()),
        cost = decision.longest_wait().map(Status::cost),
        wait = decision.longest_wait().map(|status| tracing::field::display(wait_text(status.retry_after()))),
        cached = decision.is_cached(),
        pseudonym = pseudonym(),
        "{outcome}",
    );
}

pub(super) fn shadow_denied(status: &Status, pseudonym: impl FnOnce() -> Option<String>) {
    event!(
        debug,
        policy = status.policy().name(),
        cost = status.cost(),
        wait = %wait_text(status.retry_after()),
        pseudonym = pseudonym(),
        "shadow policy would have denied an admitted check",
    );
}

pub(super) fn cost_above_quota(pair: PairRef<'_>, unlogged: u64) {
    let problem = if pair.is_shadow {
        "the cost of a request is above the quota of a shadow policy: the policy would never admit it"
    } else {
        "the cost of a request is above the quota: it can never be admitted"
    };
    event!(
        warn,
        policy = pair.policy.name(),
        cost = pair.cost,
        quota = pair.policy.quota_units(),
        unlogged,
        "{problem}",
    );
}

#[cfg(any(feature = "calendar", feature = "redis"))]
pub(super) fn earlier_period(policy: &Policy, unlogged: u64) {
    event!(
        warn,
        policy = policy.name(),
        unlogged,
        "the calendar period begins earlier than the one that the store counts, which goes on: the zones, anchors or time zone data of processes differ, or have changed",
    );
}

pub(super) fn unknown_policy(name: &str) {
    event!(warn, policy = name, "unknown policy: an amount names a policy that the check does not have");
}

pub(super) fn limits_nothing(store: &str, policies: &str) {
    event!(
        warn,
        store,
        policies,
        "a layer limits nothing: each of its first 1,000 requests was exempt or cost 0; if this is not intended, see \
         `guide::limits_nothing`",
    );
}

pub(super) fn problem_of_table(store: &str, problem: &dyn Error) {
    event!(warn, store, %problem, "a tier of a policy table may become full: then its requests get no decision");
}

pub(super) fn cost_without_policy(store: &str, problem: &dyn Error) {
    event!(
        warn,
        store,
        %problem,
        "a cost names a policy that no tier of the policy tables has, so it has no effect; another policy costs 1 unit"
    );
}

pub(super) fn unlisted_name(store: &str, default: &str) {
    event!(
        warn,
        store,
        default,
        "unknown tier: a request has a name that is not in the policy table, so the default of the table applies; if the table lists only \
         exceptions from its default, call `PolicyTable::lists_exceptions`",
    );
}

pub(super) fn peer_is_proxy(store: &str, policies: &str) {
    event!(
        warn,
        store,
        policies,
        "the peer is a proxy: a layer counts by the address of the peer, but most of its first 1,000 requests have the header \
         X-Forwarded-For or Forwarded, so all clients of a proxy share one key; use `key::client_ip().behind(..)`",
    );
}

pub(super) fn misconfigured(error: &dyn Error, unlogged: u64) {
    event!(warn, %error, unlogged, "misconfigured rate limit: the request is rejected");
}

pub(super) fn extension_not_found(missing: &str, requests: u32) {
    event!(
        warn,
        missing,
        requests,
        "missing rate limit key: none of the first requests has this extension, or all of its values are empty; the layer that inserts \
         it must be outside the rate limit layer, such as `.layer(limits).layer(auth)` in axum",
    );
}

#[cfg(feature = "axum")]
pub(super) fn missing_value(error: &dyn Error, unlogged: u64) {
    event!(warn, %error, unlogged, "a handler needs what its request does not have: the response is a 500");
}

pub(super) fn misconfigured_shadow(error: &dyn Error, unlogged: u64) {
    event!(warn, %error, unlogged, "misconfigured rate limit in shadow mode: the request is not counted");
}

pub(super) fn not_learned(error: &BackendError, unlogged: u64) {
    event!(warn, unlogged, %error, cause = cause(error), "the answer of an API was not learned");
}

pub(super) fn settlement_lost(lost: u64, error: &BackendError, unlogged: u64) {
    event!(warn, lost, unlogged, %error, cause = cause(error), "lost settlement: the charge stands");
}

#[cfg(feature = "redis")]
pub(super) fn interrupted_units(units: u64, interrupted: u64, unlogged: u64) {
    event!(
        warn,
        units,
        interrupted,
        unlogged,
        "interrupted units in flight: the store has lost them, or this process was stopped, so more than the quota may run",
    );
}

#[cfg(feature = "redis")]
pub(super) fn lost_rollback(lost: u64, error: &BackendError, unlogged: u64) {
    event!(
        warn,
        lost,
        unlogged,
        %error,
        cause = cause(error),
        "lost rollback: charges of a check that was not admitted stand",
    );
}

/// Warns that the Redis at this address evicts keys when its memory is full.
#[cfg(feature = "redis")]
pub(crate) fn evicts(address: &str, policy: &str) {
    event!(
        warn,
        address,
        policy,
        "Redis evicts keys when its memory is full, and evicted limits start from zero: set maxmemory-policy noeviction",
    );
}

#[cfg(feature = "redis")]
pub(super) fn cluster_node(server: &str, unlogged: u64) {
    event!(
        warn,
        server,
        unlogged,
        "the server is a node of a cluster, so checks of other nodes get no decision: use RedisServers::cluster",
    );
}

/// Warns about a problem of a store, which does not prevent the start of the service.
#[cfg(feature = "redis")]
pub(crate) fn problem_at_start(problem: &dyn fmt::Display) {
    event!(warn, "{problem}");
}

pub(super) fn conflicting_policies(earlier: &Policy, new: &Policy) {
    event!(
        warn,
        policy = new.name(),
        ?earlier,
        ?new,
        "conflicting policies: same name and namespace, different quota, window or algorithm",
    );
}

pub(super) fn dropped_again(store: &str, dropped: u32) {
    event!(
        warn,
        store,
        dropped,
        "rate limiters are built and dropped again: a layer that is built for each request makes its own connection and \
         forgets denials; build one layer, and clone it",
    );
}

pub(super) fn charged_twice(namespace: &str, policy: &Policy) {
    event!(
        warn,
        policy = policy.name(),
        namespace,
        "charged twice: two nested layers charge the same partition key for the same policy; remove one of them, or give the \
         policies different names",
    );
}
