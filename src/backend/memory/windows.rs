//! The count of the sliding counter and the fixed window: the usage of two calendar windows, or of one.
//!
//! Calendar windows begin at multiples of the window since the Unix epoch.

use super::count::{Count, Forecast, UsageReading, monotonic_instant};
use crate::{
    backend::generation::{Generation, Generations},
    check::Receipt,
    policy::Policy,
};

/// The largest number of ticks in a calendar window.
const MAX_TICKS: u64 = 1 << 20;

/// The usage of a calendar window saturates here, so that its product with the ticks stays below 2^53. Only overages beyond a
/// quota can reach it.
const MAX_USED: u64 = (1 << 33) - 1;

/// The sums of the charges of one partition key under one policy. If it `CARRIES`, the usage of a calendar window counts in the next
/// one too, in part.
pub(super) struct Windows<const CARRIES: bool> {
    /// That of the charges since the usage was 0.
    generation: Generation,
    /// The instant of the last charge. The two sums are as of this instant.
    last: u64,
    /// The usage of the calendar window of that instant, in quota units.
    current: u64,
    /// The usage of the calendar window before it, which counts in part; 0 unless it `CARRIES`.
    previous: u64,
}

/// Two calendar windows at one instant.
#[derive(Clone, Copy)]
pub(super) struct WindowsReading<const CARRIES: bool> {
    /// The instant of the pair: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    window: u64,
    current: u64,
    previous: u64,
}

impl<const CARRIES: bool> Count for Windows<CARRIES> {
    const EMPTY: Self = Self { generation: Generation::NONE, last: 0, current: 0, previous: 0 };

    type Reading<'a> = WindowsReading<CARRIES>;
    type Instant = WindowsReading<CARRIES>;

    fn read(&self, clock: u64, policy: &Policy) -> WindowsReading<CARRIES> {
        let window = policy.window_micros();
        let Some(now) = monotonic_instant(clock, self.last, window) else {
            return WindowsReading { now: clock, window, current: 0, previous: 0 };
        };
        let (current, previous) = match now / window - self.last / window {
            0 => (self.current, self.previous),
            1 if CARRIES => (0, self.current),
            _ => (0, 0),
        };
        WindowsReading { now, window, current, previous }
    }

    fn instant(reading: &WindowsReading<CARRIES>) -> WindowsReading<CARRIES> {
        *reading
    }

    fn charge(&mut self, reading: WindowsReading<CARRIES>, cost: u32) {
        let WindowsReading { now, current, previous, .. } = reading.charged(u64::from(cost));
        let generation =
            if (reading.current, reading.previous) == (0, 0) { Generation::NONE } else { self.generation };
        *self = Self { generation, last: now, current, previous };
    }

    fn receipt(&mut self, _: WindowsReading<CARRIES>, generations: &Generations) -> Receipt {
        Receipt { generation: self.generation.get(generations), at_micros: self.last, ordinal: 0 }
    }

    fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        let window = policy.window_micros();
        let charged = receipt.at_micros / window;
        let now = monotonic_instant(clock, self.last, window);
        let counts = now.is_some_and(|now| now / window <= charged + u64::from(CARRIES));
        if !counts || !self.generation.is(receipt.generation) {
            return;
        }
        let sum = match (self.last / window).checked_sub(charged) {
            Some(0) => &mut self.current,
            Some(1) => &mut self.previous,
            _ => return,
        };
        *sum = sum.saturating_sub(u64::from(units));
    }

    fn idle_at(&self, policy: &Policy) -> u64 {
        let window = policy.window_micros();
        let end = self.last - self.last % window + window;
        match (self.current, self.previous) {
            (0, 0) => self.last,
            (0, _) => end,
            _ if CARRIES => end + window,
            _ => end,
        }
    }

    fn pack(&self, _: &Policy) -> Option<[u64; 2]> {
        let (current, previous) = (u32::try_from(self.current).ok()?, u32::try_from(self.previous).ok()?);
        let used = u64::from(current) << 32 | u64::from(previous);
        (self.generation == Generation::NONE).then_some([self.last, used])
    }

    fn unpack([last, used]: [u64; 2], _: &Policy) -> Self {
        let (current, previous) = (used >> 32, used & u64::from(u32::MAX));
        Self { generation: Generation::NONE, last, current, previous }
    }
}

impl<const CARRIES: bool> UsageReading for WindowsReading<CARRIES> {
    fn used(&self) -> u64 {
        self.current + (self.previous * self.left()).div_ceil(self.whole())
    }

    fn uses_at_most(&self, units: u64) -> bool {
        let free = units.checked_sub(self.current);
        free.is_some_and(|free| self.previous * self.left() <= free * self.whole())
    }

    fn falls_to(&self, units: u64) -> u64 {
        if self.uses_at_most(units) {
            return self.now;
        }
        // The rest of this calendar window, then the next one. After that nothing counts.
        let (start, next) = (self.start(), self.start() + self.window);
        let free = units.checked_sub(self.current);
        let in_this = free.and_then(|free| self.fades(start, self.previous, free));
        let in_next = || self.fades(next, if CARRIES { self.current } else { 0 }, units);
        in_this.or_else(in_next).unwrap_or(next + self.window)
    }

    fn forecast(&self, units: u64, quota: u64) -> Forecast {
        let after = self.charged(units);
        let used = after.used();
        Forecast { used, next: after.falls_to(used.min(quota).saturating_sub(1)), reset: after.falls_to(0) }
    }
}

impl<const CARRIES: bool> WindowsReading<CARRIES> {
    fn charged(&self, units: u64) -> Self {
        Self { current: (self.current + units).min(MAX_USED), ..*self }
    }

    /// Returns when the part of `sum` that counts has fallen to `units`, in the calendar window from `start`. None if it does not
    /// fall so far in that window.
    fn fades(&self, start: u64, sum: u64, units: u64) -> Option<u64> {
        // The largest number of ticks that may remain.
        let left = (units * self.whole()).checked_div(sum).unwrap_or(self.whole()).min(self.whole());
        (left > 0).then(|| start + (self.whole() - left) * self.tick())
    }

    /// Returns the start of the calendar window.
    fn start(&self) -> u64 {
        self.now - self.now % self.window
    }

    /// Returns the remaining ticks of the calendar window, at least one.
    fn left(&self) -> u64 {
        self.whole() - self.now % self.window / self.tick()
    }

    /// Returns the ticks of a calendar window. The last one may be shorter.
    fn whole(&self) -> u64 {
        self.window.div_ceil(self.tick())
    }

    /// Returns the length of a tick in microseconds.
    fn tick(&self) -> u64 {
        self.window.div_ceil(MAX_TICKS)
    }
}
