//! How a limiter decides a check: in memory, from a lease, from the deny cache, or by the store.

use super::{
    Inner, Limiter, Settings,
    draft::Reserve,
    future::{self, Asking, CheckFuture, Terms, Waiting},
    outcome::{Admission, Rejection},
};
use crate::{
    backend::{BackendError, Reason},
    check::{AcrossSlots, Check, PairRef, Purpose},
    cost::Costs,
    decision::Decision,
    deny_cache::{Lookup, Miss},
    key::PartitionKey,
    lease,
    now_or_later::{BoxFuture, NowOrLater},
    observe,
    outage::OutageRule,
    policy::cost_of,
};

/// What learns from the decision of the store.
#[derive(Default)]
pub(super) struct Learning {
    lease: Option<lease::Miss>,
    denials: Option<Miss>,
}

impl Limiter {
    /// Asks for a decision, and for a reservation if `reserve` is given. If there is no decision, applies the given outage rule,
    /// or else the limiter's own. A check of shadow pairs only is then admitted.
    #[inline]
    pub(super) fn ask(&self, mut check: Check, reserve: Option<Reserve>, rule: Option<OutageRule>) -> Asking {
        let is_shadow = check.is_shadow();
        let rule = match rule.unwrap_or(self.0.settings.rule) {
            _ if is_shadow => OutageRule::FailOpen,
            rule => rule,
        };
        if reserve.is_some_and(|reserve| reserve.clamps) {
            check.clamp();
        }
        check.set_purpose(if reserve.is_some() { Purpose::Reserve } else { Purpose::Charge });
        match self.decide_now(&check) {
            // The usual case, which needs neither the outage rule nor the settlement queue.
            NowOrLater::Now(Some(Ok(decision))) if reserve.is_none() => {
                NowOrLater::now(future::of_decision(decision, || check.into_place()))
            }
            NowOrLater::Now(Some(decided)) => {
                let terms = Terms { rule, is_shadow, reserve };
                NowOrLater::now(future::outcome(decided, terms, Some((self, check))))
            }
            NowOrLater::Now(None) => NowOrLater::Now(None),
            NowOrLater::Later(learning) => {
                let is_kept = reserve.is_some() || matches!(rule, OutageRule::LocalFallback(_));
                let kept = is_kept.then(|| Box::new((self.clone(), check.clone())));
                let store = self.decide_later(check, learning, rule);
                NowOrLater::Later(Waiting { store, terms: Terms { rule, is_shadow, reserve }, kept })
            }
        }
    }

    /// Decides a request as [`decide_in_memory`](Self::decide_in_memory) does.
    #[inline]
    pub(super) fn admit_in_memory(
        &self,
        key: &PartitionKey,
        costs: &Costs,
        is_shadow: bool,
    ) -> Option<Result<Admission, Rejection>> {
        let decision = self.decide_in_memory(key, costs, is_shadow, Purpose::Charge)?;
        Some(future::of_decision(decision, || self.0.settings.namespace.clone()))
    }

    /// Decides the check of this key against all policies of the limiter.
    #[inline]
    pub(super) fn decide_own(&self, key: PartitionKey, costs: &Costs, purpose: Purpose) -> CheckFuture {
        if let Some(decision) = self.decide_in_memory(&key, costs, false, purpose) {
            return CheckFuture(NowOrLater::now(Ok(decision)));
        }
        CheckFuture(match self.own(key, costs) {
            Ok(check) => self.decide(check, purpose),
            Err(error) => NowOrLater::now(Err(error)),
        })
    }

    /// Decides the check of this key if the limiter has one policy, no region, and a memory backend. Returns `None` if not, or if the
    /// backend has no room. Then nothing was charged.
    #[inline]
    fn decide_in_memory(
        &self,
        key: &PartitionKey,
        costs: &Costs,
        is_shadow: bool,
        purpose: Purpose,
    ) -> Option<Decision> {
        let Inner { settings: Settings { policies, namespace, region, .. }, memory, events, .. } = &*self.0;
        let ([policy], None, Some(memory)) = (&policies[..], region, memory) else { return None };
        let cost = cost_of(policy, costs);
        let pair = PairRef { key, policy, cost, is_shadow: is_shadow || policy.is_shadow() };
        let decision = memory.decide_single(namespace, pair, purpose)?;
        events.unknown_policies(costs, policies);
        if purpose != Purpose::Peek {
            if cost > policy.quota_units() {
                observe::cost_above_quota(pair);
            }
            events.decision(&decision, || (!pair.is_shadow).then_some(key));
        }
        Some(decision)
    }

    /// Decides a check. Without a decision, the caller decides.
    #[inline]
    pub(super) fn decide(
        &self,
        mut check: Check,
        purpose: Purpose,
    ) -> NowOrLater<Result<Decision, BackendError>> {
        check.set_purpose(purpose);
        match self.decide_now(&check) {
            NowOrLater::Now(decided) => NowOrLater::Now(decided),
            NowOrLater::Later(learning) => {
                NowOrLater::Later(self.decide_later(check, learning, OutageRule::FailClosed))
            }
        }
    }

    /// Returns the decision if it is known without waiting, or else what learns from the decision of the store.
    #[inline(always)]
    fn decide_now(&self, check: &Check) -> NowOrLater<Result<Decision, BackendError>, Learning> {
        let engine = &self.0.engine;
        if check.purpose() != Purpose::Charge && !engine.can_change() {
            return NowOrLater::now(Err(BackendError::new(Reason::Unsupported)));
        }
        if check.purpose() != Purpose::Peek {
            for pair in check.pairs() {
                if pair.cost > pair.policy.quota_units() {
                    observe::cost_above_quota(pair.borrowed());
                }
            }
        }
        // Without a closure, so that the usual check calls no further function.
        if let Some(outcome) = engine.ask_now(check) {
            self.0.events.decided(check, &outcome, None);
            return NowOrLater::now(outcome);
        }
        let decided = |decision| {
            let outcome = Ok(decision);
            self.0.events.decided(check, &outcome, None);
            NowOrLater::now(outcome)
        };
        let lease = match self.0.leases.as_ref().map(|leases| leases.lookup(check)) {
            Some(lease::Lookup::Granted(decision)) => return decided(decision),
            Some(lease::Lookup::Miss(miss)) => Some(miss),
            Some(lease::Lookup::Bypass) | None => None,
        };
        let denials = match self.0.denials.as_ref().map(|denials| denials.lookup(check)) {
            Some(Lookup::Hit(decision)) => return decided(decision),
            Some(Lookup::Miss(miss)) => Some(miss),
            Some(Lookup::Bypass) | None => None,
        };
        NowOrLater::Later(Learning { lease, denials })
    }

    /// Asks the store for the decision. `learning` learns from it.
    fn decide_later(
        &self,
        mut check: Check,
        Learning { lease, denials: miss }: Learning,
        rule: OutageRule,
    ) -> BoxFuture<Result<Decision, BackendError>> {
        let Inner { settings, engine, guard, denials, on_rollback, events, .. } = &*self.0;
        if check.has_several_keys() {
            let denied = denials.as_ref().and_then(|denials| denials.denied_recently(&check));
            // If no answer comes, a known denial denies the check instead of the outage rule.
            let is_denied = denials.as_ref().is_some_and(|denials| denials.repeat(&check).is_some());
            check = check.with_across_slots(AcrossSlots {
                keeps_charges: rule == OutageRule::FailOpen && !is_denied,
                // Without a deny cache, no recent denial is known.
                peeks_first: denied.as_ref().is_none_or(|denied| !denied.is_empty()),
                denied: denied.unwrap_or_default(),
                on_rollback: on_rollback.clone(),
            });
        }
        let (engine, guard, events) = (engine.clone(), guard.clone(), events.clone());
        let ask = |check, deadline| engine.ask(check, deadline, guard, miss, events);
        match lease {
            Some(lease) => lease.ask(check, settings.deadline, ask),
            None => ask(check, settings.deadline),
        }
    }
}
