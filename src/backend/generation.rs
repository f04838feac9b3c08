//! Generations: the random numbers that tell apart the lives of a pair.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// The number of bits of a generation.
const BITS: u32 = 56;

/// The generation of the charges of a pair in memory. The first receipt draws it, so that most pairs have none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Generation {
    /// No receipt states it.
    pub(super) const NONE: Self = Self(0);

    /// Returns the generation for a receipt.
    pub(super) fn get(&mut self, generations: &Generations) -> u64 {
        if *self == Self::NONE {
            self.0 = generations.draw();
        }
        self.0
    }

    /// Returns whether this is the generation of a receipt.
    pub(super) fn is(self, stated: u64) -> bool {
        self != Self::NONE && self.0 == stated
    }
}

/// A source of generations. Clones of a backend share one.
pub(super) struct Generations {
    /// Its keys come from the operating system.
    hasher: RandomState,
    /// How many generations were drawn.
    drawn: AtomicU64,
}

impl Generations {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), drawn: AtomicU64::new(0) }
    }

    /// Returns a random number of 56 bits.
    pub(super) fn draw(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.hasher.hash_one(drawn) >> (u64::BITS - BITS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sources_draw_different_numbers_of_56_bits() {
        let sources = [(); 4].map(|()| Generations::new());
        let drawn: Vec<u64> = (0..1_000).flat_map(|_| sources.iter().map(Generations::draw)).collect();
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 4_000);
        // Every bit is set in about half of the numbers.
        for bit in 0..u64::BITS {
            let set = drawn.iter().filter(|generation| *generation >> bit & 1 == 1).count();
            let expected = if bit < BITS { 1_700..2_300 } else { 0..1 };
            assert!(expected.contains(&set), "bit {bit} is set in {set} of 4,000");
        }
    }
}
