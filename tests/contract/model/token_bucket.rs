//! The reference model of the token bucket. All times are in microseconds.

use tower_sliding_window::policy::Rate;

use super::account::{Charge, Counting};

pub struct TokenBucket {
    pub capacity: u32,
    pub rate: Rate,
}

impl TokenBucket {
    /// Returns the units of the rate for each of this number of microseconds.
    fn returned(&self) -> u64 {
        u64::from(self.rate.units())
    }
}

impl Counting for TokenBucket {
    /// The time in which a full capacity returns.
    fn window(&self) -> u64 {
        (u64::from(self.capacity) * self.parts()).div_ceil(self.returned())
    }

    /// A microsecond returns as many parts as the rate has units.
    fn parts(&self) -> u64 {
        self.rate.period().as_micros() as u64
    }

    fn share(&self, _charged: u64, _now: u64) -> u64 {
        unreachable!("the units of a bucket have no owner")
    }

    fn used(&self, charges: &[Charge], now: u64) -> u64 {
        self.run(charges, now).0
    }

    /// An overage is at most the capacity beyond the capacity.
    fn limit(&self) -> u64 {
        2 * u64::from(self.capacity) * self.parts()
    }

    /// Returns the unused units, unless the bucket was full before a charge since.
    fn settle(&self, charges: &mut Vec<Charge>, index: usize, units: u64, _now: u64) {
        let last = charges[charges.len() - 1].clone();
        let (_, first) = self.run(charges, last.at);
        let (after, _) = self.run(&charges[..=index], charges[index].at);
        // At the bound, not all units were charged, so none are refunded.
        if index >= first && after < charges[index].limit {
            let refunded = charges[index].units - units;
            // At the instant of the last charge: at every later instant, the usage is the same as if the units returned then.
            charges.push(Charge { units: 0, refunded, ..last });
        }
    }
}

impl TokenBucket {
    /// Returns the usage at `now`, and the index of the first charge since the bucket was full.
    fn run(&self, charges: &[Charge], now: u64) -> (u64, usize) {
        let (mut used, mut at, mut first) = (0, 0, 0);
        for (index, charge) in charges.iter().enumerate() {
            used = self.refilled(used, charge.at - at);
            if used == 0 {
                first = index;
            }
            let after = charge.units.saturating_mul(self.parts()).saturating_add(used);
            used = if after <= charge.limit / 2 { after } else { after.min(charge.limit).max(used) };
            used = used.saturating_sub(charge.refunded * self.parts());
            at = charge.at;
        }
        (self.refilled(used, now.saturating_sub(at)), first)
    }

    fn refilled(&self, used: u64, passed: u64) -> u64 {
        used.saturating_sub(passed.saturating_mul(self.returned()))
    }
}
