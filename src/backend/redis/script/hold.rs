//! The calls of the hold script. `lua/README.md` is the contract.

use std::sync::Arc;

use redis::Value;

use super::{Call, NO_DEADLINE, Packed, acquisition::HeldNumber, fields::Fields, fields_of};
use crate::backend::{BackendError, Reason, redis::keys::Keys};

/// The changes of one pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldChanges {
    pub(crate) hold_micros: u64,
    pub(crate) renews: bool,
    /// The units that the entry has beyond its numbers. They are subtracted.
    pub(crate) surplus: i32,
    pub(crate) releases: Vec<HeldNumber>,
    pub(crate) restores: Vec<HeldNumber>,
}

/// What the store holds of a pair for this process.
pub(crate) struct HeldList {
    /// The units of the entry.
    pub(crate) units: u32,
    /// Empty unless the pair was renewed.
    pub(crate) numbers: Vec<HeldNumber>,
}

impl Call {
    /// Returns the call that changes what a holder holds of some pairs, each with its two keys. It has no deadline yet.
    pub(crate) fn hold(holder: u64, pairs: &[(Arc<Keys>, HoldChanges)], at_micros: Option<u64>) -> Arc<Self> {
        let mut call = Self { pairs: Packed::from_slice(&NO_DEADLINE), at_micros, ..Self::default() };
        call.pairs.extend_from_slice(&holder.to_le_bytes());
        for (keys, changes) in pairs {
            call.keys.append(keys);
            call.changes.push(changes.to_bytes());
        }
        Arc::new(call)
    }
}

impl HoldChanges {
    fn to_bytes(&self) -> Vec<u8> {
        let Self { hold_micros, renews, surplus, releases, restores } = self;
        let mut bytes = Vec::with_capacity(13 + 7 * releases.len() + 11 * restores.len());
        bytes.extend_from_slice(&hold_micros.to_le_bytes()[..6]);
        bytes.push((*renews).into());
        bytes.extend_from_slice(&surplus.to_le_bytes());
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

/// Parses the reply to a call of some pairs: for each one, what the store holds, or `None` if its changes were not made.
pub(crate) fn lists(reply: &Value, pairs: usize) -> Result<Vec<Option<HeldList>>, BackendError> {
    let broken = || BackendError::new(Reason::BrokenReply);
    let mut fields = fields_of(reply)?;
    fields.u64().ok_or_else(broken)?;
    let mut list = || {
        let (is_made, units, size) = (fields.u8()? == 1, fields.u32()?, fields.u32()?);
        let numbers =
            fields.bytes(size as usize)?.chunks_exact(8).enumerate().filter_map(|(index, number)| {
                let mut fields = Fields(number);
                let (number, units) = (fields.u32()?, fields.u32()?);
                (number > 0).then_some(HeldNumber { index: index as u32, number, units })
            });
        Some(is_made.then(|| HeldList { units, numbers: numbers.collect() }))
    };
    let lists = (0..pairs).map(|_| list().ok_or_else(broken)).collect::<Result<_, _>>()?;
    if fields.0.is_empty() { Ok(lists) } else { Err(broken()) }
}
