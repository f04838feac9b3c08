//! Decisions in the memory of this process: the default, and exact.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{Backend, BackendError},
    check::{Check, Refund},
    decision::Decision,
    error::ConfigError,
};

mod clock;
mod log;
mod shard;
mod state;
mod tally;
mod windows;

use clock::Clock;
#[cfg(feature = "test-util")]
pub use clock::ManualClock;
use state::State;

/// Decisions in the memory of this process: exact, bounded, and without a task that anybody must own.
///
/// Clones share their state. What is idle is forgotten by the checks that come after. When the bound on partition
/// keys is reached, idle ones go first; if none is idle, a *new* key gets an error with [`Reason::Full`](crate::Reason::Full), and
/// those that are there are served as before.
///
/// A check holds a lock for a few microseconds at most and waits for nothing else, so there is nothing to time out. Only a
/// new key that finds the bound reached looks for idle ones everywhere.
#[derive(Clone)]
pub struct MemoryBackend(Arc<State>);

impl MemoryBackend {
    /// The bound on partition keys unless another is given.
    pub const DEFAULT_MAX_KEYS: usize = 1 << 18;

    /// A backend for at most [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS) partition keys that are in use at one time.
    #[expect(
        clippy::new_without_default,
        reason = "two of them do not share their state, which `new` says aloud"
    )]
    pub fn new() -> Self {
        Self::make(Self::DEFAULT_MAX_KEYS, Clock::system(), Duration::ZERO)
    }

    /// A backend for at most `max_keys` partition keys that are in use at one time.
    ///
    /// A key with one record under one policy takes some 350 bytes, under each further policy 180 more; every further
    /// record takes 16 to 32.
    ///
    /// # Errors
    ///
    /// [`ConfigError::MaxKeys`] unless `max_keys` is 1 to 2^32-1.
    pub fn with_max_keys(max_keys: usize) -> Result<Self, ConfigError> {
        let max = u32::MAX as usize;
        if !(1..=max).contains(&max_keys) {
            return Err(ConfigError::MaxKeys { given: max_keys, max });
        }
        Ok(Self::make(max_keys, Clock::system(), Duration::ZERO))
    }

    fn make(max_keys: usize, clock: Clock, keep_idle: Duration) -> Self {
        Self(Arc::new(State::new(max_keys, clock, keep_idle)))
    }

    /// The number of partition keys that are stored, idle ones included.
    pub fn keys(&self) -> usize {
        self.0.keys()
    }
}

#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
impl MemoryBackend {
    /// This backend, empty, on a clock that the caller moves.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{ManualClock, MemoryBackend};
    ///
    /// let clock = ManualClock::new();
    /// let backend = MemoryBackend::new().with_clock(&clock);
    /// clock.advance(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn with_clock(self, clock: &ManualClock) -> Self {
        let keep_idle = Duration::from_micros(self.0.keep_idle);
        Self::make(self.0.max_keys, Clock::Manual(clock.clone()), keep_idle)
    }

    /// This backend, empty, keeping idle keys for so long: for tests that move the clock backward, where a key that is
    /// idle now may be in use again.
    #[must_use]
    pub fn keep_idle_for(self, time: Duration) -> Self {
        Self::make(self.0.max_keys, self.0.clock.clone(), time)
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

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        self.0.refund(refund);
        Ok(())
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<(), BackendError>> {
        self.0.refund(refund);
        Some(Ok(()))
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
