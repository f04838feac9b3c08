//! The types of policies, as the scripts and the names of keys have them: one entry for each. `lua/README.md` is the contract.

use crate::policy::Algorithm;

/// The factor of the number of a type in its field of the arguments. A parameter is below it: at most a window.
const TYPE_UNIT: u64 = 1 << 45;

/// What the arguments, the names of keys and merged calls must know of a type.
pub(in crate::backend::redis) struct ScriptType {
    /// The letters of the units of a window in the name of a key, which also state the type. README.md, "Keys", has the units.
    pub(in crate::backend::redis) letters: &'static [u8; 6],
    /// Whether the statuses of equal checks differ in `remaining` alone, so that a merged call can decide them as one.
    pub(super) joins_equal_checks: bool,
    /// Returns the largest number of records that a pair stores, by quota, window and parameter.
    pub(super) max_records: fn(u64, u64, u64) -> u64,
}

/// The types by their numbers. `lua/decide.lua` and `lua/refund.lua` map the same numbers to functions.
static TYPES: [ScriptType; 4] = [
    // Sliding log.
    ScriptType { letters: b"dhmsiu", joins_equal_checks: true, max_records: |quota, _, _| quota },
    // Sliding buckets.
    ScriptType {
        letters: b"abcefg",
        joins_equal_checks: true,
        max_records: |_, window, precision| (window / precision.max(1)).saturating_add(2),
    },
    // Sliding counter.
    ScriptType { letters: b"jklnop", joins_equal_checks: false, max_records: |_, _, _| 1 },
    // Fixed window.
    ScriptType { letters: b"qrtvwx", joins_equal_checks: true, max_records: |_, _, _| 1 },
];

impl Algorithm {
    /// Returns the number of the type, and its parameter, which is 0 if it has none. Durations are in microseconds.
    fn numbered(self) -> (u8, u64) {
        match self {
            Self::SlidingLog => (0, 0),
            // A precision is at most the window.
            Self::SlidingBuckets { precision } => (1, precision.as_micros() as u64),
            Self::SlidingCounter => (2, 0),
            Self::FixedWindow => (3, 0),
        }
    }

    /// Returns the entry of the type.
    pub(in crate::backend::redis) fn script_type(self) -> &'static ScriptType {
        &TYPES[usize::from(self.numbered().0)]
    }

    /// Returns the parameter of the type: the precision of buckets, in microseconds. Returns 0 if the type has none.
    pub(in crate::backend::redis) fn script_parameter(self) -> u64 {
        self.numbered().1
    }

    /// Returns the number of the type and its parameter as one field of the arguments, of 6 bytes.
    pub(super) fn typed_parameter(self) -> [u8; 6] {
        let (number, parameter) = self.numbered();
        let [field @ .., _, _] = (u64::from(number) * TYPE_UNIT + parameter).to_le_bytes();
        field
    }
}

/// Returns the type and the parameter in a field of the arguments. Returns `None` if no type has this number.
pub(super) fn parse(field: u64) -> Option<(&'static ScriptType, u64)> {
    let number = usize::try_from(field / TYPE_UNIT).ok()?;
    TYPES.get(number).map(|script_type| (script_type, field % TYPE_UNIT))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, ptr, time::Duration};

    use super::*;

    #[test]
    fn arguments_have_type_and_parameter() {
        let precision = Duration::from_micros(TYPE_UNIT - 1);
        let all = [
            Algorithm::SlidingLog,
            Algorithm::SlidingBuckets { precision },
            Algorithm::SlidingCounter,
            Algorithm::FixedWindow,
        ];
        for algorithm in all {
            let [a, b, c, d, e, f] = algorithm.typed_parameter();
            let (script_type, parameter) = parse(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])).unwrap();
            assert!(ptr::eq(script_type, algorithm.script_type()), "{algorithm:?}");
            assert_eq!(parameter, algorithm.script_parameter());
        }
        assert!(parse(TYPES.len() as u64 * TYPE_UNIT).is_none());
        let letters: HashSet<u8> = TYPES.iter().flat_map(|script_type| *script_type.letters).collect();
        assert_eq!(letters.len(), 6 * TYPES.len());
    }
}
