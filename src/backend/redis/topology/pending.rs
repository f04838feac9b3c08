//! Commands without a reply: how long a server has been silent while a command waits for it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A command that is dropped sooner than this says nothing about the server: its client has gone, or another server has replied
/// first.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// The commands of one server that wait for a reply.
#[derive(Debug, Default)]
pub(super) struct PendingCommands {
    /// When the oldest command was sent since the last reply.
    since: Mutex<Option<Instant>>,
}

/// A command that waits for its reply. If it is dropped before the reply, it may have run.
pub(super) struct PendingCommand<'a> {
    commands: &'a PendingCommands,
    sent: Instant,
    on_drop: Option<&'a (dyn Fn(Duration) + Sync)>,
}

impl PendingCommands {
    /// Starts to wait for a reply. If the command is dropped before, `on_drop` gets the time since which the server is silent.
    pub(super) fn start<'a>(&'a self, on_drop: &'a (dyn Fn(Duration) + Sync)) -> PendingCommand<'a> {
        let sent = Instant::now();
        self.since().get_or_insert(sent);
        PendingCommand { commands: self, sent, on_drop: Some(on_drop) }
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingCommand<'_> {
    /// Ends the wait: the server has replied, or the connection is lost.
    pub(super) fn finish(mut self) {
        *self.commands.since() = None;
        self.on_drop = None;
    }
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        let Some(on_drop) = self.on_drop else { return };
        let since = {
            let mut since = self.commands.since();
            if *since == Some(self.sent) && self.sent.elapsed() < MIN_WAIT {
                *since = None;
            }
            *since
        };
        on_drop(since.map_or(Duration::ZERO, |since| since.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn short_waits_are_not_silence() {
        let (pending, silence) = (PendingCommands::default(), Mutex::new(Duration::ZERO));
        let on_drop = |so_far| *silence.lock().unwrap() = so_far;
        let silence_after = async |wait| {
            let command = pending.start(&on_drop);
            tokio::time::advance(wait).await;
            drop(command);
            *silence.lock().unwrap()
        };
        for _ in 0..3 {
            assert_eq!(silence_after(Duration::from_millis(1)).await, Duration::ZERO);
            tokio::time::advance(SECOND).await;
        }
        assert_eq!(silence_after(100 * MIN_WAIT).await, 100 * MIN_WAIT);
        // The server has been silent since, and a short wait sees that.
        tokio::time::advance(SECOND).await;
        assert!(silence_after(Duration::from_millis(1)).await > SECOND);
        pending.start(&on_drop).finish();
        assert_eq!(silence_after(Duration::from_millis(1)).await, Duration::ZERO);
    }
}
