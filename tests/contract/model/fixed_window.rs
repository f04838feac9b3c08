//! The reference model of the fixed window. All times are in microseconds.

use super::account::Counting;

pub struct FixedWindow {
    pub window: u64,
}

impl Counting for FixedWindow {
    fn window(&self) -> u64 {
        self.window
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        u64::from(now / self.window == charged / self.window)
    }
}
