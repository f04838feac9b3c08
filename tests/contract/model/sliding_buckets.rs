//! The reference model of sliding buckets. All times are in microseconds.

use super::account::{Charge, Counting};

pub struct SlidingBuckets {
    pub window: u64,
    pub precision: u64,
}

impl Counting for SlidingBuckets {
    fn window(&self) -> u64 {
        self.window
    }

    /// A charge after one of the next bucket belongs to that bucket, too.
    fn place(&self, charges: &[Charge], now: u64, is_ahead: bool) -> u64 {
        let own = if is_ahead && 2 * self.precision <= self.window { now + self.precision } else { now };
        let newest = charges.iter().filter(|charge| charge.units > 0).map(|charge| charge.at).max();
        newest.map_or(own, |newest| newest.max(own))
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        let end = (charged / self.precision + 1) * self.precision;
        u64::from(now < end + self.window)
    }
}
