//! The longest time that a merged call may take on the server. `lua/README.md` has the measurements.

use std::hash::{BuildHasher, BuildHasherDefault};

use super::PAIR_SIZE;
use crate::backend::redis::{
    mix_hasher::MixHasher,
    script::{Call, Fields, types},
};

/// The longest time of a merged call, in microseconds.
const MAX_MICROS: u64 = 2_000;

/// The longest time of a pair, in microseconds, by the number of records that its policy can store. Deep refunds make a search longer by
/// up to two fifths.
const MICROS_BY_RECORDS: [(u64, u64); 5] =
    [(128, 40), (1_024, 66), (4_096, 90), (65_536, 130), (u64::MAX, 290)];

/// How often the script decides equal checks: all at once, then those that fit, and then one that is denied.
const MAX_DECISIONS: u64 = 3;

/// What a check adds to a merged call.
#[derive(Clone, Copy)]
pub(crate) struct CheckTime {
    /// Equal checks have the same number. Others may have it, too.
    identity: u64,
    /// The longest time of a decision, in microseconds.
    micros: u64,
}

/// The longest time of the checks that share a call.
#[derive(Default)]
pub(crate) struct CallTime {
    micros: u64,
    /// The checks that differ, and how often each may be decided.
    decisions: Vec<(u64, u64)>,
}

impl CheckTime {
    pub(crate) fn from_call(check: &Call) -> Self {
        let identity = BuildHasherDefault::<MixHasher>::new().hash_one((&check.keys, check.fields()));
        let micros = check.fields().chunks_exact(PAIR_SIZE).map(longest_micros).sum();
        Self { identity, micros }
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }
}

impl CallTime {
    /// Returns whether the call may decide this check, too: whether it equals one of the call or fewer than `max_different` differ, and
    /// the call stays short.
    pub(crate) fn has_room(&self, check: CheckTime, max_different: Option<usize>) -> bool {
        let is_known = self.decisions.iter().any(|(identity, _)| *identity == check.identity);
        (is_known || max_different.is_none_or(|most| self.decisions.len() < most))
            && self.micros + self.more_decisions(check) * check.micros <= MAX_MICROS
    }

    pub(crate) fn add(&mut self, check: CheckTime) {
        let more = self.more_decisions(check);
        self.micros += more * check.micros;
        match self.decisions.iter_mut().find(|(identity, _)| *identity == check.identity) {
            Some((_, decisions)) => *decisions += more,
            None => self.decisions.push((check.identity, more)),
        }
    }

    /// Returns how many decisions a check adds. With the second of two equal checks, there may be three.
    fn more_decisions(&self, check: CheckTime) -> u64 {
        let known = self.decisions.iter().find(|(identity, _)| *identity == check.identity);
        known.map_or(1, |(_, decisions)| MAX_DECISIONS - decisions)
    }
}

/// Returns the longest time of a pair, by the fields of a check.
fn longest_micros(pair: &[u8]) -> u64 {
    let mut fields = Fields(pair);
    let quota = fields.u32().unwrap_or_default();
    // The cost has no effect.
    fields.u32();
    let window = fields.uint::<6>().unwrap_or_default();
    let typed = fields.uint::<6>().and_then(types::parse);
    let records = typed.map_or(u64::MAX, |(script_type, parameter)| {
        (script_type.max_records)(quota.into(), window, parameter)
    });
    let of_size = MICROS_BY_RECORDS.into_iter().find(|(most, _)| records <= *most);
    of_size.map_or(MAX_MICROS, |(_, micros)| micros)
}
