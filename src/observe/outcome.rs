//! The outcomes of the requests of a layer.

/// The outcome of one request of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "only metrics read it"))]
pub(crate) enum RequestOutcome {
    /// The store has admitted it.
    Admitted,
    /// The local fallback has admitted it.
    LocalFallback,
    /// It was admitted without a check.
    Unchecked,
    /// It was exempt from all limits.
    Exempt,
    /// A policy has denied it.
    Denied,
    /// It was rejected, because there was no decision.
    Unavailable,
    /// It was rejected, because it has no key that can be read.
    InvalidKey,
    /// It was rejected, because the server has a mistake.
    Misconfigured,
}

#[cfg(feature = "metrics")]
impl RequestOutcome {
    /// The values of the label, in the order of the variants.
    pub(super) const NAMES: [&'static str; 8] = [
        "admitted",
        "local_fallback",
        "unchecked",
        "exempt",
        "denied",
        "unavailable",
        "invalid_key",
        "misconfigured",
    ];
}
