//! The count of a policy in flight: the units that requests hold. A release returns them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    any_count::AnyCount,
    count::{Count, Forecast, UsageReading},
    state::MemoryState,
};
use crate::{
    backend::generation::Generations,
    check::{Check, Namespace, Pair, PairRef, Purpose, Receipt},
    decision::{Decision, Status},
    hold::{HeldUnits, Hold},
    policy::Policy,
};

/// The units that requests of one partition key hold.
pub(super) struct InFlight {
    held: u64,
}

/// The held units at one instant.
#[derive(Clone, Copy)]
pub(super) struct InFlightReading {
    clock: u64,
    held: u64,
}

impl InFlight {
    fn release(&mut self, units: u32) {
        self.held = self.held.saturating_sub(units.into());
    }
}

impl Count for InFlight {
    const EMPTY: Self = Self { held: 0 };

    type Reading<'a> = InFlightReading;
    type Instant = InFlightReading;

    fn read(&self, clock: u64, _: &Policy) -> InFlightReading {
        InFlightReading { clock, held: self.held }
    }

    fn instant(reading: &InFlightReading) -> InFlightReading {
        *reading
    }

    fn charge(&mut self, _: InFlightReading, units: u32, _: &Generations) {
        self.held += u64::from(units);
    }

    fn receipt(&self, _: InFlightReading) -> Receipt {
        Receipt::NO_CHARGE
    }

    fn refund(&mut self, _: u64, _: &Policy, _: Receipt, _: u32) {}

    fn idle_at(&self, _: &Policy) -> u64 {
        if self.held > 0 { u64::MAX } else { 0 }
    }
}

impl UsageReading for InFlightReading {
    fn clock(&self) -> u64 {
        self.clock
    }

    fn used(&self) -> u64 {
        self.held
    }

    fn uses_at_most(&self, units: u64) -> bool {
        self.held <= units
    }

    fn has_room(&self) -> bool {
        true
    }

    /// It is not known.
    fn falls_to(&self, _: u64) -> u64 {
        u64::MAX
    }

    fn forecast(&self, units: u64, _: u64) -> Forecast {
        Forecast { used: self.held + units, next: self.clock, reset: self.clock }
    }
}

/// The units that one admitted check holds.
struct MemoryUnits {
    state: Arc<MemoryState>,
    namespace: Namespace,
    pairs: SmallVec<[Pair; 1]>,
}

impl HeldUnits for MemoryUnits {
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
            |partition, pair, _| {
                if let Some(stored) = partition.count_mut(namespace, &pair.policy)
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
