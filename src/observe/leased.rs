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
    /// The names, in the order of the variants.
    pub(super) const NAMES: [&'static str; 4] = ["charged", "granted", "returned", "lost"];
}
