//! The pairs of a decision: which key a denial, or a shadow pair without room, belongs to.

use std::ptr;

use crate::{
    check::Check,
    decision::{Decision, Status},
    key::PartitionKey,
};

/// The pairs that a decision was made for.
#[derive(Clone, Copy)]
pub(crate) enum DecidedPairs<'a> {
    /// All pairs have this key.
    OfKey(&'a PartitionKey),
    Check(&'a Check),
}

impl<'a> DecidedPairs<'a> {
    /// Returns the key of the enforcing pair with the longest wait, for which a denied client waits. Several pairs may have the same
    /// policy.
    pub(super) fn denied_key(self, decision: &Decision) -> Option<&'a PartitionKey> {
        let check = match self {
            Self::OfKey(key) => return Some(key),
            Self::Check(check) => check,
        };
        // The usual case.
        if let ([pair], [_]) = (check.pairs(), decision.statuses()) {
            return (!pair.is_shadow).then_some(&pair.key);
        }
        let longest = decision.longest_wait()?;
        let (i, _) = decision.indexed_statuses().find(|(_, status)| ptr::eq(*status, longest))?;
        check.pairs().get(i).map(|pair| &pair.key)
    }

    /// Calls `each` with every status of a shadow pair without room, and with the key of the pair.
    pub(super) fn each_shadow_denied<'d>(
        self,
        decision: &'d Decision,
        mut each: impl FnMut(&'a PartitionKey, &'d Status),
    ) {
        for (i, status) in decision.indexed_statuses() {
            let key = match self {
                Self::OfKey(key) => Some(key),
                Self::Check(check) => check.pairs().get(i).map(|pair| &pair.key),
            };
            if let Some(key) = key
                && status.denies_in_shadow()
            {
                each(key, status);
            }
        }
    }
}
