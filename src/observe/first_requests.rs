//! The first requests of a layer: whether they show a mistake in its configuration.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many requests are counted.
const REQUESTS: u32 = 1_000;

/// Counts the first requests of a layer, and those that a mistake would explain. Each later request costs one load.
pub(crate) struct FirstRequests {
    /// The number of requests, and from bit 16 on, the number of those that a mistake would explain.
    counts: AtomicU32,
    /// How many of the requests show a mistake.
    least: u32,
}

impl FirstRequests {
    /// Creates a counter for a mistake that every request shows.
    pub(crate) fn all() -> Self {
        Self { counts: AtomicU32::new(0), least: REQUESTS }
    }

    /// Creates a counter for a mistake that nine requests in ten show. The others may be health checks.
    pub(crate) fn most() -> Self {
        Self { counts: AtomicU32::new(0), least: REQUESTS / 10 * 9 }
    }

    /// Counts a request. Returns true at most once: when enough of the first requests show the mistake.
    #[inline]
    pub(crate) fn show(&self, shows: impl FnOnce() -> bool) -> bool {
        super::IS_LOGGED && self.requests() < REQUESTS && self.count(shows())
    }

    fn requests(&self) -> u32 {
        self.counts.load(Ordering::Relaxed) & 0xFFFF
    }

    #[cold]
    fn count(&self, shows: bool) -> bool {
        let before = self.counts.fetch_add(1 | u32::from(shows) << 16, Ordering::Relaxed);
        // Requests that run at the same time may exceed the number, and are not judged.
        before & 0xFFFF == REQUESTS - 1 && (before >> 16) + u32::from(shows) >= self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u32; 0] = [];

    /// Returns the numbers of the requests after which a counter reports a mistake.
    fn reported(first: &FirstRequests, shows: impl Fn(u32) -> bool) -> Vec<u32> {
        (1..=3 * REQUESTS).filter(|i| first.show(|| shows(*i))).collect()
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn mistake_is_reported_once_after_enough_requests() {
        assert_eq!(reported(&FirstRequests::all(), |_| true), [REQUESTS]);
        assert_eq!(reported(&FirstRequests::most(), |_| true), [REQUESTS]);
        // One request in ten is another one.
        assert_eq!(reported(&FirstRequests::most(), |i| i % 10 != 0), [REQUESTS]);
    }

    #[test]
    fn mistake_is_not_reported_if_other_requests_refute_it() {
        for other in [1, 500, REQUESTS] {
            assert_eq!(reported(&FirstRequests::all(), |i| i != other), NONE, "{other}");
        }
        assert_eq!(reported(&FirstRequests::most(), |i| i % 10 != 0 && i != 1), NONE);
        // What is shown later does not count.
        assert_eq!(reported(&FirstRequests::all(), |i| i > 1), NONE);
    }

    /// The number of requests must not reach the bits of the other number.
    #[test]
    fn counting_ends_after_first_requests() {
        let first = FirstRequests::all();
        assert_eq!(reported(&first, |_| false), NONE);
        assert!(first.requests() <= REQUESTS, "{} requests are counted", first.requests());
    }
}
