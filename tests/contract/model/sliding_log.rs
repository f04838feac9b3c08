//! The reference model of the sliding log. All times are in microseconds.

use super::account::Counting;

pub struct SlidingLog {
    pub window: u64,
}

impl Counting for SlidingLog {
    fn window(&self) -> u64 {
        self.window
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        u64::from(now < charged + self.window)
    }
}
