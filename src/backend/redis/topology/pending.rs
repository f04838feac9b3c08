//! Commands without a reply: how long a server has been silent while a command waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock::Lock;

/// A command that is dropped sooner than this says nothing about the server: its client has gone, or another server has replied
/// first.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// The commands of one server that wait for a reply.
///
/// The server's silence is the time since its last reply during which a command was waiting. The time in which no command waits
/// is not silence.
#[derive(Debug, Default)]
pub(super) struct PendingCommands(Lock<SilenceMeter>);

#[derive(Debug, Default)]
struct SilenceMeter {
    /// The number of commands that wait.
    waiting: usize,
    /// The silence up to `counted_until`.
    silence: Duration,
    /// The last reply or drop. If no command has waited then, the first start after it.
    counted_until: Option<Instant>,
}

/// A command that waits for its reply. If it is dropped before the reply, it may have run.
pub(super) struct PendingCommand<'a> {
    commands: &'a PendingCommands,
    sent: Instant,
    on_drop: Option<&'a (dyn Fn(Duration) + Sync)>,
}

impl PendingCommands {
    /// Starts to wait for the reply to a command that is sent now. If the command is dropped before, `on_drop` gets the silence of
    /// the server.
    pub(super) fn start<'a>(
        &'a self,
        now: Instant,
        on_drop: &'a (dyn Fn(Duration) + Sync),
    ) -> PendingCommand<'a> {
        let mut state = self.0.lock();
        if state.waiting == 0 {
            state.counted_until = Some(now);
        }
        state.waiting += 1;
        PendingCommand { commands: self, sent: now, on_drop: Some(on_drop) }
    }
}

impl SilenceMeter {
    /// Counts the time up to now, if a command was waiting.
    fn count_silence(&mut self, now: Instant) {
        if let Some(counted) = self.counted_until.filter(|_| self.waiting > 0) {
            self.silence += now.saturating_duration_since(counted);
        }
        self.counted_until = Some(now);
    }
}

impl PendingCommand<'_> {
    /// Ends the wait: the server has replied, or the connection is lost.
    pub(super) fn finish(mut self, now: Instant) {
        let mut state = self.commands.0.lock();
        state.waiting = state.waiting.saturating_sub(1);
        state.silence = Duration::ZERO;
        state.counted_until = Some(now);
        self.on_drop = None;
    }
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        let Some(on_drop) = self.on_drop else { return };
        let silence = {
            let (mut state, now) = (self.commands.0.lock(), Instant::now());
            if now.saturating_duration_since(self.sent) >= MIN_WAIT {
                state.count_silence(now);
            }
            // From here on, only other commands count.
            state.waiting = state.waiting.saturating_sub(1);
            state.count_silence(now);
            state.silence
        };
        on_drop(silence);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// Commands of one server, and the silence that the last dropped one has seen.
    #[derive(Default)]
    struct Silence(PendingCommands, Lock<Duration>);

    impl Silence {
        /// Returns the silence after a command that is dropped after this time.
        async fn after(&self, wait: Duration) -> Duration {
            let on_drop = |silence| *self.1.lock() = silence;
            let command = self.0.start(Instant::now(), &on_drop);
            advance(wait).await;
            drop(command);
            *self.1.lock()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn short_waits_are_not_silence() {
        let silence = Silence::default();
        for _ in 0..10 {
            assert_eq!(silence.after(MILLI).await, Duration::ZERO);
            advance(SECOND).await;
        }
        assert_eq!(silence.after(100 * MIN_WAIT).await, 100 * MIN_WAIT);
        silence.0.start(Instant::now(), &|_| {}).finish(Instant::now());
        assert_eq!(silence.after(MILLI).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_not_silence() {
        let silence = Silence::default();
        assert_eq!(silence.after(100 * MILLI).await, 100 * MILLI);
        advance(3 * SECOND).await;
        assert_eq!(silence.after(10 * MILLI).await, 110 * MILLI);
        advance(3 * SECOND).await;
        // A server that never replies is silent in the end, however rarely it is asked.
        for checks in 1..=5 {
            assert_eq!(silence.after(100 * MILLI).await, (110 + 100 * checks) * MILLI);
            advance(SECOND).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn overlapping_waits_count_once() {
        let (silence, ignore) = (Silence::default(), |_| {});
        let long = silence.0.start(Instant::now(), &ignore);
        for waited in 1..=5 {
            assert_eq!(silence.after(100 * MILLI).await, waited * 100 * MILLI);
        }
        // A short wait sees the silence of the command that still waits.
        advance(SECOND).await;
        assert_eq!(silence.after(MILLI).await, SECOND + 501 * MILLI);
        // A reply shows that the server is alive, though another command still waits.
        silence.0.start(Instant::now(), &ignore).finish(Instant::now());
        advance(10 * MILLI).await;
        assert_eq!(silence.after(20 * MILLI).await, 30 * MILLI);
        drop(long);
    }
}
