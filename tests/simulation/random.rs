//! A random number generator that depends only on its seed.

use std::{ops::Range, time::Duration};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a new generator whose numbers are independent of the later numbers of this one.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn between(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.between(range))
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.between(0..many) == 0
    }

    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.between(0..all.len() as u64) as usize].clone()
    }
}
