//! The outage rule, as plain data.

use std::num::NonZeroU32;

use crate::error::ConfigError;

/// The outage rule: what happens to a request if the store makes no decision. The layer never presents an outage as a denial.
///
/// | rule | the request | marked by |
/// | --- | --- | --- |
/// | [`FailClosed`](Self::FailClosed), the default | is rejected: 503 over HTTP, `UNAVAILABLE` over gRPC | [`Rejection::Unavailable`](crate::Rejection::Unavailable) |
/// | [`FailOpen`](Self::FailOpen) | is admitted and not counted | [`Unchecked`](super::Unchecked), in the extensions of request and response |
/// | [`LocalFallback`](Self::LocalFallback) | is decided in the memory of this process, by its share of every quota | [`LocalDecision`](super::LocalDecision) in the same places, or [`Rejection::LocalFallbackDenied`](crate::Rejection::LocalFallbackDenied), which is also a 503 |
///
/// No rule applies to an [overload](crate::guide::outages#overload), to an
/// [error of one check](crate::guide::outages#errors-of-one-check), or to a pair with a
/// [known denial](crate::guide::outages#deny-cache-in-an-outage): these requests are rejected, unless all their policies are in
/// [shadow mode](crate::guide::rollout).
///
/// None of them adds `RateLimit` or `Retry-After` fields: neither the remaining quota nor the end of the outage is known.
///
/// Set the rule for a layer with [`RateLimitLayerBuilder::outage`](crate::RateLimitLayerBuilder::outage), and for each request with
/// [`RateLimitLayerBuilder::outage_by`](crate::RateLimitLayerBuilder::outage_by).
///
/// # Why the default is to fail closed
///
/// A limit protects something: a password from being guessed, a bill from growing, a database from being overloaded. If the limit
/// failed open by default, an attacker could disable it by overloading the store. The local fallback cannot be the default,
/// because this crate does not know the number of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutageRule {
    /// Rejects the request.
    #[default]
    FailClosed,
    /// Admits the request uncounted, if the *store* cannot decide. If too many checks are in flight while the store answers others, the
    /// layer rejects the request. Otherwise, a client could disable the limit by many requests at once.
    ///
    /// In a cluster, the charges of a check across slots stay in the slots that have answered, so that their limits still fill.
    ///
    /// If the store cannot decide only this check, the layer rejects the request. This applies to the
    /// [reasons](crate::backend::Reason::is_of_one_check) `CrossSlot`, `Full`, `ForeignValue`, `Unsupported` and
    /// `Misconfigured`. Otherwise, a client could avoid its limit, for example by filling its own log.
    FailOpen,
    /// Decides by this share of every quota, in the memory of this process.
    ///
    /// If the number of processes is right, their local decisions together admit at most the quota in any window. This holds
    /// within the guarantee of the policy's [`Algorithm`](crate::Algorithm). The store and the local memory do not know each
    /// other's charges. Therefore, a window that contains the beginning or the end of an outage may contain twice the quota. If
    /// the store has also lost its data, it may contain three times the quota. A check whose deadline has passed may be charged
    /// in both.
    ///
    /// If the share of a quota is 0, or the cost is above the share, the layer rejects a request with a cost above 0. The store
    /// may admit it after the outage, so the response is a 503 without a wait.
    LocalFallback(Share),
}

/// The part of every quota that this process may grant in an outage: `floor(quota / processes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(NonZeroU32);

impl Share {
    /// Returns an equal share for each of this number of processes, 1 to 2^32-1. Use the largest number that ever runs at one
    /// time, including processes that are being replaced. A larger number grants less than the quota, a smaller one more.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] if the number is 0.
    pub fn among(processes: u32) -> Result<Self, ConfigError> {
        let error =
            || ConfigError::invalid_value("share among", "0 processes", format_args!("1 to {}", u32::MAX));
        NonZeroU32::new(processes).map(Self).ok_or_else(error)
    }

    /// Returns the whole quota, for a single process. With several processes, each would grant the whole quota.
    pub fn whole() -> Self {
        Self(NonZeroU32::MIN)
    }

    /// Returns the number of processes that share a quota.
    pub fn processes(self) -> u32 {
        self.0.get()
    }
}
