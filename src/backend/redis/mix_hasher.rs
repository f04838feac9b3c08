//! A hash that takes fewer instructions than that of the standard library, where equal hashes of different values do no harm.

use std::hash::Hasher;

/// Hashes bytes. Unless it begins with a random number, a client that chooses values can find different ones with the same hash.
#[derive(Default)]
pub(super) struct MixHasher(u64);

impl MixHasher {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn mix(&mut self, word: u64) {
        // The two halves of a product together depend on all bits of its factors.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for MixHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
