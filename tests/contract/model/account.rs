//! The reference model of one pair: a list of all its charges.

use std::{sync::Arc, time::Duration};

/// How a type of policy counts a charge.
pub trait Counting: Send + Sync {
    /// Returns the number of parts of a unit. It is 1 unless the type counts fractions of a unit.
    fn parts(&self) -> u64 {
        1
    }

    /// Returns how many parts of a unit that was charged at `charged` count at `now`.
    fn share(&self, charged: u64, now: u64) -> u64;
}

/// All charges of one pair, in order. No charge is removed.
#[derive(Clone)]
pub struct Account {
    window: u64,
    counting: Arc<dyn Counting>,
    charges: Vec<Charge>,
    /// The instant of the last charge, even after a refund.
    last: u64,
}

#[derive(Clone)]
struct Charge {
    id: usize,
    at: u64,
    /// In quota units, after settlement.
    units: u64,
}

impl Account {
    pub fn new(window: Duration, counting: Arc<dyn Counting>) -> Self {
        Self { window: window.as_micros() as u64, counting, charges: Vec::new(), last: 0 }
    }

    /// Returns the usage at this instant, in parts of a unit.
    pub fn used(&self, at: u64) -> u64 {
        if self.is_foreign(at) {
            return 0;
        }
        let now = at.max(self.last);
        self.charges.iter().map(|charge| charge.units * self.counting.share(charge.at, now)).sum()
    }

    /// Returns the number of parts of a unit.
    pub fn parts(&self) -> u64 {
        self.counting.parts()
    }

    /// Returns whether a cost fits into a quota.
    pub fn admits(&self, at: u64, cost: u32, quota: u32) -> bool {
        cost == 0 || self.used(at) + u64::from(cost) * self.parts() <= u64::from(quota) * self.parts()
    }

    pub fn charge(&mut self, at: u64, id: usize, cost: u32) {
        if self.is_foreign(at) {
            (self.charges, self.last) = (Vec::new(), 0);
        }
        let now = at.max(self.last);
        self.charges.push(Charge { id, at: now, units: u64::from(cost) });
        self.last = now;
    }

    /// Sets the amount of a charge to the used amount if the charge still counts.
    pub fn settle(&mut self, at: u64, id: usize, used: u32) {
        let now = at.max(self.last);
        let Some(index) = self.charges.iter().position(|charge| charge.id == id) else { return };
        if !self.is_foreign(at) && self.counting.share(self.charges[index].at, now) > 0 {
            self.charges[index].units = u64::from(used);
        }
    }

    /// Returns the shortest wait until `reached`. Usage never rises during a wait, so the condition then stays true.
    pub fn first(&self, now: u64, reached: impl Fn(u64) -> bool) -> Duration {
        // At that instant all charges have left the window.
        let (mut not_yet, mut then) = (now, now.max(self.last) + 3 * self.window);
        assert!(
            !reached(not_yet) && reached(then),
            "the condition holds at {then}, when all charges have left, and not at {not_yet}"
        );
        while then - not_yet > 1 {
            let middle = not_yet + (then - not_yet) / 2;
            if reached(middle) {
                then = middle;
            } else {
                not_yet = middle;
            }
        }
        Duration::from_micros(then - now)
    }

    /// Returns whether the clock is behind the last charge by more than a window.
    pub fn is_foreign(&self, at: u64) -> bool {
        self.last > at + self.window
    }
}
