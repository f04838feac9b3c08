//! A server's script cache: when a script is unknown, one check loads it and the others wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::{
    sync::broadcast::{self, error::TryRecvError},
    time::Instant,
};

/// The script cache of one server.
#[derive(Debug, Default)]
pub(crate) struct ScriptCache {
    /// The load in progress. A `broadcast` wakes its waiters in the order in which they came.
    loading: Mutex<Option<broadcast::Receiver<()>>>,
    last_loaded: Mutex<Option<Instant>>,
}

/// The right to load a script. Dropping it wakes the checks that wait, whether the load has succeeded or not.
pub(crate) struct ScriptLoad(
    #[expect(dead_code, reason = "dropping it closes the channel")] broadcast::Sender<()>,
);

impl ScriptCache {
    /// Starts to load a script, for a call that was sent at this instant and failed with NOSCRIPT. Returns None, after a wait,
    /// if another call has loaded it or has tried to.
    pub(crate) async fn start_load(&self, sent: Instant) -> Option<ScriptLoad> {
        let mut other = {
            let mut loading = lock(&self.loading);
            // No value is ever sent. The channel is empty while the load is in progress, and closed afterwards.
            let state = loading.as_mut().map(broadcast::Receiver::try_recv);
            match &*loading {
                _ if lock(&self.last_loaded).is_some_and(|loaded| loaded > sent) => return None,
                Some(other) if state == Some(Err(TryRecvError::Empty)) => other.resubscribe(),
                _ => {
                    let (load, waiters) = broadcast::channel(1);
                    *loading = Some(waiters);
                    return Some(ScriptLoad(load));
                }
            }
        };
        let _ = other.recv().await;
        None
    }

    /// Records that the server knows the script now.
    pub(crate) fn record_load(&self) {
        *lock(&self.last_loaded) = Some(Instant::now());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_call_loads_a_script_and_the_others_wait() {
        let cache = ScriptCache::default();
        let sent = Instant::now();
        let load = cache.start_load(sent).await.expect("the first call loads it");
        let mut other = Box::pin(cache.start_load(sent));
        assert!(tokio::time::timeout(SECOND, &mut other).await.is_err(), "the second call waits");
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
}
