//! The reference model of one pair: a list of all its charges.

use std::{sync::Arc, time::Duration};

/// How a type of policy counts charges.
pub trait Counting: Send + Sync {
    /// Returns how far the clock may be behind the last charge, in microseconds.
    fn window(&self) -> u64;

    /// Returns the same, if the last charge was at `last`.
    fn window_of(&self, _last: u64) -> u64 {
        self.window()
    }

    /// Returns the instant at which more remains if nothing is used at `at`, if it is not one window later.
    fn next_of_unused(&self, _at: u64) -> Option<u64> {
        None
    }

    /// Returns the number of parts of a unit. It is 1 unless the type counts fractions of a unit.
    fn parts(&self) -> u64 {
        1
    }

    /// Returns how many parts of a unit that was charged at `charged` count at `now`, if they do not depend on other charges.
    fn share(&self, charged: u64, now: u64) -> u64;

    /// Returns the instant at which a charge at `now` counts as charged. `is_ahead` is whether it is of the next bucket.
    fn place(&self, _charges: &[Charge], now: u64, _is_ahead: bool) -> u64 {
        now
    }

    /// Returns the usage at `now`, in parts of a unit.
    fn used(&self, charges: &[Charge], now: u64) -> u64 {
        charges.iter().map(|charge| charge.units * self.share(charge.at, now)).sum()
    }

    /// Returns the largest usage after an overage, in parts of a unit.
    fn limit(&self) -> u64 {
        u64::MAX
    }

    /// Settles the charge with this index to these units at `now`, if it still counts.
    fn settle(&self, charges: &mut Vec<Charge>, index: usize, units: u64, now: u64) {
        if self.share(charges[index].at, now) > 0 {
            charges[index].units = units;
        }
    }
}

/// All charges of one pair, in order. No charge is removed.
#[derive(Clone)]
pub struct Account {
    pub counting: Arc<dyn Counting>,
    charges: Vec<Charge>,
    /// The instant of the last charge, even after a refund.
    last: u64,
}

#[derive(Clone)]
pub struct Charge {
    pub id: usize,
    pub at: u64,
    /// In quota units, after settlement.
    pub units: u64,
    /// The units that were refunded at this instant instead, if the type changes no charge of the past.
    pub refunded: u64,
    /// The largest usage after an overage, in parts of a unit, as of this charge.
    pub limit: u64,
}

impl Account {
    pub fn new(counting: Arc<dyn Counting>) -> Self {
        Self { counting, charges: Vec::new(), last: 0 }
    }

    /// Returns the usage at this instant, in parts of a unit.
    pub fn used(&self, at: u64) -> u64 {
        if self.is_foreign(at) {
            return 0;
        }
        let now = at.max(self.last);
        self.counting.used(&self.charges, now)
    }

    /// Returns the number of parts of a unit.
    pub fn parts(&self) -> u64 {
        self.counting.parts()
    }

    /// Returns whether a cost fits into a quota.
    pub fn admits(&self, at: u64, cost: u32, quota: u32) -> bool {
        let fits = |free: u32| self.used(at) <= u64::from(free) * self.parts();
        cost == 0 || quota.checked_sub(cost).is_some_and(fits)
    }

    pub fn charge(&mut self, at: u64, id: usize, cost: u32, is_ahead: bool) {
        if self.is_foreign(at) {
            (self.charges, self.last) = (Vec::new(), 0);
        }
        let now = at.max(self.last);
        self.charges.push(Charge {
            id,
            at: self.counting.place(&self.charges, now, is_ahead),
            units: u64::from(cost),
            refunded: 0,
            limit: self.counting.limit(),
        });
        self.last = now;
    }

    /// Sets the amount of a charge to the used amount if the charge still counts.
    pub fn settle(&mut self, at: u64, id: usize, used: u32) {
        let now = at.max(self.last);
        let Some(index) = self.charges.iter().position(|charge| charge.id == id) else { return };
        if !self.is_foreign(at) {
            self.counting.settle(&mut self.charges, index, u64::from(used), now);
        }
    }

    /// Returns the shortest wait until `reached`. Usage never rises during a wait, so the condition then stays true.
    pub fn first(&self, now: u64, reached: impl Fn(u64) -> bool) -> Duration {
        // At that instant all charges have left the window. Under a smaller capacity, a token bucket takes longer.
        let windows = [3, 1 << 33].map(|windows| self.counting.window().saturating_mul(windows).min(1 << 62));
        let mut ends = windows.into_iter().map(|wait| now.max(self.last) + wait).filter(|at| reached(*at));
        let (mut not_yet, then) = (now, ends.next());
        assert!(
            !reached(not_yet) && then.is_some(),
            "the condition holds when all charges have left, and not at {now}"
        );
        let mut then = then.unwrap();
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

    /// Returns how long it takes until more remains, if nothing is used and the type has no window.
    pub fn next_of_unused(&self, at: u64) -> Option<Duration> {
        let now = if self.is_foreign(at) { at } else { at.max(self.last) };
        self.counting.next_of_unused(now).map(|next| Duration::from_micros(next - at))
    }

    /// Returns whether the clock is behind the last charge by more than a window.
    pub fn is_foreign(&self, at: u64) -> bool {
        self.last > at && self.last > at + self.counting.window_of(self.last)
    }
}
