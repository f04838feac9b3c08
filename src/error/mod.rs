//! Configuration errors, found when a policy, a limiter or a layer is built.

use std::{
    fmt::{self, Debug, Display},
    ops::RangeInclusive,
};

mod backend;

pub use backend::{BackendError, Reason};

/// The error of an invalid configuration. Its text names the value and the valid range. `Debug` writes the same text as `Display`, so
/// that a `main` that returns the error prints what is wrong.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The value of a setting is invalid: a number or a time is out of range, or a text does not have the required form.
    #[error("{setting} {given}: it must be {valid}")]
    #[non_exhaustive]
    InvalidValue {
        /// The setting, such as `max_keys` or `deadline`.
        setting: &'static str,
        /// The given value, with its unit. A text is in quotation marks.
        given: String,
        /// The valid values, such as `1 to 1048576`.
        valid: String,
    },

    /// The value of a setting of a policy is invalid.
    #[error("policy {name:?}: {setting} {given}: it must be {valid}")]
    #[non_exhaustive]
    InvalidPolicy {
        /// The policy's name.
        name: String,
        /// The setting, such as `quota` or `window`.
        setting: &'static str,
        /// The given value, with its unit.
        given: String,
        /// The valid values, such as `1 ms to 366 days`.
        valid: String,
    },

    /// A layer has no partition key.
    #[error("missing partition key: set it with `.key(..)`, `.key_by(..)` or `.plan_by(..)`")]
    NoKey,

    /// `plan_by` replaces another part of the layer that was also set.
    #[error("`.{method}(..)` has no effect together with `.plan_by(..)`: remove one of them")]
    #[non_exhaustive]
    PlanAndPart {
        /// The method that would have no effect.
        method: &'static str,
    },

    /// A closure builds the responses of rejected requests, and `answer::Grpc` answers all of them.
    #[error(
        "`.rejection(..)` has no effect together with `.answer(Grpc)`: remove one of them; for HTTP and gRPC on one port, use `HttpOrGrpc`"
    )]
    RejectionOverGrpc,

    /// A layer over a shared limiter changes a setting of the limiter.
    #[error("`.{method}(..)` has no effect on a shared limiter: set it with `Limiter::builder(..)`")]
    #[non_exhaustive]
    SharedLimiter {
        /// The method that would have no effect.
        method: &'static str,
    },

    /// A further limit of a layer has no policy.
    #[error("a further limit has no policy: write `limit(key).policy(Policy::new(..)?)`")]
    LimitWithoutPolicy,

    /// A limiter has no policy.
    #[error("no policy: a limiter needs 1 to {max} policies; add one with `.policy(Policy::new(..)?)`")]
    #[non_exhaustive]
    NoPolicies {
        /// The largest number of policies.
        max: usize,
    },

    /// There are more policies than one check can contain.
    #[error("{given} policies: a limiter needs 1 to {max} policies")]
    #[non_exhaustive]
    TooManyPolicies {
        /// The given number of policies.
        given: usize,
        /// The largest number of policies.
        max: usize,
    },

    /// Two policies of one limiter have the same name.
    #[error("policy {name:?} occurs twice: the policies of a limiter need different names")]
    #[non_exhaustive]
    DuplicatePolicy {
        /// The name that was given twice.
        name: String,
    },

    /// A tier of a [`PolicyTable`](crate::PolicyTable) does not suit a layer that uses the table.
    #[error("{}: {error}", tier(.name))]
    #[non_exhaustive]
    InvalidTier {
        /// The name of the tier. `None` for the default tier.
        name: Option<String>,
        /// The problem.
        error: Box<Self>,
    },

    /// The layer settles, but the backend cannot change charges.
    #[error("the backend cannot settle: it cannot change charges")]
    CannotSettle,

    /// A policy is in flight, but the backend holds no units.
    #[error("policy {policy:?}: the backend holds no units of policies in flight")]
    #[non_exhaustive]
    CannotHold {
        /// The name of the policy.
        policy: String,
    },

    /// A policy is in flight, but the layer keeps the type of a body, and does not see its end.
    #[error(
        "policy {policy:?} in flight: `same_body` does not see the end of a body; use the layer without it"
    )]
    #[non_exhaustive]
    SameBody {
        /// The name of the policy.
        policy: String,
    },

    /// The number of pairs of a check is out of range.
    #[error("check of {given} pairs: it must have 1 to {max} pairs of a partition key and a policy")]
    #[non_exhaustive]
    Pairs {
        /// The given number of pairs.
        given: usize,
        /// The largest number of pairs.
        max: usize,
    },

    /// A check contains the same partition key and policy twice.
    #[error("policy {policy:?} occurs twice for one partition key: the pairs of a check must differ")]
    #[non_exhaustive]
    DuplicatePair {
        /// The name of the policy.
        policy: String,
    },

    /// The header name is invalid.
    #[error(
        "header name {name:?}: it must be an HTTP field name: one or more letters, digits and !#$%&'*+-.^_`|~"
    )]
    #[non_exhaustive]
    HeaderName {
        /// The given name.
        name: String,
        /// The reason.
        source: http::header::InvalidHeaderName,
    },

    /// The trusted proxies of [`client_ip`](crate::key::client_ip) are invalid.
    #[error("trusted proxies: {reason}")]
    #[non_exhaustive]
    TrustedProxies {
        /// The problem.
        reason: String,
    },

    /// The header contains the address that a proxy reports, and a client can write it.
    #[error(
        "header {name:?} as a key: a client can write any address into it; use `key::client_ip().behind(..)`, which states the trusted proxies"
    )]
    #[non_exhaustive]
    ForwardedHeader {
        /// The given name.
        name: String,
    },

    /// A route does not have the syntax of axum 0.8, lacks a parameter, has two costs, or conflicts with another route.
    #[error("route {route:?}: {reason}")]
    #[non_exhaustive]
    InvalidRoute {
        /// The given route.
        route: String,
        /// The problem.
        reason: String,
    },

    /// A constant cost is above a quota, so that the request could never be admitted. A number is the cost for every policy of its
    /// limit, also for one in flight: for one of them, use [`Costs::policy`](crate::Costs::policy). If the layer settles,
    /// [`RateLimitLayerBuilder::clamp_estimates`](crate::RateLimitLayerBuilder::clamp_estimates) permits such an estimate.
    #[error("cost {cost}{}: it must be 0 to {quota}, the quota of policy {policy:?}", by_requests(.requests))]
    #[non_exhaustive]
    CostAboveQuota {
        /// The requests that have this cost, for example `GET /search`. Empty for all requests.
        requests: String,
        /// The name of the policy.
        policy: String,
        /// The given cost in quota units.
        cost: u32,
        /// The quota in quota units.
        quota: u32,
    },

    /// A layer that settles has a constant cost of 0, so that a policy would never deny a request.
    #[error(
        "cost 0{} in a layer that settles: an estimate of 0 units is always admitted; it must be at least 1, such as what a request usually uses",
        for_policy(.policy)
    )]
    #[non_exhaustive]
    ZeroEstimate {
        /// The name of the policy. Empty for all policies that are chosen for each request.
        policy: String,
    },

    /// A constant cost allows more charges in a window than a sliding log can hold. Without this error, such requests would
    /// get a 503 as soon as the log is [full](crate::backend::Reason::Full).
    #[error(
        "cost {cost}{}: the quota of {quota} of policy {policy:?} allows {} charges in a window, and a sliding log holds {max}; use `Algorithm::SlidingBuckets`, or a quota of at most {}",
        by_requests(.requests), .quota / .cost, u64::from(*.cost) * u64::from(*.max)
    )]
    #[non_exhaustive]
    TooManyCharges {
        /// The requests that have this cost, for example `GET /search`. Empty for all requests.
        requests: String,
        /// The name of the policy.
        policy: String,
        /// The given cost in quota units, at least 1.
        cost: u32,
        /// The quota in quota units.
        quota: u32,
        /// The largest number of charges in a log.
        max: u32,
    },

    /// A constant cost names a policy that the layer does not have. If the layer chooses policies from tables, this is a warning, and no
    /// error: see [`PolicyTable`](crate::PolicyTable#changes-that-do-not-suit-a-layer).
    #[error("cost for policy {name:?}{}: no such policy; the policies are {known:?}", by_requests(.requests))]
    #[non_exhaustive]
    CostWithoutPolicy {
        /// The requests that have this cost, for example `GET /search`. Empty for all requests.
        requests: String,
        /// The name that is not known.
        name: String,
        /// The names of the policies.
        known: Vec<String>,
    },

    /// The secret of hashed keys or of pseudonyms is too short. The text does not contain it.
    #[error(
        "secret of {given} bytes: it must have at least {min} random bytes, for example from `openssl rand -hex 32`"
    )]
    #[non_exhaustive]
    HashSecret {
        /// The length that was given, in bytes.
        given: usize,
        /// The smallest length, in bytes.
        min: usize,
    },

    /// The URL of a Redis server cannot be parsed. The text does not contain it, because it may contain a password.
    #[cfg(feature = "redis")]
    #[error("{reason}; a Redis URL looks like redis://[user:password@]host[:port][/database]")]
    #[non_exhaustive]
    RedisUrl {
        /// The problem.
        reason: String,
    },

    /// A cluster has no node to connect to.
    #[cfg(feature = "redis")]
    #[error("missing cluster node: give the host and the port of at least one node")]
    NoClusterNodes,

    /// The TLS settings of a Redis connection are invalid.
    #[cfg(feature = "redis")]
    #[error("TLS to Redis: {reason}")]
    #[non_exhaustive]
    RedisTls {
        /// The problem, without any key.
        reason: String,
    },
}

impl Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl ConfigError {
    pub(crate) fn invalid_value(setting: &'static str, given: impl Display, valid: impl Display) -> Self {
        Self::InvalidValue { setting, given: given.to_string(), valid: valid.to_string() }
    }

    /// Returns the error of a text, which it quotes.
    pub(crate) fn invalid_text(setting: &'static str, given: &str, valid: &str) -> Self {
        Self::invalid_value(setting, format_args!("{given:?}"), valid)
    }

    pub(crate) fn invalid_policy(
        name: &str,
        setting: &'static str,
        given: impl Display,
        valid: impl Display,
    ) -> Self {
        let (given, valid) = (given.to_string(), valid.to_string());
        Self::InvalidPolicy { name: name.to_owned(), setting, given, valid }
    }

    /// Returns an error unless the value of a setting is in this range, which `valid` names.
    pub(crate) fn check_range<T: PartialOrd + Debug>(
        setting: &'static str,
        given: T,
        range: RangeInclusive<T>,
        valid: impl Display,
    ) -> Result<(), Self> {
        let error = || Self::invalid_value(setting, format_args!("{given:?}"), valid);
        if range.contains(&given) { Ok(()) } else { Err(error()) }
    }

    /// Returns an error unless a name is 1 to 64 printable ASCII characters.
    pub(crate) fn check_name(setting: &'static str, name: &str) -> Result<(), Self> {
        let is_printable = name.bytes().all(|b| (b' '..=b'~').contains(&b));
        if is_printable && (1..=64).contains(&name.len()) {
            return Ok(());
        }
        Err(Self::invalid_text(setting, name, "1 to 64 printable ASCII characters (space to `~`)"))
    }
}

fn tier(name: &Option<String>) -> String {
    name.as_ref().map_or_else(|| "default tier".to_owned(), |name| format!("tier {name:?}"))
}

fn for_policy(policy: &str) -> String {
    if policy.is_empty() { String::new() } else { format!(" for policy {policy:?}") }
}

fn by_requests(requests: &str) -> String {
    if requests.is_empty() { String::new() } else { format!(" of {requests}") }
}
