//! The reference: what a decision means, written down as plainly as it can be, and slow.

use std::{collections::HashMap, time::Duration};

use tower_sliding_window::{Check, Decision, Pair, PartitionKey, Status, Wait};

/// All charges there ever were, by pair. Nothing is cleaned up.
#[derive(Default)]
pub struct Model {
    logs: HashMap<(PartitionKey, String, Duration), Log>,
    /// How often a log was found to be of another clock, and dropped.
    pub foreign: usize,
}

/// The charges of one pair, oldest first, as instant and cost.
#[derive(Clone)]
struct Log {
    window: u64,
    charges: Vec<(u64, u64)>,
}

impl Model {
    /// Decides at the instant `now`, in microseconds, and charges if it admits.
    pub fn check(&mut self, now: u64, check: &Check) -> Decision {
        let decision = self.peek(now, check);
        if decision.is_admitted() {
            for pair in check.pairs().iter().filter(|pair| pair.cost > 0) {
                let log = self.log(pair);
                self.foreign += usize::from(log.is_foreign(now));
                self.logs.insert(key(pair), log.charged(now, pair.cost));
            }
        }
        decision
    }

    /// What `check` would decide.
    pub fn peek(&self, now: u64, check: &Check) -> Decision {
        let admitted = check.pairs().iter().all(|pair| self.log(pair).admits(now, pair));
        let statuses: Vec<Status> =
            check.pairs().iter().map(|pair| self.status(now, pair, admitted)).collect();
        Decision::new(now, statuses)
    }

    /// Whether a log of this check is of another clock.
    pub fn sees_foreign(&self, now: u64, check: &Check) -> bool {
        check.pairs().iter().any(|pair| self.log(pair).is_foreign(now))
    }

    fn status(&self, now: u64, pair: &Pair, admitted: bool) -> Status {
        let before = self.log(pair);
        let after = if admitted && pair.cost > 0 { before.charged(now, pair.cost) } else { before.clone() };

        let retry_after = if before.admits(now, pair) {
            Wait::ZERO
        } else if pair.cost > pair.policy.quota() {
            Wait::Never
        } else {
            Wait::For(before.first(now, |at| before.admits(at, pair)))
        };
        let (next_after, reset_after) = match after.used(now) {
            0 => (pair.policy.window(), Duration::ZERO),
            used => {
                (after.first(now, |at| after.used(at) < used), after.first(now, |at| after.used(at) == 0))
            }
        };
        let remaining = u64::from(pair.policy.quota()).saturating_sub(after.used(now)) as u32;
        Status::new(pair, remaining, retry_after, next_after, reset_after)
    }

    fn log(&self, pair: &Pair) -> Log {
        let new = || Log { window: pair.policy.window().as_micros() as u64, charges: Vec::new() };
        self.logs.get(&key(pair)).cloned().unwrap_or_else(new)
    }
}

impl Log {
    fn admits(&self, at: u64, pair: &Pair) -> bool {
        pair.cost == 0 || self.used(at) + u64::from(pair.cost) <= u64::from(pair.policy.quota())
    }

    /// The sum of all costs whose charge is younger than a window.
    fn used(&self, at: u64) -> u64 {
        if self.is_foreign(at) {
            return 0;
        }
        let now = self.stands_at(at);
        let counts = |(charged, _): &&(u64, u64)| *charged <= now && now < charged + self.window;
        self.charges.iter().filter(counts).map(|(_, cost)| cost).sum()
    }

    fn charged(&self, at: u64, cost: u32) -> Self {
        let mut log = self.clone();
        if log.is_foreign(at) {
            log.charges.clear();
        }
        log.charges.push((log.stands_at(at), u64::from(cost)));
        log
    }

    /// The smallest wait until `reached`. Usage changes only when a charge leaves.
    fn first(&self, now: u64, reached: impl Fn(u64) -> bool) -> Duration {
        let leaves = self.charges.iter().map(|(charged, _)| charged + self.window);
        let first = leaves.filter(|at| *at > now && reached(*at)).min();
        Duration::from_micros(first.expect("everything leaves") - now)
    }

    /// The instant as this log sees it: time stands still at its last charge until the clock has caught up.
    fn stands_at(&self, at: u64) -> u64 {
        self.charges.last().map_or(at, |(last, _)| at.max(*last))
    }

    /// Whether the clock is behind the last charge by more than a window.
    fn is_foreign(&self, at: u64) -> bool {
        self.charges.last().is_some_and(|(last, _)| *last > at + self.window)
    }
}

fn key(pair: &Pair) -> (PartitionKey, String, Duration) {
    (pair.key.clone(), pair.policy.name().to_owned(), pair.policy.window())
}
