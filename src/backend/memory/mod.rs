//! The memory backend: exact decisions in this process.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Tokens},
    check::{Check, Namespace, PairRef, Purpose, Refund},
    decision::Decision,
    error::ConfigError,
    policy::for_each_type,
};

mod answers;
mod any_count;
mod bound;
mod clock;
mod count;
mod due;
mod expiring;
mod held;
mod key_map;
mod log;
mod partition;
mod records;
mod shard;
mod state;
mod terms;
mod tokens;
mod windows;

use clock::Clock;
#[cfg(feature = "test-util")]
pub use clock::ManualClock;
use state::MemoryState;

macro_rules! declare_types {
    ($($(#[$attribute:meta])* $variant:ident $({ $($field:ident: $example:expr),* })? => $module:ident,)*) => {
        $($(#[$attribute])* mod $module;)*
    };
}
for_each_type!(declare_types);

/// A backend in the memory of this process: exact, bounded, and without a background task.
///
/// Clones share their state. Each check removes up to 32 idle partition keys of its shard, one of 64. Once in a millisecond, a check also
/// removes as many of another shard, in turn. So keys do not stay in memory after a burst, even if all checks after it are of one key:
/// 1,000 of these checks remove 32,000 keys.
///
/// A check holds a lock for a few microseconds at most and never waits otherwise, so it needs no timeout. Only a few take longer: those
/// that remove keys with many records; at the bound, a new key with which the check searches all shards for idle keys that are due; and a
/// new key with which the table of its shard grows, because the check then hashes all keys of this shard. With a log of a million records, a
/// refund takes up to 0.8 ms, and a charge with which all of them expire 1 ms.
///
/// # Bound on partition keys
///
/// The number of keys has a bound. A client that invents keys, such as values of an
/// [unverified header](crate::header), can reach it. At the bound, a *new* key needs the room of another one:
///
/// 1. The backend removes idle keys.
/// 2. If there is none, it samples eight keys. Each key counts by its largest share of a quota in use, over its policies. If several
///    quotas of one policy have charged a usage, as with a [headroom](crate::Policy::headroom_percent) or after a change of the quota, the
///    smallest one counts until nothing is used. The backend evicts the sampled key with the smallest share, if the share is below one half,
///    and the key does not belong to the current check. [`evicted_keys`](Self::evicted_keys) and [`evicted_units`](Self::evicted_units)
///    count what was lost.
/// 3. If no sampled key qualifies, the check returns [`Reason::Full`](crate::backend::Reason::Full). Checks of the stored keys
///    continue.
///
/// The usage of an evicted key starts from zero. So under an attack, a client may be admitted to almost half of a quota again, each time
/// that its key is evicted. A key that uses half of a quota or more is never evicted: a client at its limit cannot reset its own key by
/// inventing others.
///
/// Invented keys whose first charge is already half of the quota, such as those of a quota of 1, are never evicted either. They
/// fill the backend, and new keys are rejected with `Full` until the window has passed. Against such an attack, limit what a
/// client can invent: see [Unverified headers](crate::guide::keys#unverified-headers-limit-the-address-as-well).
///
/// A [shadow pair](crate::backend::Pair::shadow) evicts no key: if there is no room for its key, it is not counted, and has no status.
/// Usage that only shadow pairs have charged does not count as a share of a quota, so such keys are evicted first. A key whose units [in
/// flight](crate::Policy::in_flight) are held is never evicted.
///
/// [`when_full`](Self::when_full) disables evictions.
///
/// ```
/// use tower_sliding_window::{MemoryBackend, backend::WhenFull};
///
/// let backend = MemoryBackend::with_max_keys(10_000)?.when_full(WhenFull::Reject);
/// assert_eq!(backend.evicted_keys(), 0);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct MemoryBackend(Arc<MemoryState>);

/// What a [`MemoryBackend`] does with a new partition key at its bound, if no key is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Evicts a key that uses less than half of each of its quotas, if one is among eight sampled keys. The default; see
    /// [Bound on partition keys](MemoryBackend#bound-on-partition-keys).
    #[default]
    Evict,
    /// Evicts nothing: the check returns [`Reason::Full`](crate::backend::Reason::Full). No usage is ever lost, and a client that
    /// invents keys can cause the rejection of every new key.
    Reject,
}

impl MemoryBackend {
    /// The default bound on the number of partition keys.
    pub const DEFAULT_MAX_KEYS: usize = 1 << 18;

    /// Returns a backend for at most [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS) partition keys in use at the same time.
    #[expect(
        clippy::new_without_default,
        reason = "a default would not show that two backends do not share their state"
    )]
    pub fn new() -> Self {
        Self::build(Self::DEFAULT_MAX_KEYS, Clock::system(), Duration::ZERO, false)
    }

    /// Returns a backend for at most `max_keys` partition keys in use at the same time.
    ///
    /// A key takes some 70 to 200 bytes, or more if it is long, or has several policies or many records; see the
    /// [guide](crate::guide::algorithms#memory-per-key).
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidValue`] unless `max_keys` is 1 to 2^32-1.
    pub fn with_max_keys(max_keys: usize) -> Result<Self, ConfigError> {
        let max = u32::MAX as usize;
        ConfigError::check_range("max_keys", max_keys, 1..=max, format_args!("1 to {max}"))?;
        Ok(Self::build(max_keys, Clock::system(), Duration::ZERO, false))
    }

    fn build(max_keys: usize, clock: Clock, keep_idle: Duration, rejects_when_full: bool) -> Self {
        Self(Arc::new(MemoryState::new(max_keys, clock, keep_idle, rejects_when_full)))
    }

    /// Sets what this backend and its clones do with a new key at the bound. The default is [`WhenFull::Evict`].
    #[must_use]
    pub fn when_full(self, rule: WhenFull) -> Self {
        self.0.rejects_when_full.store(rule == WhenFull::Reject, Ordering::Relaxed);
        self
    }

    /// Returns the number of stored partition keys, including idle ones.
    pub fn keys(&self) -> usize {
        self.0.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of partition keys that were evicted because the bound was reached. Idle keys do not count: they are
    /// removed without a loss.
    pub fn evicted_keys(&self) -> u64 {
        self.0.evicted_keys.load(Ordering::Relaxed)
    }

    /// Returns the quota units that the evicted keys had in use, over all their policies. Clients may use these units again before
    /// their window has passed.
    pub fn evicted_units(&self) -> u64 {
        self.0.evicted_units.load(Ordering::Relaxed)
    }

    /// Decides a check of pairs of one key, without copies of them. None of them is in flight: what it holds needs a copy. Returns `None`
    /// if the key is long, or there is no room for a record or the key. Then nothing was charged.
    #[inline]
    pub(crate) fn check_key_now(
        &self,
        namespace: &Namespace,
        pairs: &[PairRef<'_>],
        purpose: Purpose,
    ) -> Option<Decision> {
        let decided = self.0.decide_key(namespace, pairs, &purpose);
        // No lock is held.
        #[cfg(feature = "calendar")]
        for pair in pairs.iter().filter(|pair| pair.policy.take_earlier_period()) {
            crate::observe::earlier_period(pair.policy);
        }
        decided
    }

    fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        Ok(self.0.with_hold(check, self.0.learn(check)?))
    }

    #[cfg(feature = "test-util")]
    fn rejects_when_full(&self) -> bool {
        self.0.rejects_when_full.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "test-util")]
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
        Self::build(self.0.max_keys, Clock::Manual(clock.clone()), keep_idle, self.rejects_when_full())
    }

    /// Returns an empty backend of the same size that keeps idle keys for this time. Use it in tests that move the clock backward:
    /// an idle key may then be in use again.
    #[must_use]
    pub fn keep_idle_for(self, time: Duration) -> Self {
        Self::build(self.0.max_keys, self.0.clock.clone(), time, self.rejects_when_full())
    }
}

impl Backend for MemoryBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.decide(check)
    }

    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        Some(self.decide(check))
    }

    fn holds_units(&self) -> bool {
        true
    }

    fn changes_charges(&self) -> bool {
        true
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        Some(Ok(self.0.refund(refund)))
    }

    fn reset_now(&self, pairs: &Check) -> Option<Result<(), BackendError>> {
        self.0.reset(pairs);
        Some(Ok(()))
    }

    fn tokens(&self) -> Option<Tokens> {
        Some(Tokens::new(self.clone()))
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

/// Returns a source of numbers below a bound, which are the same in every run.
#[cfg(test)]
fn numbers() -> impl FnMut(usize) -> usize {
    let mut state = 1_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}
