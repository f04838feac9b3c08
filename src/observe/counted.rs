//! The numbers that a limiter keeps in one table of its counters and of its metrics.

/// The subject of a count. The table of the metrics has the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Leased units that the store has charged in advance.
    UnitsCharged,
    /// Leased units that this process has granted without asking the store.
    UnitsGranted,
    /// Leased units whose return the store has confirmed.
    UnitsReturned,
    /// Leased units that may be idle until they leave the window.
    UnitsLost,
    /// Requests that the outage rule has admitted without a check.
    Unchecked,
    /// Requests that the local fallback has admitted.
    LocalFallback,
    /// Settlements that took effect.
    Settled,
    /// Lost settlements.
    SettlementLost,
}

impl Counted {
    /// The number of variants.
    pub(super) const NUMBER: usize = Self::SettlementLost as usize + 1;
}
