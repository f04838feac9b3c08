//! The units in flight that admitted checks hold in memory.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{any_count::AnyCount, state::MemoryState};
use crate::{
    check::{Check, Namespace, Pair, PairRef, Purpose},
    decision::{Decision, Status},
    hold::{Hold, ReleaseOnDrop},
};

/// The units that one admitted check holds.
struct MemoryUnits {
    state: Arc<MemoryState>,
    namespace: Namespace,
    pairs: SmallVec<[Pair; 1]>,
}

impl ReleaseOnDrop for MemoryUnits {
    fn was_interrupted(&self) -> bool {
        false
    }
}

impl Drop for MemoryUnits {
    fn drop(&mut self) {
        let Self { state, namespace, pairs } = self;
        state.change(
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
        for pair in &*pairs {
            namespace.released(&pair.key, &pair.policy);
        }
    }
}

impl MemoryState {
    /// Returns a decision with the units that its check holds, if there are any.
    pub(super) fn with_hold(self: &Arc<Self>, check: &Check, decision: Decision) -> Decision {
        if !check.pairs().iter().any(|pair| pair.policy.properties().is_held) {
            return decision;
        }
        let charged = decision.charged_check(check.clone());
        let pairs = decision.held_pairs(&charged).map(|(_, pair)| pair.clone()).collect();
        self.holding(check.scope(), pairs, decision)
    }

    /// Returns the decision of a check of one pair with the units that it holds, if there are any.
    #[inline]
    pub(super) fn with_single_hold(
        self: &Arc<Self>,
        namespace: &Namespace,
        pair: PairRef<'_>,
        purpose: Purpose,
        decision: Decision,
    ) -> Decision {
        let is_charged = |status: &Status| status.retry_after().is_zero() && purpose != Purpose::Peek;
        if !pair.policy.properties().is_held
            || !pair.is_chargeable(purpose)
            || !decision.statuses().iter().any(is_charged)
        {
            return decision;
        }
        let pair = Pair::new(pair.key.clone(), pair.policy.clone(), pair.cost);
        self.holding(namespace, [pair].into_iter().collect(), decision)
    }

    fn holding(
        self: &Arc<Self>,
        namespace: &Namespace,
        pairs: SmallVec<[Pair; 1]>,
        decision: Decision,
    ) -> Decision {
        if pairs.is_empty() {
            return decision;
        }
        let (state, namespace) = (self.clone(), namespace.clone());
        decision.with_hold(Hold::from_units(MemoryUnits { state, namespace, pairs }))
    }
}
