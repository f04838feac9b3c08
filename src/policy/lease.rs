//! The lease of a policy.

/// How many units of a partition key a process may lease at a time, for [`Policy::leased`](super::Policy::leased).
///
/// ```
/// use tower_sliding_window::policy::Lease;
///
/// assert_eq!(Lease::up_to(50).units(), 50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    units: u32,
}

impl Lease {
    /// Creates a lease of at most this many quota units in each process, 1 to 2^32-1. The process leases fewer units if it grants
    /// fewer, or if few remain. [`Policy::leased`](super::Policy::leased) validates the number.
    pub const fn up_to(units: u32) -> Self {
        Self { units }
    }

    /// Returns the largest number of leased units that a process holds, in quota units.
    pub const fn units(self) -> u32 {
        self.units
    }
}
