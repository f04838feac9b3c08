//! What can be wrong with a configuration, found when it is built.
//!
//! Nothing here happens per request: a limit that was built can be asked.

use std::time::Duration;

/// A configuration that cannot be built. The text names the value that was given and what is allowed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The name of a policy is empty, too long, or not printable ASCII.
    #[error("policy name {name:?}: it must be 1 to 64 printable ASCII characters (space to `~`)")]
    PolicyName {
        /// The name that was given.
        name: String,
    },

    /// A quota of zero would refuse everything, always.
    #[error("policy {name:?}: quota {quota}: it must be 1 to 4294967295 quota units")]
    Quota {
        /// The policy's name.
        name: String,
        /// The quota that was given.
        quota: u32,
    },

    /// The window is too short, too long, or not a whole number of microseconds.
    #[error("policy {name:?}: window {window:?}: it must be 1 ms to 366 days, in whole microseconds")]
    Window {
        /// The policy's name.
        name: String,
        /// The window that was given.
        window: Duration,
    },

    /// The buckets of a policy are too narrow, too wide, or not a whole number of microseconds.
    #[error(
        "policy {name:?}: precision {precision:?}: it must be 1 ms to the window of {window:?}, in whole microseconds, with at most {max} buckets in a window"
    )]
    Precision {
        /// The policy's name.
        name: String,
        /// The precision that was given.
        precision: Duration,
        /// The policy's window.
        window: Duration,
        /// The largest number of buckets in a window.
        max: u64,
    },

    /// What would be kept in reserve leaves nothing.
    #[error(
        "policy {name:?}: headroom of {percent} percent of {quota} units: it must be 0 to 99 percent and leave at least one unit"
    )]
    Headroom {
        /// The policy's name.
        name: String,
        /// The quota in quota units.
        quota: u32,
        /// The percentage that was given.
        percent: u32,
    },

    /// A layer has no partition key.
    #[error("no partition key: set whose usage is counted with `.key(..)`, `.key_by(..)` or `.plan_by(..)`")]
    MissingKey,

    /// `plan_by` replaces another part of the layer that was also set.
    #[error("`.plan_by(..)` replaces `.{method}(..)`: set only one of them")]
    PlanAndPart {
        /// The method that would have no effect.
        method: &'static str,
    },

    /// A layer over a shared limiter changes a setting of the limiter.
    #[error("`.{method}(..)` has no effect on a shared limiter: set it with `Limiter::builder(..)`")]
    SharedLimiter {
        /// The method that would have no effect.
        method: &'static str,
    },

    /// A limiter without a policy limits nothing.
    #[error("no policy: a limiter needs 1 to {max} policies; add one with `.policy(Policy::new(..)?)`")]
    NoPolicies {
        /// The largest number of policies.
        max: usize,
    },

    /// More policies than one check can hold.
    #[error("{given} policies: a limiter needs 1 to {max} policies")]
    TooManyPolicies {
        /// The number of policies that was given.
        given: usize,
        /// The largest number of policies.
        max: usize,
    },

    /// Two policies of one limiter have the same name, and clients could not tell them apart.
    #[error("policy {name:?} is there twice: the policies of a limiter need different names")]
    DuplicatePolicy {
        /// The name that was given twice.
        name: String,
    },

    /// The namespace is empty, too long, or holds a character that has a meaning in a key.
    #[error(
        "namespace {namespace:?}: it must be 1 to 64 printable ASCII characters without `{{`, `}}` and space"
    )]
    Namespace {
        /// The namespace that was given.
        namespace: String,
    },

    /// The deadline of a check is zero or so long that it is none.
    #[error("deadline {deadline:?}: it must be 1 ms to 60 s")]
    Deadline {
        /// The deadline that was given.
        deadline: Duration,
    },

    /// The number of checks that may be under way is out of range.
    #[error("at most {given} checks under way: the bound must be 1 to {max}")]
    MaxInFlight {
        /// The bound that was given.
        given: usize,
        /// The largest bound.
        max: usize,
    },

    /// The number of failures that open the breaker is out of range.
    #[error(
        "a breaker that opens after {given} failures: it must be 1 to {max}; `.breaker(None)` goes without one"
    )]
    BreakerFailures {
        /// The number that was given.
        given: u32,
        /// The largest number.
        max: u32,
    },

    /// The breaker is never open, or so long that a store that is back is not noticed.
    #[error("a breaker that is open for {open_for:?}: it must be 1 ms to 1 h")]
    BreakerOpenFor {
        /// The time that was given.
        open_for: Duration,
    },

    /// Denials are remembered for no time, or for so long that a change elsewhere is not noticed.
    #[error(
        "denials that are remembered for {max_age:?}: it must be 1 ms to 60 s; `.deny_cache(None)` remembers none"
    )]
    DenyCacheMaxAge {
        /// The age that was given.
        max_age: Duration,
    },

    /// The bound on the denials that are remembered is out of range.
    #[error("at most {given} denials that are remembered: the bound must be 1 to {max}")]
    DenyCacheMaxEntries {
        /// The bound that was given.
        given: usize,
        /// The largest bound.
        max: usize,
    },

    /// A quota cannot be shared among nobody.
    #[error("a share among {processes} processes: it must be 1 to 4294967295")]
    Share {
        /// The number that was given.
        processes: u32,
    },

    /// The number of settlements that may wait is out of range.
    #[error("a queue of {given} settlements: it must be 1 to {max}")]
    SettlementQueue {
        /// The number that was given.
        given: usize,
        /// The largest number.
        max: usize,
    },

    /// What is to be settled cannot be: the backend can charge and nothing else.
    #[error("this backend cannot settle: it can charge, and cannot change a charge afterwards")]
    CannotSettle,

    /// A check must hold at least one pair and at most eight, each of them once.
    #[error("a check of {given} pairs: it must hold 1 to {max} pairs of a partition key and a policy")]
    Pairs {
        /// The number of pairs that was given.
        given: usize,
        /// The largest number of pairs.
        max: usize,
    },

    /// The same partition key and policy twice in one check.
    #[error("policy {policy:?} is there twice for one partition key: the pairs of a check must differ")]
    DuplicatePair {
        /// The name of the policy.
        policy: String,
    },

    /// No HTTP header can have this name.
    #[error("header name {name:?}: it is not a valid HTTP field name")]
    HeaderName {
        /// The name that was given.
        name: String,
        /// Why it is not valid.
        source: http::header::InvalidHeaderName,
    },

    /// The prefix by which IPv6 addresses are grouped is out of range.
    #[error("IPv6 prefix /{prefix}: it must be /1 to /128")]
    Ipv6Prefix {
        /// The prefix that was given.
        prefix: u8,
    },

    /// A route that cannot be matched, or that meets another one.
    #[error("route {route:?}: {source}")]
    Route {
        /// The route that was given.
        route: String,
        /// Why it cannot be added.
        source: matchit::InsertError,
    },

    /// The bound on the partition keys of a memory backend is out of range.
    #[error("at most {given} partition keys: the bound must be 1 to {max}")]
    MaxKeys {
        /// The bound that was given.
        given: usize,
        /// The largest bound.
        max: usize,
    },

    /// The secret of a hash is so short that it could be guessed. The text does not repeat it.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error(
        "a hash secret of {given} bytes: it must be at least {min} bytes, made at random, as `openssl rand -hex 32` makes it"
    )]
    HashSecret {
        /// The length that was given, in bytes.
        given: usize,
        /// The smallest length, in bytes.
        min: usize,
    },

    /// The address of a Redis server does not parse. The text does not repeat it: it may hold a password.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("{reason}; a Redis URL looks like redis://[user:password@]host[:port][/database]")]
    RedisUrl {
        /// What is wrong with it.
        reason: String,
    },

    /// A connection to Redis cannot be encrypted as it is asked for.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("TLS to Redis: {reason}")]
    RedisTls {
        /// What is wrong. No key is repeated.
        reason: String,
    },
}
