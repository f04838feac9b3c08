//! The reference model of sliding buckets. All times are in microseconds.

use super::account::Counting;

pub struct SlidingBuckets {
    pub window: u64,
    pub precision: u64,
}

impl Counting for SlidingBuckets {
    fn window(&self) -> u64 {
        self.window
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        let end = (charged / self.precision + 1) * self.precision;
        u64::from(now < end + self.window)
    }
}
