//! What happens to leased units.

/// What has happened to leased units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeasedUnits {
    /// The store has charged them in advance.
    Charged,
    /// This process has granted them without asking the store.
    Granted,
    /// The store has confirmed their return.
    Returned,
    /// They may be idle until they leave the window.
    Lost,
}

impl LeasedUnits {
    pub(super) const ALL: [Self; 4] = [Self::Charged, Self::Granted, Self::Returned, Self::Lost];

    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only the metrics have labels"))]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Granted => "granted",
            Self::Returned => "returned",
            Self::Lost => "lost",
        }
    }
}
