//! The deny cache: it repeats denials of the store until their wait has passed.
//!
//! It asks no backend, and knows no requests and responses. It comes before the circuit breaker and load shedding: a cached denial
//! is true, whether the store answers or not. After its maximum age, it is used only if the store makes no decision.

use std::{ops::RangeInclusive, time::Duration};

use crate::error::ConfigError;

mod cache;
mod cached_pair;
mod lookup;
mod revalidation;

pub(crate) use cache::DenyCache;
pub(crate) use lookup::{CacheLookup, CacheMiss};

/// A local instant in microseconds since an origin before the cache was created.
type CacheMicros = u64;

/// The settings of the deny cache: repeated denials are answered without the store.
///
/// A client over a limit stays over it until its wait has passed. The limiter caches the denial and repeats it, at the same cost
/// or a larger one, without asking the store. A client that sends 10,000 requests per second over its limit costs the store one
/// command per second, and at most four with many costs. The verdict is the store's own: the cache estimates nothing and never admits.
///
/// The cache is used for backends that do not answer at once and whose
/// [denials hold](crate::backend::Backend::denials_hold), such as `RedisBackend`. It contains denials of charges and
/// reservations, never of a [`peek`](crate::Limiter::peek). Clones of a limiter share one cache. Two limiters do not.
///
/// # Contents of a cached denial
///
/// [`Decision::is_cached`](crate::Decision::is_cached) marks a cached denial. It has the statuses of the pairs that are known to
/// deny, and no others. Its waits are the rest of the waits of the store, counted from the send time of the check. Therefore
/// they are lower bounds, short by at most a round trip if there are no other charges. The remaining quota is as of the store's
/// newest denial.
///
/// The cache keeps the waits of 32 costs for each pair. A wait holds only under its own rate, zone and anchor, so those of the last five of
/// them are kept apart. If a check is denied and the wait of its cost is not known, the limiter
/// asks the store, at most four times per second, pair and rate, or per `max_age` if that is shorter. Beyond that rate, the cached denial
/// has the longest wait that is known for a smaller cost. With such a wait, a client may retry too early and be rejected again.
/// Only a check that is not known to be denied is always sent.
///
/// # Staleness
///
/// A cached denial may be wrong, for at most `max_age`, if *another* process refunded units or reset the key, if the store lost
/// its keys, for example in a failover, or if the clock of the store was stepped. Settlements and resets of this process
/// invalidate the entries of all its limiters at once, under every quota and rate. An admission by the store invalidates those of its
/// limiter. A settlement or a reset without an answer may be applied later; then, too, the denial is wrong for at most `max_age`. A changed
/// quota takes effect at once.
///
/// A denial of one cost confirms the waits of all other costs, if it proves that no units were returned: the usage has not fallen
/// early. Therefore one check per `max_age` is enough for many costs. While the usage is not below the quota, the store's answer
/// does not show by how much it exceeds it. If it does exceed the quota, after an overage or under a smaller quota, and another
/// process then returns units, then the repeated wait of a larger cost may be too long for up to eight `max_age`. The verdict
/// is not affected. With a sliding counter, in a check across slots of a cluster, or after units have left the window, each wait
/// may need a question of its own once per `max_age`.
///
/// After seven eighths of `max_age`, one check refreshes the entry. Other checks are denied until it is answered. If it is not
/// answered, it is denied as well, as long as the entry is valid.
///
/// # Memory
///
/// 7 kB before the first denial, and then at most 640 bytes times `max_entries`: 42 MB by default. With fewer than 32 entries, pairs of
/// several rates may take more. An entry takes some 350 bytes. One with a long key or many costs takes up to 2 kB, and counts as up to
/// four; with several rates, as many times as much. Only denied pairs have entries. At `max_entries`, the entries that are used least are
/// evicted: other pairs that are denied once evict an entry only if they take half of the room. Entries that grow, because many costs of
/// their pairs are denied, may take the other half.
///
/// # Known denials in an outage
///
/// An entry is kept until its waits have passed or it is evicted. Beyond `max_age`, it denies a check only if the store makes no decision,
/// under every [outage rule](crate::OutageRule) and also if the cache is disabled. See the
/// [guide](crate::guide::outages#deny-cache-in-an-outage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenyCacheConfig {
    /// The largest age of a cached denial: 1 ms to 60 s.
    pub max_age: Duration,
    /// The largest number of entries of at most 640 bytes, one for each pair of a partition key and a policy: 1 to 2^20.
    pub max_entries: usize,
}

const MAX_AGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
const MAX_ENTRIES: RangeInclusive<usize> = 1..=1 << 20;

impl Default for DenyCacheConfig {
    /// Returns 1 s and 65,536 entries: refunds by other processes are seen within a second, and the worst case takes 42 MB. This is
    /// enough for 20,000 clients that are denied by three policies at once.
    fn default() -> Self {
        Self { max_age: Duration::from_secs(1), max_entries: 1 << 16 }
    }
}

impl DenyCacheConfig {
    /// Creates the settings of a cache whose denials have at most this age, 1 ms to 60 s, and that has at most this number of entries,
    /// 1 to 2^20. A limiter checks them when it is built.
    pub const fn new(max_age: Duration, max_entries: usize) -> Self {
        Self { max_age, max_entries }
    }

    pub(crate) fn validate(self) -> Result<(), ConfigError> {
        let Self { max_age, max_entries } = self;
        let text = "1 ms to 60 s; `.deny_cache(None)` disables the cache";
        ConfigError::check_range("deny cache: max_age", max_age, MAX_AGE, text)?;
        let text = format!("1 to {}", MAX_ENTRIES.end());
        ConfigError::check_range("deny cache: max_entries", max_entries, MAX_ENTRIES, text)
    }
}
