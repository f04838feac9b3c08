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
    /// All outcomes, in the order of their discriminants.
    pub(super) const ALL: [Self; 8] = [
        Self::Admitted,
        Self::LocalFallback,
        Self::Unchecked,
        Self::Exempt,
        Self::Denied,
        Self::Unavailable,
        Self::InvalidKey,
        Self::Misconfigured,
    ];

    /// Returns the value of the label.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::LocalFallback => "local_fallback",
            Self::Unchecked => "unchecked",
            Self::Exempt => "exempt",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::InvalidKey => "invalid_key",
            Self::Misconfigured => "misconfigured",
        }
    }
}
