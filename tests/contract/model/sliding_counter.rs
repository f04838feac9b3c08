//! The reference model of the sliding counter. All times are in microseconds.

use super::account::Counting;

pub struct SlidingCounter {
    pub window: u64,
}

impl Counting for SlidingCounter {
    fn window(&self) -> u64 {
        self.window
    }

    fn parts(&self) -> u64 {
        self.window.div_ceil(self.tick())
    }

    fn share(&self, charged: u64, now: u64) -> u64 {
        match now / self.window - charged / self.window {
            0 => self.parts(),
            1 => self.parts() - now % self.window / self.tick(),
            _ => 0,
        }
    }
}

impl SlidingCounter {
    fn tick(&self) -> u64 {
        self.window.div_ceil(1 << 20)
    }
}
