//! A lower bound of a server's clock, so that a check carries its deadline in the server's time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::{drift, lock::Lock};

/// A reading of this age is replaced by any newer one, because the server's clock may have been set back since.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The clock of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Lock<Option<ClockReading>>);

/// A reading of the server's clock from a reply.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    server_micros: u64,
    received: Instant,
}

impl ServerClock {
    /// Returns a lower bound of the server's clock at an instant, in microseconds. Returns 0 while the clock is unknown: then
    /// the script replies that the deadline is exceeded, and this reply contains a reading.
    pub(crate) fn lower_bound_at(&self, instant: Instant) -> u64 {
        self.0.lock().map_or(0, |reading| reading.lower_bound_at(instant))
    }

    /// Returns an estimate of the server's clock, in microseconds: that of this process while the clock is unknown.
    pub(crate) fn estimate(&self) -> u64 {
        let of_process = || micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        self.0.lock().map_or_else(of_process, |reading| reading.lower_bound_at(Instant::now()))
    }

    /// Records a reading from a reply, if it improves the lower bound or the old reading is too old.
    pub(crate) fn record(&self, server_micros: u64, received: Instant) {
        let mut known = self.0.lock();
        // The reply with the shorter delay gives the higher lower bound.
        let is_better = |old: ClockReading| {
            server_micros >= old.lower_bound_at(received) || received.duration_since(old.received) >= MAX_AGE
        };
        if known.is_none_or(is_better) {
            *known = Some(ClockReading { server_micros, received });
        }
    }
}

impl ClockReading {
    /// The server's clock is later than this, by the delay of the reply.
    fn lower_bound_at(self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.received) {
            Some(later) => self.server_micros.saturating_add(drift::min_elapsed_elsewhere(micros(later))),
            None => self.server_micros.saturating_sub(micros(self.received - instant)),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(duration.subsec_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MILLI: u64 = 1_000;

    /// Records a reading whose reply arrives after this delay.
    fn record(clock: &ServerClock, server_micros: u64, delay: Duration) {
        clock.record(server_micros, Instant::now() + delay);
    }

    #[test]
    fn unknown_clock_is_bounded_by_zero() {
        assert_eq!(ServerClock::default().lower_bound_at(Instant::now() + SECOND), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn lower_bound_comes_from_the_shortest_delay() {
        let clock = ServerClock::default();
        let start = Instant::now();
        // The server's clock shows 10 s at the start, and the replies take 40 ms, 5 ms and 70 ms.
        for delay in [40, 5, 70].map(Duration::from_millis) {
            record(&clock, 10_000_000, delay);
            let bound = clock.lower_bound_at(start);
            assert!(bound <= 10_000_000, "{bound}");
        }
        assert_eq!(clock.lower_bound_at(start), 10_000_000 - 5 * MILLI);
        // The clocks may drift apart: a two-thousandth of the time since the reading does not count.
        let later = start + Duration::from_millis(5) + 100 * SECOND;
        assert_eq!(clock.lower_bound_at(later), 110_000_000 - 50 * MILLI);
    }

    #[tokio::test(start_paused = true)]
    async fn step_forward_counts_at_once_step_back_in_ten_seconds() {
        let clock = ServerClock::default();
        record(&clock, 100_000_000, Duration::ZERO);
        record(&clock, 160_000_000, Duration::ZERO);
        assert_eq!(clock.lower_bound_at(Instant::now()), 160_000_000);
        for second in 1..10 {
            tokio::time::advance(SECOND).await;
            record(&clock, 50_000_000 + second * 1_000_000, Duration::ZERO);
            assert!(clock.lower_bound_at(Instant::now()) > 160_000_000, "{second}");
        }
        tokio::time::advance(SECOND).await;
        record(&clock, 60_000_000, Duration::ZERO);
        assert_eq!(clock.lower_bound_at(Instant::now()), 60_000_000);
    }
}
