//! The local clock of leases: it also counts the time that the machine was suspended.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::LocalMicros;

/// A change of the suspended time by less than this is the time between two readings. No machine is suspended for so short a time.
const NOISE: u64 = 2_000;

/// Returns the time that the machine was suspended, in microseconds, from an arbitrary origin.
type Suspended = Box<dyn Fn() -> LocalMicros + Send + Sync>;

/// For this time after a reading of the suspended time, it is not read again. To suspend a machine, the kernel needs longer than this to
/// stop all processes, and the clock of [`Instant`] counts that time.
const FRESH: LocalMicros = 100;

/// A monotonic clock that counts suspended time.
///
/// On Linux, the clock of [`Instant`] stops while the machine is suspended, and the server's clock does not. The clock is that of
/// tokio plus the suspended time, so a test that pauses tokio's clock controls this one.
pub(super) struct LocalClock {
    start: Instant,
    suspended: Suspended,
    /// The suspended time as last counted.
    counted: AtomicU64,
    /// When it was last counted, without the suspended time.
    counted_at: AtomicU64,
}

impl LocalClock {
    pub(super) fn new() -> Self {
        Self::with(Box::new(suspended))
    }

    fn with(suspended: Suspended) -> Self {
        // As below: a pause at the start must not hide suspended time.
        let counted = AtomicU64::new(suspended().min(suspended()).min(suspended()));
        Self { start: Instant::now(), suspended, counted, counted_at: AtomicU64::new(0) }
    }

    /// Returns the time since an arbitrary origin, in microseconds. It never goes back.
    pub(super) fn now(&self) -> LocalMicros {
        let elapsed = self.start.elapsed().as_micros() as LocalMicros;
        let suspended = if elapsed < self.counted_at.load(Ordering::Acquire) + FRESH {
            self.counted.load(Ordering::Relaxed)
        } else {
            let suspended = self.count_suspended();
            // The reading is at this instant or later.
            self.counted_at.fetch_max(elapsed, Ordering::Release);
            suspended
        };
        elapsed + suspended
    }

    fn count_suspended(&self) -> LocalMicros {
        let counted = self.counted.load(Ordering::Relaxed);
        if (self.suspended)() < counted + NOISE {
            return counted;
        }
        // A pause between two readings of a clock seems to be suspended time. A second and a third attempt have no such pause.
        let again = (self.suspended)().min((self.suspended)());
        if again < counted + NOISE {
            return counted;
        }
        self.counted.fetch_max(again, Ordering::Relaxed).max(again)
    }
}

/// Returns the difference of a clock that counts suspended time and one that does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn suspended() -> LocalMicros {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let micros = |time: Timespec| (time.tv_sec as u64) * 1_000_000 + time.tv_nsec as u64 / 1_000;
    let monotonic = micros(clock_gettime(ClockId::Monotonic));
    micros(clock_gettime(ClockId::Boottime)).saturating_sub(monotonic)
}

/// On Windows, the monotonic clock counts suspended time. On the other systems, a suspended machine must not hold leases.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn suspended() -> LocalMicros {
    0
}

#[cfg(test)]
impl LocalClock {
    /// Returns a clock whose suspended time is that of the test.
    pub(super) fn suspended_by(suspended: &std::sync::Arc<AtomicU64>) -> Self {
        let suspended = suspended.clone();
        Self::with(Box::new(move || suspended.load(Ordering::SeqCst)))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_counts_suspended_time() {
        let suspended = Arc::new(AtomicU64::new(5_000_000));
        let clock = LocalClock::suspended_by(&suspended);
        assert_eq!(clock.now(), 5_000_000);
        advance(Duration::from_millis(3)).await;
        assert_eq!(clock.now(), 5_003_000);
        suspended.fetch_add(60_000_000, Ordering::SeqCst);
        advance(Duration::from_micros(FRESH)).await;
        assert_eq!(clock.now(), 65_003_100);
        suspended.fetch_add(NOISE - 1, Ordering::SeqCst);
        advance(Duration::from_micros(FRESH)).await;
        assert_eq!(clock.now(), 65_003_200, "the time between two readings does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn fresh_reading_is_not_repeated() {
        let readings = Arc::new(AtomicU64::new(0));
        let reading = {
            let readings = readings.clone();
            move || {
                readings.fetch_add(1, Ordering::SeqCst);
                0
            }
        };
        let clock = LocalClock::with(Box::new(reading));
        let before = readings.load(Ordering::SeqCst);
        for _ in 0..10 {
            advance(Duration::from_micros(FRESH / 2)).await;
            clock.now();
        }
        assert_eq!(readings.load(Ordering::SeqCst) - before, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn pause_between_readings_is_not_suspended_time() {
        let (readings, is_interrupted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let reading = {
            let (readings, is_interrupted) = (readings.clone(), is_interrupted.clone());
            // The reading of this number is interrupted for 10 ms.
            move || {
                let number = readings.fetch_add(1, Ordering::SeqCst);
                if number == is_interrupted.load(Ordering::SeqCst) { 10_000 } else { 7 }
            }
        };
        is_interrupted.store(u64::MAX, Ordering::SeqCst);
        let clock = LocalClock::with(Box::new(reading));
        is_interrupted.store(readings.load(Ordering::SeqCst), Ordering::SeqCst);
        advance(Duration::from_micros(FRESH)).await;
        assert_eq!((clock.now(), clock.now()), (107, 107));
    }

    #[tokio::test(start_paused = true)]
    async fn pause_at_start_hides_no_suspended_time() {
        let (suspended, readings) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let reading = {
            let suspended = suspended.clone();
            // The first reading is interrupted for 50 ms.
            move || {
                let pause = if readings.fetch_add(1, Ordering::SeqCst) == 0 { 50_000 } else { 0 };
                suspended.load(Ordering::SeqCst) + pause
            }
        };
        let clock = LocalClock::with(Box::new(reading));
        let start = clock.now();
        suspended.store(40_000, Ordering::SeqCst);
        advance(Duration::from_micros(FRESH)).await;
        assert_eq!(clock.now() - start, 40_100);
    }

    /// The clock of the operating system never goes back, and it stands still while that of tokio is paused.
    #[tokio::test(start_paused = true)]
    async fn paused_clock_of_tokio_pauses_local_clock() {
        let clock = LocalClock::new();
        let start = clock.now();
        advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now() - start, 1_000_000);
    }
}
