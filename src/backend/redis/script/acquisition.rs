//! The acquisition of units in flight, in the arguments of a check. `lua/README.md` is the contract.

use super::types::typed;
use crate::{check::MAX_PAIRS, policy::Policy};

/// A parameter of at least this number is that of an acquisition.
const ACQUISITION: u64 = 1 << 44;
/// Added to it if the holder has no other number of the pair.
const ALONE: u64 = 1 << 43;
/// The bits of an index.
const INDEX_BITS: u32 = 17;
/// A holder has fewer numbers of a pair.
pub(crate) const MAX_NUMBERS: u32 = 1 << INDEX_BITS;
/// The lower bits of the identity of a holder, in the field of a window.
const ID_BITS: u32 = 48;

/// The numbers that a check acquires.
#[derive(Default)]
pub(crate) struct Acquisition {
    pub(crate) holder: u64,
    /// For each pair of the check, its number, and whether the holder has no other one of the pair. Without a meaning unless the pair is
    /// in flight and has a cost.
    pub(crate) numbers: [(HeldNumber, bool); MAX_PAIRS],
}

/// A number that a holder holds of a pair, and its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldNumber {
    pub(crate) index: u32,
    /// 0 is no number.
    pub(crate) number: u32,
    pub(crate) units: u32,
}

impl Acquisition {
    /// Adds the fields of the acquisition of a pair. A peek has no number, and needs none.
    pub(super) fn push(&self, pairs: &mut impl Extend<u8>, pair: usize, policy: &Policy) {
        let (number, is_alone) = self.numbers.get(pair).copied().unwrap_or_default();
        let upper_id = self.holder >> ID_BITS << INDEX_BITS;
        let place = upper_id | u64::from(number.index) | if is_alone { ALONE } else { 0 };
        pairs.extend(number.number.to_le_bytes());
        // In place of a cost.
        pairs.extend([0; 4]);
        pairs.extend(self.holder.to_le_bytes().into_iter().take(6));
        pairs.extend(typed(policy, ACQUISITION + place));
    }
}
