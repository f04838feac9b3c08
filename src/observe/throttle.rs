//! A bound on the number of events about one condition.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock::Lock;

/// Whether events are logged.
pub(crate) const IS_LOGGED: bool = cfg!(feature = "tracing");

/// The time in which at most the given number of events is logged.
const PERIOD: Duration = Duration::from_secs(60);

/// At most a given number of events per minute.
pub(crate) struct Throttle {
    max: u32,
    state: Lock<Logged>,
}

struct Logged {
    /// The first logged event of the current minute.
    began: Option<Instant>,
    logged: u32,
    unlogged: u64,
}

impl Throttle {
    /// Returns a throttle that passes this number of events per minute.
    pub(crate) const fn per_minute(max: u32) -> Self {
        Self { max, state: Lock::new(Logged { began: None, logged: 0, unlogged: 0 }) }
    }

    /// Logs an event, unless this minute has its events already. The event states how many were not logged since the last one.
    pub(crate) fn log(&self, event: impl FnOnce(u64)) {
        if let Some(unlogged) = self.pass() {
            event(unlogged);
        }
    }

    /// Returns the number of events that were not logged since the last one that was, or `None` if this one must not be logged.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_or_count(1)
    }

    /// Returns the same for an event that was not logged before, and that is counted among those.
    pub(super) fn pass_again(&self) -> Option<u64> {
        self.pass_or_count(0).map(|unlogged| unlogged.saturating_sub(1))
    }

    /// Returns the same. If this event must not be logged, adds a number to those that are not logged.
    fn pass_or_count(&self, number: u64) -> Option<u64> {
        if !IS_LOGGED {
            return None;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.began.is_none_or(|began| now - began >= PERIOD) {
            state.began = Some(now);
            state.logged = 0;
        }
        if state.logged < self.max {
            state.logged += 1;
            Some(std::mem::take(&mut state.unlogged))
        } else {
            state.unlogged += number;
            None
        }
    }
}

impl Default for Throttle {
    /// Returns a throttle that passes one event per minute.
    fn default() -> Self {
        Self::per_minute(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tracing")]
    #[tokio::test(start_paused = true)]
    async fn throttle_counts_what_it_does_not_pass() {
        let throttle = Throttle::per_minute(2);
        let pass = || throttle.pass();
        assert_eq!([pass(), pass(), pass(), pass()], [Some(0), Some(0), None, None]);
        tokio::time::advance(PERIOD - Duration::from_millis(1)).await;
        assert_eq!(pass(), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!([pass(), pass(), pass()], [Some(3), Some(0), None]);
    }
}
