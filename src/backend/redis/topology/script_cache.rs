//! A server's script cache: when a script is unknown, one check loads it and the others wait.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    lock::Lock,
    single_flight::{Attempt, SingleFlight},
};

/// The time limit of a load. After it, the next check that finds the script unknown loads it.
const LOAD_LIMIT: Duration = Duration::from_millis(500);

/// The script cache of one server.
#[derive(Debug)]
pub(crate) struct ScriptCache {
    loads: SingleFlight<()>,
    last_loaded: Lock<Option<Instant>>,
}

impl Default for ScriptCache {
    fn default() -> Self {
        Self { loads: SingleFlight::new(LOAD_LIMIT), last_loaded: Lock::default() }
    }
}

impl ScriptCache {
    /// Starts to load a script, for a call that was sent at this instant and failed with NOSCRIPT. Returns None, after a wait,
    /// if another call has loaded it or has tried to. Dropping the load wakes the calls that wait, whether it has succeeded or not.
    pub(crate) async fn start_load(&self, sent: Instant) -> Option<Attempt<()>> {
        let (load, waiter) = self.loads.join();
        // A load is recorded before it ends, so this sees every load that has ended before this call joined.
        if self.last_loaded.lock().is_some_and(|loaded| loaded > sent) {
            return None;
        }
        if load.is_none() {
            waiter.outcome().await;
        }
        load
    }

    /// Records that the server knows the script now.
    pub(crate) fn record_load(&self) {
        *self.last_loaded.lock() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_call_loads_a_script_and_the_others_wait() {
        let cache = ScriptCache::default();
        let sent = Instant::now();
        let load = cache.start_load(sent).await.expect("the first call loads it");
        let mut other = Box::pin(cache.start_load(sent));
        assert!(tokio::time::timeout(LOAD_LIMIT, &mut other).await.is_err(), "the second call waits");
        // The load ends without success.
        drop(load);
        assert!(other.await.is_none());
        let load = cache.start_load(sent).await.expect("another call loads it");
        tokio::time::advance(SECOND).await;
        cache.record_load();
        drop(load);
        assert!(cache.start_load(sent).await.is_none(), "it was loaded after this call was sent");
        tokio::time::advance(SECOND).await;
        assert!(cache.start_load(Instant::now()).await.is_some(), "the server has lost it again");
    }

    #[tokio::test(start_paused = true)]
    async fn undriven_load_is_replaced_after_its_limit() {
        let cache = ScriptCache::default();
        let sent = Instant::now();
        let stuck = cache.start_load(sent).await.expect("the first call loads it");
        assert!(cache.start_load(sent).await.is_none(), "the second call waits for the limit");
        assert!(sent.elapsed() < LOAD_LIMIT + SECOND, "{:?}", sent.elapsed());
        assert!(cache.start_load(sent).await.is_some(), "another call loads it");
        drop(stuck);
    }
}
