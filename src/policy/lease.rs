//! The lease of a policy.

use super::Properties;

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
    is_ahead: bool,
}

impl Lease {
    /// Creates a lease of at most this many quota units in each process, 1 to 2^32-1. The process leases fewer units if it grants
    /// fewer, or if few remain. [`Policy::leased`](super::Policy::leased) validates the number.
    pub const fn up_to(units: u32) -> Self {
        Self { units, is_ahead: false }
    }

    /// Returns this lease, requested before it is needed: a process with a steady rate asks for units of the next bucket while it grants
    /// those of the present one. So no request waits at the beginning of a bucket. By default, a lease is requested when it is needed.
    ///
    /// The units of a next bucket return up to two precisions late, and not one, and so do all units of the key that are charged
    /// after them in the same bucket. The precision must be at most half the window; [`Policy::leased`](super::Policy::leased)
    /// validates this. The [guide](crate::guide::regions) has the figures for processes that are far from Redis.
    ///
    /// ```
    /// use tower_sliding_window::policy::Lease;
    ///
    /// assert!(Lease::up_to(50).ahead().is_ahead());
    /// ```
    #[must_use]
    pub const fn ahead(self) -> Self {
        Self { is_ahead: true, ..self }
    }

    /// Returns the largest number of leased units that a process holds, in quota units.
    pub const fn units(self) -> u32 {
        self.units
    }

    /// Returns whether units of the next bucket are [requested before they are needed](Self::ahead).
    pub const fn is_ahead(self) -> bool {
        self.is_ahead
    }

    /// Returns whether a policy with these properties can be leased in this way.
    pub(super) fn is_possible(self, properties: &Properties) -> bool {
        let is_precise = properties.next_bucket_micros().is_some() || !self.is_ahead;
        self.units > 0 && properties.bucket_micros.is_some() && is_precise
    }
}
