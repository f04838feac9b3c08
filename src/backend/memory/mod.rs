//! Decisions in the memory of this process: the default, and exact.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, MAX_PAIRS, Pair},
    decision::{Decision, Status, Wait},
    error::ConfigError,
    key::PartitionKey,
};

mod clock;
pub(crate) mod log;
mod shard;

use clock::Clock;
#[cfg(feature = "test-util")]
pub use clock::ManualClock;
use log::{Log, Reading};
use shard::Shard;

/// How many locks the partition keys are spread over.
const SHARDS: usize = 64;
/// How many partition keys that have come due a check looks at, and forgets if they are idle. More than one, so that
/// clearing outruns making.
const FORGET_PER_CHECK: usize = 4;

/// Decisions in the memory of this process: exact, bounded, and without a task that anybody must own.
///
/// Clones share their state. What is idle is forgotten by the checks that come after. When the bound on partition
/// keys is reached, idle ones go first; if none is idle, a *new* key gets an error with [`Reason::Full`], and those
/// that are there are served as before.
///
/// A check holds a lock for a few microseconds at most and waits for nothing else, so there is nothing to time out. Only a
/// new key that finds the bound reached looks for idle ones everywhere.
#[derive(Clone)]
pub struct MemoryBackend(Arc<Inner>);

struct Inner {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    clock: Clock,
    max_keys: usize,
    /// The number of partition keys in all shards.
    keys: AtomicUsize,
    /// How long an idle key is kept, in microseconds. Zero but for tests that move the clock backward.
    keep_idle: u64,
}

/// The shards of a check, locked in their own order, so that two checks never wait for each other.
struct Locked<'a> {
    guards: Vec<MutexGuard<'a, Shard>>,
    /// The partition keys of the pairs, as they are kept.
    keys: Vec<PartitionKey>,
    /// Which of the guards holds the pair of this index.
    guard_of_pair: [usize; MAX_PAIRS],
}

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
        Self(Arc::new(Inner {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            clock,
            max_keys,
            keys: AtomicUsize::new(0),
            keep_idle: keep_idle.as_micros() as u64,
        }))
    }

    /// The number of partition keys that are stored, idle ones included.
    pub fn keys(&self) -> usize {
        self.0.keys.load(Ordering::Relaxed)
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
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend")
            .field("keys", &self.keys())
            .field("max_keys", &self.0.max_keys)
            .finish()
    }
}

impl Inner {
    fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        if let Some(decision) = self.try_decide(check)? {
            return Ok(decision);
        }
        // A new key has no room. Whatever is idle goes, in all shards, and then it is tried once more.
        let horizon = self.forget_horizon(self.clock.now_micros());
        for shard in &self.shards {
            self.forget(&mut lock(shard), horizon, usize::MAX);
        }
        self.try_decide(check)?.ok_or_else(|| BackendError::new(Reason::Full))
    }

    /// `None` if it would be admitted but for a new partition key that has no room.
    fn try_decide(&self, check: &Check) -> Result<Option<Decision>, BackendError> {
        let pairs = check.pairs();
        let mut locked = self.lock(check);
        // Read when the locks are held, so that decisions are in the order of their instants.
        let clock = self.clock.now_micros();
        for shard in &mut locked.guards {
            self.forget(shard, self.forget_horizon(clock), FORGET_PER_CHECK);
        }

        let empty = Log::default();
        let read = |(i, pair): (usize, &Pair)| {
            let log = locked.shard(i).log(&locked.keys[i], check, pair).unwrap_or(&empty);
            (log, log.read(clock, pair.policy.window_micros()))
        };
        let readings: Vec<(&Log, Reading)> = pairs.iter().enumerate().map(read).collect();
        let admitted = pairs.iter().zip(&readings).all(|(pair, (_, reading))| wanting(pair, reading) == 0);
        let statuses: Vec<Status> = pairs
            .iter()
            .zip(&readings)
            .map(|(pair, (log, reading))| status(pair, log, reading, admitted))
            .collect();
        if admitted {
            let charged: Vec<(usize, Reading)> = readings
                .into_iter()
                .enumerate()
                .filter(|(i, _)| pairs[*i].cost > 0)
                .map(|(i, (log, reading))| log.has_room(&reading).then_some((i, reading)))
                .collect::<Option<_>>()
                .ok_or(BackendError::new(Reason::Full))?;
            if !self.reserve(locked.new_keys(&charged)) {
                return Ok(None);
            }
            for (i, reading) in charged {
                locked.log_mut(i, check, clock).charge(&reading, pairs[i].cost);
            }
        }
        Ok(Some(Decision::new(clock, statuses)))
    }

    /// Takes room for new partition keys.
    fn reserve(&self, new_keys: usize) -> bool {
        if new_keys == 0 {
            return true;
        }
        let room = |keys: usize| keys.checked_add(new_keys).filter(|keys| *keys <= self.max_keys);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    fn forget(&self, shard: &mut Shard, horizon: u64, most: usize) {
        let forgotten = shard.forget_idle(horizon, most);
        if forgotten > 0 {
            self.keys.fetch_sub(forgotten, Ordering::Relaxed);
        }
    }

    /// What was idle at this instant may be forgotten.
    fn forget_horizon(&self, clock: u64) -> u64 {
        clock.saturating_sub(self.keep_idle)
    }

    fn lock(&self, check: &Check) -> Locked<'_> {
        let keys: Vec<PartitionKey> = check.pairs().iter().map(|pair| pair.key.bounded()).collect();
        let shard_of = |key: &PartitionKey| self.hasher.hash_one(key) as usize % SHARDS;
        let shards: Vec<usize> = keys.iter().map(shard_of).collect();
        let mut order = shards.clone();
        order.sort_unstable();
        order.dedup();
        let mut guard_of_pair = [0; MAX_PAIRS];
        for (guard, shard) in guard_of_pair.iter_mut().zip(&shards) {
            *guard = order.partition_point(|other| other < shard);
        }
        let guards = order.iter().map(|&shard| lock(&self.shards[shard])).collect();
        Locked { guards, keys, guard_of_pair }
    }
}

impl Locked<'_> {
    fn shard(&self, pair: usize) -> &Shard {
        &self.guards[self.guard_of_pair[pair]]
    }

    fn log_mut(&mut self, pair: usize, check: &Check, now: u64) -> &mut Log {
        let shard = &mut self.guards[self.guard_of_pair[pair]];
        shard.log_mut(&self.keys[pair], check, &check.pairs()[pair], now)
    }

    /// How many of the partition keys that are to be charged are not stored yet.
    fn new_keys(&self, charged: &[(usize, Reading)]) -> usize {
        let is_new = |n: &usize| {
            let key = &self.keys[charged[*n].0];
            !self.shard(charged[*n].0).contains(key)
                && charged[..*n].iter().all(|(i, _)| self.keys[*i] != *key)
        };
        (0..charged.len()).filter(is_new).count()
    }
}

/// How many units are in the way of a pair's cost; zero if it admits.
fn wanting(pair: &Pair, reading: &Reading) -> u64 {
    match u64::from(pair.cost) {
        0 => 0,
        cost => (reading.used + cost).saturating_sub(u64::from(pair.policy.quota())),
    }
}

fn status(pair: &Pair, log: &Log, reading: &Reading, admitted: bool) -> Status {
    let wanting = wanting(pair, reading);
    let retry_after = match wanting {
        0 => Wait::ZERO,
        _ if pair.cost > pair.policy.quota() => Wait::Never,
        _ => Wait::For(Duration::from_micros(log.wait_for(reading, wanting))),
    };
    let charged = if admitted { u64::from(pair.cost) } else { 0 };
    let of_new = reading.wait_for_new();
    let (next, reset) = match (reading.used, charged) {
        (0, 0) => (pair.policy.window_micros(), 0),
        (0, _) => (of_new, of_new),
        (used, 0) => (log.wait_for(reading, 1), log.wait_for(reading, used)),
        (_, _) => (log.wait_for(reading, 1), of_new),
    };
    let remaining = u64::from(pair.policy.quota()).saturating_sub(reading.used + charged) as u32;
    Status::new(pair, remaining, retry_after, Duration::from_micros(next), Duration::from_micros(reset))
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
