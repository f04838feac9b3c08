//! The clock of a memory backend.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock in microseconds of Unix time.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// Unix time at the start plus a monotonic clock, so it never steps.
    System { unix_micros: u64, start: Instant },
    #[cfg(feature = "test-util")]
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::System { unix_micros: since_epoch.as_micros() as u64, start: Instant::now() }
    }

    #[inline]
    pub(super) fn now_micros(&self) -> u64 {
        match self {
            Self::System { unix_micros, start } => {
                let passed = start.elapsed();
                unix_micros + passed.as_secs() * 1_000_000 + u64::from(passed.subsec_micros())
            }
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => clock.now_micros(),
        }
    }
}

#[cfg(feature = "test-util")]
pub use manual::ManualClock;

#[cfg(feature = "test-util")]
mod manual {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    /// A clock that only a test moves. Clones share one clock.
    ///
    /// It starts at Unix time 1,000,000,000 s. It may be set to any instant below 2^51 microseconds (the year 2041).
    #[derive(Clone, Debug)]
    pub struct ManualClock(Arc<AtomicU64>);

    impl ManualClock {
        /// Returns a clock at Unix time 1,000,000,000 s.
        #[expect(clippy::new_without_default, reason = "a default would not show that it is a new clock")]
        pub fn new() -> Self {
            Self(Arc::new(AtomicU64::new(1_000_000_000_000_000)))
        }

        #[cfg(feature = "redis")]
        pub(crate) fn shared(&self) -> Arc<AtomicU64> {
            self.0.clone()
        }

        /// Returns the time in microseconds.
        pub fn now_micros(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        /// Moves the clock forward.
        pub fn advance(&self, by: Duration) {
            self.0.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
        }

        /// Sets the clock to an instant in microseconds, forward or backward.
        pub fn set_micros(&self, micros: u64) {
            self.0.store(micros, Ordering::SeqCst);
        }
    }
}
