//! Configuration errors, found when a policy, a limiter or a layer is built.

use std::{
    fmt::{Debug, Display},
    ops::RangeInclusive,
    time::Duration,
};

mod backend;

pub use backend::{BackendError, Reason};

/// The error of an invalid configuration. Its text names the value and the valid range.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The name of a policy is empty, too long, or not printable ASCII.
    #[error("policy name {name:?}: it must be 1 to 64 printable ASCII characters (space to `~`)")]
    #[non_exhaustive]
    PolicyName {
        /// The given name.
        name: String,
    },

    /// The quota is zero, so no request could be admitted.
    #[error("policy {name:?}: quota {quota}: it must be 1 to 4294967295 quota units")]
    #[non_exhaustive]
    Quota {
        /// The policy's name.
        name: String,
        /// The given quota.
        quota: u32,
    },

    /// The window is too short or too long.
    #[error("policy {name:?}: window {window:?}: it must be 1 ms to 366 days")]
    #[non_exhaustive]
    Window {
        /// The policy's name.
        name: String,
        /// The given window.
        window: Duration,
    },

    /// The precision of a policy is too small, too large, or not a whole number of microseconds.
    #[error(
        "policy {name:?}: precision {precision:?}: it must be 1 ms to the window of {window:?}, in whole microseconds, with at most {max} buckets in a window"
    )]
    #[non_exhaustive]
    Precision {
        /// The policy's name.
        name: String,
        /// The given precision.
        precision: Duration,
        /// The policy's window.
        window: Duration,
        /// The largest number of buckets in a window.
        max: u64,
    },

    /// The headroom leaves no quota.
    #[error(
        "policy {name:?}: headroom of {percent} percent of {quota} units: it must be 0 to 99 percent and leave at least one unit"
    )]
    #[non_exhaustive]
    Headroom {
        /// The policy's name.
        name: String,
        /// The quota in quota units.
        quota: u32,
        /// The given percentage.
        percent: u32,
    },

    /// A policy with another algorithm than sliding buckets is leased, or the lease has no units.
    #[error(
        "policy {name:?}: lease of {units} units: it must be 1 to 4294967295 quota units, and the algorithm must be sliding buckets"
    )]
    #[non_exhaustive]
    Lease {
        /// The policy's name.
        name: String,
        /// The given units.
        units: u32,
    },

    /// A number or a time is out of range.
    #[error("{setting} {given}: it must be {range}")]
    #[non_exhaustive]
    OutOfRange {
        /// The setting, such as `max_keys` or `deadline`.
        setting: &'static str,
        /// The given value, with its unit.
        given: String,
        /// The valid values, such as `1 to 1048576`.
        range: String,
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

    /// The namespace is empty, too long, or contains a character with a meaning in a key.
    #[error(
        "namespace {namespace:?}: it must be 1 to 64 printable ASCII characters without `{{`, `}}` and space"
    )]
    #[non_exhaustive]
    Namespace {
        /// The given namespace.
        namespace: String,
    },

    /// The name of the region is empty, too long, or not printable ASCII.
    #[error("region {region:?}: it must be 1 to 64 printable ASCII characters (space to `~`)")]
    #[non_exhaustive]
    Region {
        /// The given name.
        region: String,
    },

    /// The layer settles, but the backend cannot change charges.
    #[error("the backend cannot settle: it cannot change charges")]
    CannotSettle,

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
    #[error("header name {name:?}: not a valid HTTP field name")]
    #[non_exhaustive]
    HeaderName {
        /// The given name.
        name: String,
        /// The reason.
        source: http::header::InvalidHeaderName,
    },

    /// The prefix of a NAT64 translator is not a prefix of RFC 6052.
    #[error(
        "NAT64 prefix {prefix:?}: it must be an IPv6 network of /32, /40, /48, /56, /64 or /96 whose bits 64 to 71 are zero, such as \"2001:db8:64::/96\""
    )]
    #[non_exhaustive]
    Nat64Prefix {
        /// The given text.
        prefix: String,
    },

    /// The text is not an IP address or network.
    #[error(
        "network {network:?}: it must be an IP address or a network in CIDR notation, such as \"10.0.0.0/8\""
    )]
    #[non_exhaustive]
    Network {
        /// The given text.
        network: String,
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

    /// The name of a cookie is not a token.
    #[error("cookie name {name:?}: it must be ASCII letters, digits and !#$%&'*+-.^_`|~")]
    #[non_exhaustive]
    CookieName {
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

    /// A constant cost is above a quota, so that the request could never be admitted. If the layer settles,
    /// [`Builder::clamp_estimates`](crate::Builder::clamp_estimates) permits such an estimate.
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

    /// A constant cost names a policy that the layer does not have.
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

    /// The hash secret is too short. The text does not contain it.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error(
        "hash secret of {given} bytes: it must have at least {min} random bytes, for example from `openssl rand -hex 32`"
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
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("{reason}; a Redis URL looks like redis://[user:password@]host[:port][/database]")]
    #[non_exhaustive]
    RedisUrl {
        /// The problem.
        reason: String,
    },

    /// A cluster has no node to connect to.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("missing cluster node: give the host and the port of at least one node")]
    NoClusterNodes,

    /// The TLS settings of a Redis connection are invalid.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("TLS to Redis: {reason}")]
    #[non_exhaustive]
    RedisTls {
        /// The problem, without any key.
        reason: String,
    },
}

impl ConfigError {
    pub(crate) fn out_of_range(setting: &'static str, given: impl Display, range: impl Display) -> Self {
        Self::OutOfRange { setting, given: given.to_string(), range: range.to_string() }
    }

    /// Returns an error unless the value of a setting is in this range, which the text names.
    pub(crate) fn check_range<T: PartialOrd + Debug>(
        setting: &'static str,
        given: T,
        range: RangeInclusive<T>,
        text: impl Display,
    ) -> Result<(), Self> {
        let error = || Self::out_of_range(setting, format_args!("{given:?}"), text);
        if range.contains(&given) { Ok(()) } else { Err(error()) }
    }
}

fn for_policy(policy: &str) -> String {
    if policy.is_empty() { String::new() } else { format!(" for policy {policy:?}") }
}

fn by_requests(requests: &str) -> String {
    if requests.is_empty() { String::new() } else { format!(" of {requests}") }
}
