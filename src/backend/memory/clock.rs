//! The clock of a memory backend.

use std::time::{SystemTime, UNIX_EPOCH};

/// A clock in microseconds of Unix time.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// A monotonic clock plus this, so that it showed Unix time at the start. It never steps.
    System { ahead: u64 },
    #[cfg(feature = "test-util")]
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::System { ahead: (since_epoch.as_micros() as u64).wrapping_sub(monotonic_micros()) }
    }

    #[inline]
    pub(super) fn now_micros(&self) -> u64 {
        match self {
            Self::System { ahead } => monotonic_micros().wrapping_add(*ahead),
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => clock.now_micros(),
        }
    }
}

/// Returns the microseconds since an arbitrary instant. Reads the clock of [`Instant`](std::time::Instant) directly, in half as many
/// instructions.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn monotonic_micros() -> u64 {
    use rustix::time::{ClockId, clock_gettime};

    let since_start = clock_gettime(ClockId::Monotonic);
    since_start.tv_sec as u64 * 1_000_000 + since_start.tv_nsec as u64 / 1_000
}

/// Returns the microseconds since an arbitrary instant.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn monotonic_micros() -> u64 {
    use std::{sync::LazyLock, time::Instant};

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_micros() as u64
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
