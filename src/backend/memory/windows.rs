//! Sliding counter and fixed window: what two calendar windows have used, or one.
//!
//! Calendar windows begin at multiples of the window since the Unix epoch. In the fixed window the previous one counts
//! for nothing, and so both are the same from there on.

use super::tally::{After, stands_at};
use crate::check::Receipt;

/// A calendar window is divided into at most this many ticks.
const MAX_TICKS: u64 = 1 << 20;

/// What a calendar window has used saturates here, so that its product with the ticks stays below 2^53. Only what is
/// charged beyond a quota can come so far.
const MAX_USED: u64 = (1 << 33) - 1;

/// The charges of one partition key under one policy, summed up.
pub(super) struct Windows {
    /// The instant of the first charge since nothing was used.
    generation: u64,
    /// The instant of the last charge. The two sums are as of then.
    last: u64,
    /// What the calendar window of that instant has used, in quota units.
    current: u64,
    /// What the one before it has used and still counts in part; zero in the fixed window.
    previous: u64,
}

/// What two calendar windows say at one instant.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The clock as read.
    pub(super) clock: u64,
    /// The instant for which this is true: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    window: u64,
    /// Whether what a calendar window has used counts on in the next one.
    carries: bool,
    current: u64,
    previous: u64,
}

impl Windows {
    pub(super) const EMPTY: Self = Self { generation: 0, last: 0, current: 0, previous: 0 };

    /// Reads them at `clock`, in microseconds like the window.
    pub(super) fn read(&self, clock: u64, window: u64, carries: bool) -> Reading {
        let Some(now) = stands_at(clock, self.last, window) else {
            return Reading { clock, now: clock, window, carries, current: 0, previous: 0 };
        };
        let (current, previous) = match now / window - self.last / window {
            0 => (self.current, self.previous),
            1 if carries => (0, self.current),
            _ => (0, 0),
        };
        Reading { clock, now, window, carries, current, previous }
    }

    pub(super) fn charge(&mut self, clock: u64, window: u64, carries: bool, cost: u32) -> Receipt {
        let reading = self.read(clock, window, carries);
        let Reading { now, current, previous, .. } = reading.charged(u64::from(cost));
        let generation = if reading.is_unused() { now } else { self.generation };
        *self = Self { generation, last: now, current, previous };
        Receipt { generation, at_micros: now, ordinal: 0 }
    }

    /// Gives units back to the calendar window of a charge, no more than it holds, if that still counts.
    pub(super) fn refund(&mut self, clock: u64, window: u64, carries: bool, receipt: Receipt, units: u32) {
        let charged = receipt.at_micros / window;
        let now = stands_at(clock, self.last, window);
        let counts = now.is_some_and(|now| now / window <= charged + u64::from(carries));
        if !counts || receipt.generation != self.generation {
            return;
        }
        let sum = match (self.last / window).checked_sub(charged) {
            Some(0) => &mut self.current,
            Some(1) => &mut self.previous,
            _ => return,
        };
        *sum = sum.saturating_sub(u64::from(units));
    }

    /// The instant from which on nothing counts of what is recorded here.
    pub(super) fn idle_at(&self, window: u64, carries: bool) -> u64 {
        let end = self.last - self.last % window + window;
        match (self.current, self.previous) {
            (0, 0) => self.last,
            (0, _) => end,
            _ if carries => end + window,
            _ => end,
        }
    }
}

impl Reading {
    /// Whether no more than these units are used.
    pub(super) fn uses_at_most(&self, units: u64) -> bool {
        let free = units.checked_sub(self.current);
        free.is_some_and(|free| self.previous * self.left() <= free * self.whole())
    }

    /// The first instant at which no more than `units` are used.
    pub(super) fn falls_to(&self, units: u64) -> u64 {
        if self.uses_at_most(units) {
            return self.now;
        }
        // What is left to this calendar window, then to the next one; after that nothing counts.
        let (start, next) = (self.start(), self.start() + self.window);
        let free = units.checked_sub(self.current);
        let in_this = free.and_then(|free| self.fades(start, self.previous, free));
        let in_next = || self.fades(next, if self.carries { self.current } else { 0 }, units);
        in_this.or_else(in_next).unwrap_or(next + self.window)
    }

    /// What is used after a charge of so many units, now.
    pub(super) fn after(&self, units: u64) -> After {
        let after = self.charged(units);
        let used = after.current + (after.previous * after.left()).div_ceil(after.whole());
        After { used, next: after.falls_at(), reset: after.falls_to(0) }
    }

    /// The first instant at which less is used.
    fn falls_at(&self) -> u64 {
        let next = self.start() + self.window;
        if self.previous > 0 {
            // At the next tick, the first one of the next calendar window included: there nothing is left of it.
            next.min(self.now - (self.now - self.start()) % self.tick() + self.tick())
        } else if self.carries {
            // In the first tick of the next calendar window it counts in full.
            next + self.tick()
        } else {
            next
        }
    }

    fn charged(&self, units: u64) -> Self {
        Self { current: (self.current + units).min(MAX_USED), ..*self }
    }

    fn is_unused(&self) -> bool {
        self.current == 0 && self.previous == 0
    }

    /// When the share of `sum` that counts in the calendar window from `start` on has come down to `units`. None if it
    /// does not in that window.
    fn fades(&self, start: u64, sum: u64, units: u64) -> Option<u64> {
        // How many ticks may be left at most.
        let left = (units * self.whole()).checked_div(sum).unwrap_or(self.whole()).min(self.whole());
        (left > 0).then(|| start + (self.whole() - left) * self.tick())
    }

    /// The beginning of the calendar window.
    fn start(&self) -> u64 {
        self.now - self.now % self.window
    }

    /// The ticks that remain of the calendar window, at least one.
    fn left(&self) -> u64 {
        self.whole() - self.now % self.window / self.tick()
    }

    /// The ticks of a calendar window; the last one may be cut short.
    fn whole(&self) -> u64 {
        self.window.div_ceil(self.tick())
    }

    /// The length of a tick in microseconds.
    fn tick(&self) -> u64 {
        self.window.div_ceil(MAX_TICKS)
    }
}
