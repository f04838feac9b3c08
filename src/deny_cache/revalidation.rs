//! The checks that are sent to the store although a cached denial answers them: one at a time per entry, at a bounded rate.

use std::sync::Arc;

use super::CacheMicros;
use crate::lock::Lock;

/// The largest number of asks per entry and period.
const MAX_ASKS: usize = 4;
/// The largest number of asks in one eighth of a period. A refresh, which has no bound, comes seven eighths of a maximum age after
/// the last ask. So this bound leaves room for it.
const MAX_ASKS_AT_ONCE: usize = 3;
const SECOND: u64 = 1_000_000;
/// An ask that takes longer no longer stops another one: its request may not be polled.
const LONGEST_ASK: u64 = SECOND;

/// The asks of one pair. All successive entries of the pair share them.
pub(super) struct RevalidationLimiter(Lock<Recent>);

struct Recent {
    /// Until when an ask is in progress at most. The instant 0 if there is none.
    asking_until: CacheMicros,
    /// The last asks, in any order. The instant 0 is long past.
    at: [CacheMicros; MAX_ASKS],
}

/// The permission to ask the store on behalf of these pairs. Meanwhile, other checks are answered from their entries.
pub(super) struct Permission {
    asks: Vec<Arc<RevalidationLimiter>>,
    /// When it was given.
    at: CacheMicros,
}

impl RevalidationLimiter {
    /// Creates the asks of a pair whose first one was sent at `now`.
    pub(super) fn new(now: CacheMicros) -> Arc<Self> {
        Arc::new(Self(Lock::new(Recent { asking_until: 0, at: [now, 0, 0, 0] })))
    }

    /// Records an ask that needed no permission, because no cached denial answered the check.
    pub(super) fn record(&self, now: CacheMicros) {
        self.0.lock().record(now);
    }

    /// Starts an ask, unless one is in progress or, with a period, the rate is reached.
    fn start(&self, now: CacheMicros, period: Option<u64>) -> bool {
        let mut recent = self.0.lock();
        if now < recent.asking_until || period.is_some_and(|period| recent.is_at_bound(now, period)) {
            return false;
        }
        recent.asking_until = now + LONGEST_ASK;
        recent.record(now);
        true
    }
}

impl Recent {
    fn record(&mut self, now: CacheMicros) {
        if let Some(oldest) = self.at.iter_mut().min() {
            *oldest = now;
        }
    }

    fn is_at_bound(&self, now: CacheMicros, period: u64) -> bool {
        let within = |time: u64| self.at.iter().filter(|at| now < **at + time).count();
        within(period) >= MAX_ASKS || within(period / 8) >= MAX_ASKS_AT_ONCE
    }
}

impl Permission {
    /// Permits a refresh of all these pairs, unless an ask of one of them is in progress.
    pub(super) fn to_refresh(all: Vec<Arc<RevalidationLimiter>>, now: CacheMicros) -> Option<Self> {
        let wanted = all.len();
        let asks = all.into_iter().take_while(|asks| asks.start(now, None)).collect();
        let permission = Self { asks, at: now };
        (permission.asks.len() == wanted).then_some(permission)
    }

    /// Permits an ask for those of these pairs whose rate allows it: four in a second, or in `max_age` if that is shorter.
    pub(super) fn to_ask(any: Vec<Arc<RevalidationLimiter>>, now: CacheMicros, max_age: u64) -> Option<Self> {
        let period = max_age.min(SECOND);
        let asks: Vec<_> = any.into_iter().filter(|asks| asks.start(now, Some(period))).collect();
        (!asks.is_empty()).then_some(Self { asks, at: now })
    }

    /// Returns whether this is a permission for the pair with these asks.
    pub(super) fn covers(&self, asks: &Arc<RevalidationLimiter>) -> bool {
        self.asks.iter().any(|other| Arc::ptr_eq(other, asks))
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        for asks in &self.asks {
            let mut recent = asks.0.lock();
            // A later ask may have begun.
            if recent.asking_until == self.at + LONGEST_ASK {
                recent.asking_until = 0;
            }
        }
    }
}
