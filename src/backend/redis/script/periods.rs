//! The boundaries of calendar periods in the arguments of a check. `lua/README.md` is the contract.

use super::{
    pair_fields::{PAIR_SIZE, TYPE, WINDOW},
    types::{self, TYPE_UNIT},
};
use crate::policy::Policy;

const MINUTE: u64 = 60_000_000;
/// The factor of the length of the first period.
const PERIOD_UNIT: u64 = 1 << 24;

/// The pairs of a call with a calendar period, each with the offset of its fields.
#[derive(Clone, Default)]
pub(super) struct Periods(Vec<(usize, Policy)>);

impl Periods {
    /// Notes a pair whose fields begin here, if it has a calendar period.
    pub(super) fn note(&mut self, offset: usize, policy: &Policy) {
        if policy.properties().period_letter.is_some() {
            self.0.push((offset, policy.clone()));
        }
    }

    /// Writes the boundaries around an instant of the server's clock.
    pub(super) fn write(&self, fields: &mut [u8], clock: impl Fn() -> u64) {
        for (offset, policy) in &self.0 {
            let pair = fields.get_mut(*offset..).and_then(|rest| rest.first_chunk_mut::<PAIR_SIZE>());
            let (Some(pair), Some(boundaries)) = (pair, policy.boundaries_around(clock())) else { continue };
            let [first, middle, last] = boundaries.map(|micros| micros / MINUTE);
            let [before, after] = [middle - first, last - middle].map(|minutes| minutes.min(PERIOD_UNIT - 1));
            let window = before * PERIOD_UNIT + after;
            pair[WINDOW..TYPE].copy_from_slice(&window.to_le_bytes()[..TYPE - WINDOW]);
            pair[TYPE..].copy_from_slice(&types::typed(policy, middle.min(TYPE_UNIT - 1)));
        }
    }
}
