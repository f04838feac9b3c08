//! Denials that are known without asking: what a store has denied it goes on denying until the wait is over.
//!
//! Nothing here asks a backend, and nothing here knows of requests and responses. It stands before the breaker and the bound on
//! checks under way: a denial that is known is true, whether the store answers or not.

use std::{ops::RangeInclusive, time::Duration};

use crate::error::ConfigError;

mod denials;
mod inquiry;
mod known;

pub(crate) use denials::{Denials, Evicting};
pub(crate) use inquiry::{Inquiry, Look};

/// For how long, and of how many, a limiter remembers what its store has denied.
///
/// Whoever is over a limit stays so until the wait that was told has passed. A limiter remembers that, and refuses the same
/// again, at the same cost or a larger one, without asking the store: a client that sends 10,000 requests a second over its
/// limit costs the store one command in a second, and not 10,000. The verdict is the store's own; nothing is estimated,
/// and nothing is ever admitted without asking.
///
/// Only backends are remembered that do not answer at once and [whose denials hold](crate::Backend::denials_hold), such as
/// `RedisBackend`; and of them what was denied to charge or to reserve, never a [`peek`](crate::Limiter::peek). Clones of a
/// limiter share one cache, and two limiters never do.
///
/// # What a repeated denial tells
///
/// [`Decision::is_cached`](crate::Decision::is_cached) says that it is one. It has the statuses of those pairs only that are
/// known to deny, for of the others nothing is known. Its waits are what is left of those that the store has told, counted
/// from the moment at which it was asked. So they are lower bounds, short by a round trip at most if nobody else charges; where
/// neither this cost nor three others are known, the wait is that of a smaller cost, and may be shorter. What remains of a
/// quota is told as it was then.
///
/// # How stale it can be
///
/// A denial is wrong, and then for no longer than `max_age`, if meanwhile *another* process gave units back or reset the key;
/// if the store has lost its keys, as in a failover; or if its clock was stepped. What this limiter settles and resets is
/// forgotten at once, and so is what the store admits after all. A settlement or a reset that was not answered may be done
/// after it was given up; then, too, it is no longer than `max_age`. A quota that is changed takes effect at once.
///
/// When seven eighths of `max_age` have passed, one check is let through to ask again, and the others are still refused until
/// it is answered. If it is not, it is refused like them as long as the old answer counts.
///
/// # Memory
///
/// 7 kB before the first denial. An entry takes some 250 bytes, and at most 1 kB: where keys are long, and several costs of one
/// key are known. Only who is denied gets one. When there are `max_entries`, those go that were asked for least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCache {
    /// How old what is known can be before the store is asked again: 1 ms to 60 s.
    pub max_age: Duration,
    /// Of how many pairs of a partition key and a policy something is known: 1 to 2^20.
    pub max_entries: usize,
}

const MAX_AGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
const MAX_ENTRIES: RangeInclusive<usize> = 1..=1 << 20;

impl Default for DenyCache {
    /// 1 s and 16,384 entries: what another process gives back is seen within a second, and the worst flood takes 16 MB.
    fn default() -> Self {
        Self { max_age: Duration::from_secs(1), max_entries: 1 << 14 }
    }
}

pub(crate) fn check_deny_cache(cache: DenyCache) -> Result<(), ConfigError> {
    let DenyCache { max_age, max_entries } = cache;
    if !MAX_AGE.contains(&max_age) {
        return Err(ConfigError::DenyCacheMaxAge { max_age });
    }
    if !MAX_ENTRIES.contains(&max_entries) {
        return Err(ConfigError::DenyCacheMaxEntries { given: max_entries, max: *MAX_ENTRIES.end() });
    }
    Ok(())
}
