//! The memory backend: exact decisions in this process.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{Backend, BackendError},
    check::{Check, Refund},
    decision::Decision,
    error::ConfigError,
};

mod clock;
mod forecast;
mod log;
mod shard;
mod state;
mod usage;
mod windows;

use clock::Clock;
#[cfg(feature = "test-util")]
pub use clock::ManualClock;
use state::State;

/// A backend in the memory of this process: exact, bounded, and without a background task.
///
/// Clones share their state. Each check removes a few idle partition keys. If the number of keys has reached its bound and none is
/// idle, a check of a *new* key returns [`Reason::Full`](crate::backend::Reason::Full); checks of the stored keys continue.
///
/// A check holds a lock for a few microseconds at most and never waits otherwise, so it needs no timeout. Only a new key at the
/// bound takes longer: it searches all keys for idle ones.
#[derive(Clone)]
pub struct MemoryBackend(Arc<State>);

impl MemoryBackend {
    /// The default bound on the number of partition keys.
    pub const DEFAULT_MAX_KEYS: usize = 1 << 18;

    /// Returns a backend for at most [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS) partition keys in use at the same time.
    #[expect(
        clippy::new_without_default,
        reason = "a default would not show that two backends do not share their state"
    )]
    pub fn new() -> Self {
        Self::build(Self::DEFAULT_MAX_KEYS, Clock::system(), Duration::ZERO)
    }

    /// Returns a backend for at most `max_keys` partition keys in use at the same time.
    ///
    /// A key with one record takes about 350 bytes for the first policy and 180 bytes for each further policy. Each further
    /// record takes 16 to 32 bytes.
    ///
    /// # Errors
    ///
    /// [`ConfigError::MaxKeys`] unless `max_keys` is 1 to 2^32-1.
    pub fn with_max_keys(max_keys: usize) -> Result<Self, ConfigError> {
        let max = u32::MAX as usize;
        if !(1..=max).contains(&max_keys) {
            return Err(ConfigError::MaxKeys { given: max_keys, max });
        }
        Ok(Self::build(max_keys, Clock::system(), Duration::ZERO))
    }

    fn build(max_keys: usize, clock: Clock, keep_idle: Duration) -> Self {
        Self(Arc::new(State::new(max_keys, clock, keep_idle)))
    }

    /// Returns the number of stored partition keys, including idle ones.
    pub fn keys(&self) -> usize {
        self.0.keys()
    }
}

#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
impl MemoryBackend {
    /// Returns an empty backend of the same size, on a clock that the test moves.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, testing::ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let backend = MemoryBackend::new().with_clock(&clock);
    /// clock.advance(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn with_clock(self, clock: &ManualClock) -> Self {
        let keep_idle = Duration::from_micros(self.0.keep_idle);
        Self::build(self.0.max_keys, Clock::Manual(clock.clone()), keep_idle)
    }

    /// Returns an empty backend of the same size that keeps idle keys for this time. Use it in tests that move the clock backward:
    /// an idle key may then be in use again.
    #[must_use]
    pub fn keep_idle_for(self, time: Duration) -> Self {
        Self::build(self.0.max_keys, self.0.clock.clone(), time)
    }
}

impl Backend for MemoryBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.0.decide(check)
    }

    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        Some(self.0.decide(check))
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        Ok(self.0.refund(refund))
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        Some(Ok(self.0.refund(refund)))
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.0.reset(pairs);
        Ok(())
    }

    fn store(&self) -> Option<String> {
        Some(format!("memory {}", self.0.number))
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend")
            .field("keys", &self.keys())
            .field("max_keys", &self.0.max_keys)
            .finish()
    }
}
