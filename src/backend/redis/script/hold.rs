//! Units in flight: the acquisition in a check, and the calls of the hold script. `lua/README.md` is the contract.

use redis::Value;

use super::{Call, Fields, NO_DEADLINE, Packed};
use crate::{
    backend::{BackendError, Reason, redis::keys::Keys},
    check::MAX_PAIRS,
    policy::in_flight_number,
};

/// A parameter of at least this number is that of an acquisition.
const ACQUISITION: u64 = 1 << 44;
/// The bits of an index.
const INDEX_BITS: u32 = 17;
/// A holder has fewer numbers of a pair.
pub(crate) const MAX_NUMBERS: u32 = 1 << INDEX_BITS;
/// The lower bits of the identity of a holder, in the field of a window.
const ID_BITS: u32 = 48;

/// The numbers that a check acquires.
#[derive(Clone, Copy)]
pub(crate) struct Acquisition {
    pub(crate) holder: u64,
    /// For each pair of the check, its number. Meaningless unless the pair is in flight and has a cost.
    pub(crate) numbers: [HeldNumber; MAX_PAIRS],
}

/// A number that a holder holds of a pair, and its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldNumber {
    pub(crate) index: u32,
    /// 0 is no number.
    pub(crate) number: u32,
    pub(crate) units: u32,
}

/// The changes of one pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldChanges {
    pub(crate) hold_micros: u64,
    pub(crate) renews: bool,
    pub(crate) releases: Vec<HeldNumber>,
    pub(crate) restores: Vec<HeldNumber>,
}

/// Adds the fields of an acquisition. A peek has none, and needs none.
pub(super) fn push_acquisition(pairs: &mut Packed, acquisition: Option<&Acquisition>, pair: usize) {
    let (holder, number) = acquisition.map_or_else(Default::default, |acquisition| {
        (acquisition.holder, acquisition.numbers.get(pair).copied().unwrap_or_default())
    });
    let place = holder >> ID_BITS << INDEX_BITS | u64::from(number.index);
    let typed = super::types::TYPE_UNIT * u64::from(in_flight_number()) + ACQUISITION + place;
    pairs.extend_from_slice(&number.number.to_le_bytes());
    // In place of a cost.
    pairs.extend_from_slice(&[0; 4]);
    pairs.extend_from_slice(&holder.to_le_bytes()[..6]);
    pairs.extend_from_slice(&typed.to_le_bytes()[..6]);
}

impl Call {
    /// Returns the call that changes what a holder holds of some pairs, each with its two keys. It has no deadline yet.
    pub(crate) fn hold<'a>(
        holder: u64,
        pairs: impl Iterator<Item = (&'a Keys, &'a HoldChanges)>,
        at_micros: Option<u64>,
    ) -> Self {
        let mut call = Self { pairs: Packed::from_slice(&NO_DEADLINE), at_micros, ..Self::default() };
        call.pairs.extend_from_slice(&holder.to_le_bytes());
        for (keys, changes) in pairs {
            call.keys.append(keys);
            call.changes.push(changes.to_bytes());
        }
        call
    }
}

impl HoldChanges {
    fn to_bytes(&self) -> Vec<u8> {
        let Self { hold_micros, renews, releases, restores } = self;
        let mut bytes = Vec::with_capacity(9 + 7 * releases.len() + 11 * restores.len());
        bytes.extend_from_slice(&hold_micros.to_le_bytes()[..6]);
        bytes.push((*renews).into());
        // At most 256 changes are in one call.
        bytes.extend_from_slice(&(releases.len() as u16).to_le_bytes());
        for HeldNumber { index, number, .. } in releases {
            bytes.extend_from_slice(&index.to_le_bytes()[..3]);
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for HeldNumber { index, number, units } in restores {
            bytes.extend_from_slice(&index.to_le_bytes()[..3]);
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&units.to_le_bytes());
        }
        bytes
    }
}

/// Parses the reply to a call of some pairs: for each one, the numbers that the store holds, or `None` if its changes were not made. They
/// are empty unless the pair was renewed.
pub(crate) fn lists(reply: &Value, pairs: usize) -> Result<Vec<Option<Vec<HeldNumber>>>, BackendError> {
    let broken = || BackendError::new(Reason::BrokenReply);
    let Value::BulkString(bytes) = reply else { return Err(broken()) };
    if super::is_deadline_exceeded(reply) {
        return Err(BackendError::new(Reason::DeadlineExceeded));
    }
    let mut fields = Fields(bytes);
    fields.u64().ok_or_else(broken)?;
    let mut list = || {
        let (is_made, size) = (fields.u8()? == 1, fields.u32()?);
        let numbers =
            fields.bytes(size as usize)?.chunks_exact(8).enumerate().filter_map(|(index, number)| {
                let mut fields = Fields(number);
                let (number, units) = (fields.u32()?, fields.u32()?);
                (number > 0).then_some(HeldNumber { index: index as u32, number, units })
            });
        Some(is_made.then(|| numbers.collect()))
    };
    let lists = (0..pairs).map(|_| list().ok_or_else(broken)).collect::<Result<_, _>>()?;
    if fields.0.is_empty() { Ok(lists) } else { Err(broken()) }
}
