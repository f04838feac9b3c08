//! The units in flight that admitted checks hold in memory.

use std::sync::Arc;

use super::state::MemoryState;
use crate::{
    check::{Check, Receipt, Refund},
    decision::Decision,
    hold::Hold,
};

impl MemoryState {
    /// Returns a decision with the units that its check holds, if there are any. Their release refunds them.
    pub(super) fn with_hold(self: &Arc<Self>, check: &Check, decision: Decision) -> Decision {
        if !check.pairs().iter().any(|pair| pair.policy.properties().is_held) {
            return decision;
        }
        let held = decision.held_pairs(check);
        let refunds = held.map(|(_, pair, units)| pair.refund(Receipt::NO_CHARGE, units));
        let (state, refund) = (self.clone(), Refund::from_pairs(check.scope().clone(), refunds));
        if refund.pairs().is_empty() {
            return decision;
        }
        decision.with_hold(Hold::waking(move || {
            state.refund(&refund);
            // Also if a backend around this one drops the decision before a limiter has it.
            for pair in refund.pairs() {
                refund.scope().released(&pair.key, &pair.policy);
            }
        }))
    }
}
