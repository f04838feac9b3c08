//! The units in flight that admitted checks hold in memory.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{any_count::AnyCount, state::MemoryState};
use crate::{
    check::{Check, Namespace, Pair},
    decision::Decision,
    hold::Hold,
};

impl MemoryState {
    /// Returns a decision with the units that its check holds, if there are any.
    pub(super) fn with_hold(self: &Arc<Self>, check: &Check, decision: Decision) -> Decision {
        if !check.pairs().iter().any(|pair| pair.policy.properties().is_held) {
            return decision;
        }
        let charged = decision.charged_check(check.clone());
        let pairs: SmallVec<[Pair; 1]> =
            decision.held_pairs(&charged).map(|(_, pair)| pair.clone()).collect();
        if pairs.is_empty() {
            return decision;
        }
        let (state, namespace) = (self.clone(), charged.scope().clone());
        decision.with_hold(Hold::new(move || state.release(&namespace, &pairs)))
    }

    fn release(&self, namespace: &Namespace, pairs: &[Pair]) {
        self.change(
            pairs,
            |pair| &pair.key,
            |shard, key, pair, _| {
                if let Some(stored) = shard.large_count_mut(key, namespace, &pair.policy)
                    && let AnyCount::InFlight(count, _) = &mut stored.count
                {
                    count.release(pair.cost);
                }
            },
        );
        for pair in pairs {
            namespace.released(&pair.key, &pair.policy);
        }
    }
}
