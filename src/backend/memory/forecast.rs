//! Terms that the log and the calendar windows share: the instant of a pair, and the usage after a charge.

/// The usage after a charge, and the instants at which it falls. The instants are meaningless if the usage is 0.
pub(super) struct Forecast {
    /// In quota units, rounded up.
    pub(super) used: u64,
    /// When the usage falls.
    pub(super) next: u64,
    /// When the usage is 0.
    pub(super) reset: u64,
}

/// Returns the instant of a pair whose last charge was at `last`: it never goes back, so it stays at `last` until the clock has
/// caught up. Returns None if `last` is more than a window ahead: the record is from another clock.
#[inline]
pub(super) fn monotonic_instant(clock: u64, last: u64, window: u64) -> Option<u64> {
    (last <= clock + window).then(|| clock.max(last))
}
