//! What is recorded of one pair, by whichever algorithm, and what it says at one instant.

use std::time::Duration;

use super::{
    log::{self, Log},
    windows::{self, Windows},
};
use crate::{
    check::{Pair, Receipt},
    decision::{Status, Wait},
    policy::{Algorithm, Policy},
};

/// What is recorded of one partition key under one policy. An empty one says the same as none.
pub(super) enum Tally {
    Log(Log),
    Windows(Windows),
}

/// What a tally says at one instant. Reading changes nothing.
pub(super) enum Reading<'a> {
    Log(log::Reading<'a>),
    Windows(windows::Reading),
}

/// What is used once a charge is added, and the instants at which that changes. They mean nothing if nothing is used.
pub(super) struct After {
    /// In quota units, rounded up.
    pub(super) used: u64,
    /// When less is used.
    pub(super) next: u64,
    /// When nothing is used.
    pub(super) reset: u64,
}

/// The instant as a pair sees it that was charged last at `last`: time stands still there until the clock has caught
/// up. None if that is more than a window ahead: the record is of another clock.
pub(super) fn stands_at(clock: u64, last: u64, window: u64) -> Option<u64> {
    (last <= clock + window).then(|| clock.max(last))
}

/// The width of a bucket; zero where every charge stands for itself.
fn precision(policy: &Policy) -> u64 {
    match policy.algorithm() {
        // Not more than the window.
        Algorithm::SlidingBuckets { precision } => precision.as_micros() as u64,
        _ => 0,
    }
}

/// Whether what a calendar window has used counts on in the next one.
fn carries(policy: &Policy) -> bool {
    policy.algorithm() == Algorithm::SlidingCounter
}

impl Tally {
    /// An empty one for a policy.
    pub(super) fn new(policy: &Policy) -> Self {
        match policy.algorithm() {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => Self::Log(Log::EMPTY),
            Algorithm::SlidingCounter | Algorithm::FixedWindow => Self::Windows(Windows::EMPTY),
        }
    }

    /// What is read where nothing is recorded.
    pub(super) fn none(policy: &Policy) -> &'static Self {
        static LOG: Tally = Tally::Log(Log::EMPTY);
        static WINDOWS: Tally = Tally::Windows(Windows::EMPTY);
        match Self::new(policy) {
            Self::Log(_) => &LOG,
            Self::Windows(_) => &WINDOWS,
        }
    }

    /// Reads it at `clock`, in microseconds. A foreign one counts as empty.
    pub(super) fn read(&self, clock: u64, policy: &Policy) -> Reading<'_> {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => Reading::Log(log.read(clock, window, precision(policy))),
            Self::Windows(windows) => Reading::Windows(windows.read(clock, window, carries(policy))),
        }
    }

    /// Charges, and drops what does not count any more.
    pub(super) fn charge(&mut self, clock: u64, policy: &Policy, cost: u32) -> Receipt {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => log.charge(clock, window, precision(policy), cost),
            Self::Windows(windows) => windows.charge(clock, window, carries(policy), cost),
        }
    }

    /// Gives units back to a charge, if that still counts.
    pub(super) fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => log.refund(clock, window, receipt, units),
            Self::Windows(windows) => windows.refund(clock, window, carries(policy), receipt, units),
        }
    }

    /// The instant from which on nothing counts of what is recorded here.
    pub(super) fn idle_at(&self, policy: &Policy) -> u64 {
        let window = policy.window_micros();
        match self {
            Self::Log(log) => log.idle_at(window),
            Self::Windows(windows) => windows.idle_at(window, carries(policy)),
        }
    }
}

impl Reading<'_> {
    /// Whether the pair's cost fits beside what is used.
    pub(super) fn admits(&self, pair: &Pair) -> bool {
        let fits = |free: u32| match self {
            Self::Log(log) => log.used() <= u64::from(free),
            Self::Windows(windows) => windows.uses_at_most(u64::from(free)),
        };
        pair.cost == 0 || pair.policy.quota().checked_sub(pair.cost).is_some_and(fits)
    }

    /// Whether one more charge can be recorded.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Log(log) => log.has_room(),
            Self::Windows(_) => true,
        }
    }

    /// The pair's status: with its cost charged or not, and with a wait or, where it is charged anyway, without.
    pub(super) fn status(&self, pair: &Pair, charged: bool, waits: bool) -> Status {
        let retry_after = if !waits || self.admits(pair) {
            Wait::ZERO
        } else {
            let free = pair.policy.quota().checked_sub(pair.cost).map(u64::from);
            free.map_or(Wait::Never, |free| Wait::For(self.wait_until(self.falls_to(free))))
        };
        let after = self.after(if charged { u64::from(pair.cost) } else { 0 });
        let remaining = u64::from(pair.policy.quota()).saturating_sub(after.used) as u32;
        let (next, reset) = match after.used {
            0 => (pair.policy.window(), Duration::ZERO),
            _ => (self.wait_until(after.next), self.wait_until(after.reset)),
        };
        Status::new(pair, remaining, retry_after, next, reset)
    }

    /// The first instant at which no more than these units are used.
    fn falls_to(&self, units: u64) -> u64 {
        match self {
            Self::Log(log) => log.falls_to(units),
            Self::Windows(windows) => windows.falls_to(units),
        }
    }

    fn after(&self, units: u64) -> After {
        match self {
            Self::Log(log) => log.after(units),
            Self::Windows(windows) => windows.after(units),
        }
    }

    /// Waits count from the clock as read, so that the catch-up of a pair that stands still is included.
    fn wait_until(&self, at: u64) -> Duration {
        let clock = match self {
            Self::Log(log) => log.clock,
            Self::Windows(windows) => windows.clock,
        };
        Duration::from_micros(at.saturating_sub(clock))
    }
}
