//! The usage of one pair, for every algorithm, and its reading at one instant.

use std::time::Duration;

use super::{
    forecast::Forecast,
    log::{self, Log},
    windows::{self, Windows},
};
use crate::{
    backend::generation::Generations,
    check::{Pair, Receipt},
    decision::{Status, Wait},
    policy::{Algorithm, Policy},
};

/// The usage of one partition key under one policy. An empty one means the same as none.
pub(super) enum Usage {
    Log(Log),
    Windows(Windows),
}

/// The usage at one instant. Reading changes nothing.
pub(super) enum Reading<'a> {
    Log(log::Reading<'a>),
    Windows(windows::Reading),
}

/// What a charge needs of a reading. The usage must not have changed since.
#[derive(Clone, Copy)]
pub(super) enum Instant {
    Log(log::Span),
    Windows(windows::Reading),
}

/// Returns the width of a bucket; 0 for an algorithm without buckets.
#[inline]
fn precision(policy: &Policy) -> u64 {
    match policy.algorithm() {
        // At most the window.
        Algorithm::SlidingBuckets { precision } => precision.as_micros() as u64,
        _ => 0,
    }
}

/// Returns whether the usage of a calendar window counts in the next one too.
fn carries(policy: &Policy) -> bool {
    policy.algorithm() == Algorithm::SlidingCounter
}

impl Usage {
    /// Returns an empty usage for a policy.
    pub(super) fn new(policy: &Policy) -> Self {
        match policy.algorithm() {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => Self::Log(Log::EMPTY),
            Algorithm::SlidingCounter | Algorithm::FixedWindow => Self::Windows(Windows::EMPTY),
        }
    }

    /// Returns a shared empty usage for a policy.
    pub(super) fn empty(policy: &Policy) -> &'static Self {
        static LOG: Usage = Usage::Log(Log::EMPTY);
        static WINDOWS: Usage = Usage::Windows(Windows::EMPTY);
        match Self::new(policy) {
            Self::Log(_) => &LOG,
            Self::Windows(_) => &WINDOWS,
        }
    }

    /// Reads the usage at `clock`, in microseconds. A record from another clock counts as empty.
    #[inline]
    pub(super) fn read(&self, clock: u64, policy: &Policy) -> Reading<'_> {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => Reading::Log(log.read(clock, window, precision(policy))),
            Self::Windows(windows) => Reading::Windows(windows.read(clock, window, carries(policy))),
        }
    }

    /// Charges a cost at the instant of a reading, and drops expired charges.
    #[inline]
    pub(super) fn charge_at(
        &mut self,
        instant: Instant,
        policy: &Policy,
        cost: u32,
        generations: &Generations,
    ) {
        match (self, instant) {
            (Self::Log(log), Instant::Log(span)) => log.charge(span, precision(policy), cost, generations),
            (Self::Windows(windows), Instant::Windows(reading)) => windows.charge(reading, cost, generations),
            // A reading is of the same kind as its usage.
            (Self::Log(_), Instant::Windows(_)) | (Self::Windows(_), Instant::Log(_)) => {}
        }
    }

    /// Returns the receipt of the last charge, which was made at the instant of this reading.
    pub(super) fn receipt(&self, instant: Instant, policy: &Policy) -> Receipt {
        match (self, instant) {
            (Self::Log(log), Instant::Log(span)) => log.receipt(span, precision(policy)),
            (Self::Windows(windows), Instant::Windows(_)) => windows.receipt(),
            (Self::Log(_), Instant::Windows(_)) | (Self::Windows(_), Instant::Log(_)) => Receipt::NO_CHARGE,
        }
    }

    /// Refunds units of a charge, if the charge still counts.
    pub(super) fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => log.refund(clock, window, receipt, units),
            Self::Windows(windows) => windows.refund(clock, window, carries(policy), receipt, units),
        }
    }

    /// Returns the instant from which on no charge counts.
    pub(super) fn idle_at(&self, policy: &Policy) -> u64 {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => log.idle_at(window),
            Self::Windows(windows) => windows.idle_at(window, carries(policy)),
        }
    }
}

impl Reading<'_> {
    /// Returns what a charge needs of this reading.
    #[inline]
    pub(super) fn instant(&self) -> Instant {
        match self {
            Self::Log(log) => Instant::Log(log.span),
            Self::Windows(windows) => Instant::Windows(*windows),
        }
    }

    /// Returns whether the pair's cost fits into its quota.
    #[inline]
    pub(super) fn admits(&self, pair: &Pair) -> bool {
        let fits = |free: u32| match self {
            Self::Log(log) => log.used() <= u64::from(free),
            Self::Windows(windows) => windows.uses_at_most(u64::from(free)),
        };
        pair.cost == 0 || pair.policy.quota().checked_sub(pair.cost).is_some_and(fits)
    }

    /// Returns the usage in quota units, rounded up.
    pub(super) fn used(&self) -> u64 {
        match self {
            Self::Log(log) => log.used(),
            Self::Windows(windows) => windows.forecast(0).used,
        }
    }

    /// Returns whether one more charge can be recorded.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Log(log) => log.has_room(),
            Self::Windows(_) => true,
        }
    }

    /// Returns the pair's status, with or without its charge. If it `admits`, it has no wait.
    #[inline]
    pub(super) fn status(&self, pair: &Pair, admits: bool, charged: bool) -> Status {
        let retry_after = if admits {
            Wait::ZERO
        } else {
            let free = pair.policy.quota().checked_sub(pair.cost).map(u64::from);
            free.map_or(Wait::Never, |free| Wait::For(self.wait_until(self.falls_to(free))))
        };
        let after = self.forecast(if charged { u64::from(pair.cost) } else { 0 });
        let remaining = u64::from(pair.policy.quota()).saturating_sub(after.used) as u32;
        let (next, reset) = match after.used {
            0 => (pair.policy.window(), Duration::ZERO),
            _ => (self.wait_until(after.next), self.wait_until(after.reset)),
        };
        Status::new(pair, remaining, retry_after, next, reset)
    }

    /// Returns the first instant at which no more than these units are used.
    #[inline]
    fn falls_to(&self, units: u64) -> u64 {
        match self {
            Self::Log(log) => log.falls_to(units),
            Self::Windows(windows) => windows.falls_to(units),
        }
    }

    #[inline]
    fn forecast(&self, units: u64) -> Forecast {
        match self {
            Self::Log(log) => log.forecast(units),
            Self::Windows(windows) => windows.forecast(units),
        }
    }

    /// Returns the wait from the clock as read, so that it includes the time until the clock has caught up with the pair.
    #[inline]
    fn wait_until(&self, at: u64) -> Duration {
        let clock = match self {
            Self::Log(log) => log.clock,
            Self::Windows(windows) => windows.clock,
        };
        Duration::from_micros(at.saturating_sub(clock))
    }
}
