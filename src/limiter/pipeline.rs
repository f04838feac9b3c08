//! The way of a check, from top to bottom: lease, deny cache, guard, backend, outage rule.

use std::{ops::ControlFlow, time::Duration};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    draft::UsualPart,
    future::Admitting,
    inner::{Limiter, LimiterInner},
    outage_rule::Terms,
};
use crate::{
    backend::MemoryBackend,
    check::{Check, Hints, MAX_PAIRS, Namespace, Purpose},
    cost::Costs,
    decision::{Decided, Decision},
    deny_cache::{CacheLookup, CacheMiss},
    error::BackendError,
    guard::before,
    lease::{LeaseLookup, LeaseMiss, RequestInFlight},
    now_or_later::{BoxFuture, NowOrLater},
    observe::DecidedPairs,
    outage::OutageRule,
    policy::Policy,
};

impl Limiter {
    /// Decides a check, and applies the outage rule if the backend makes no decision.
    #[inline]
    pub(super) fn admit_check(&self, check: Check, terms: Terms) -> Admitting {
        let fails_open = terms.rule == OutageRule::FailOpen;
        self.decide(check, fails_open, move |limiter, check, decided| terms.outcome(limiter, check, decided))
    }

    /// Decides a check: in this process, or else by the backend. `finish` makes the result from the decision or the error. `fails_open`
    /// states whether it admits a request without a decision.
    #[inline]
    pub(super) fn decide<T: 'static>(
        &self,
        mut check: Check,
        fails_open: bool,
        finish: impl FnOnce(&Self, Check, Decided) -> T + Send + 'static,
    ) -> NowOrLater<T> {
        let (lease, miss) = match self.decide_now(&check) {
            ControlFlow::Break(decided) => return NowOrLater::now(finish(self, check, decided)),
            ControlFlow::Continue(misses) => misses,
        };
        let (limiter, deadline) = (self.clone(), self.0.settings.deadline);
        NowOrLater::Later(Box::pin(async move {
            if check.has_several_keys() {
                check.hints = limiter.hints(&check, fails_open);
            }
            let decided = match lease {
                None => limiter.ask(&mut check, deadline, miss).await,
                Some(lease) => {
                    let limiter = limiter.clone();
                    let ask = move |mut check: Check, deadline| -> BoxFuture<Decided> {
                        Box::pin(async move { limiter.ask(&mut check, deadline, miss).await })
                    };
                    lease.ask(check.clone(), deadline, ask).await
                }
            };
            finish(&limiter, check, decided)
        }))
    }

    /// Decides a check without waiting. If the backend must be asked, continues with what learns from its answer.
    #[inline(always)]
    fn decide_now(&self, check: &Check) -> ControlFlow<Decided, (Option<LeaseMiss>, Option<CacheMiss>)> {
        let LimiterInner { backend, leases, deny_cache, events, .. } = &*self.0;
        let known = |decided: Decided| {
            events.decided(check, &decided, None);
            ControlFlow::Break(decided)
        };
        if check.purpose() != Purpose::Charge && !backend.changes_charges()
            || !self.0.holds_units && check.pairs().iter().any(|pair| pair.policy.properties().is_held)
        {
            return known(Err(BackendError::unsupported()));
        }
        if check.purpose().is_counted() {
            check.pairs().iter().for_each(|pair| events.cost_above_quota(pair.borrowed()));
        }
        // A backend that answers at once does not hang, so nothing protects it.
        if let Some(decided) = backend.check_now(check) {
            return known(decided);
        }
        let lease = match leases.as_ref().map(|leases| leases.lookup(check)) {
            Some(LeaseLookup::Granted(decision, requests)) => {
                requests.into_iter().for_each(|request| self.start_lease(request));
                return known(Ok(decision));
            }
            Some(LeaseLookup::Miss(miss)) => Some(miss),
            Some(LeaseLookup::Bypass) | None => None,
        };
        let denial = match deny_cache.as_ref().map(|cache| cache.lookup(check)) {
            Some(CacheLookup::Hit(decision)) => return known(Ok(decision)),
            Some(CacheLookup::Miss(miss)) => Some(miss),
            Some(CacheLookup::Bypass) | None => None,
        };
        ControlFlow::Continue((lease, denial))
    }

    /// Starts a lease request for which no check waits.
    #[cold]
    fn start_lease(&self, request: RequestInFlight) {
        let (limiter, deadline) = (self.clone(), self.0.settings.deadline);
        request.start(|mut check| Box::pin(async move { limiter.ask(&mut check, deadline, None).await }));
    }

    /// Asks the backend, behind the guard unless the backend guards its servers itself. The deny cache learns from the answer, and
    /// repeats a known denial if there is none.
    async fn ask(&self, check: &mut Check, deadline: Duration, miss: Option<CacheMiss>) -> Decided {
        let LimiterInner { backend, guard, events, .. } = &*self.0;
        let started = Instant::now();
        let sent = miss.map(|miss| miss.send(started));
        let deadline = started + deadline;
        check.deadline = Some(deadline);
        let asked = backend.check(check);
        let decided = match guard {
            Some(guard) => guard.clone().ask(check, deadline, asked).await,
            None => before(deadline, asked).await,
        };
        let was_asked = decided.as_ref().err().is_none_or(BackendError::was_asked);
        let decided = match sent {
            Some(sent) => sent.learn(check, decided),
            None => decided,
        };
        events.decided(check, &decided, was_asked.then_some(started));
        decided
    }

    /// Returns what a backend may need to know of a check of several keys.
    fn hints(&self, check: &Check, fails_open: bool) -> Hints {
        let deny_cache = self.0.deny_cache.as_ref();
        // If no answer comes, a known denial denies the check instead of the outage rule.
        let is_denied = || deny_cache.is_some_and(|cache| cache.repeat(check).is_some());
        Hints {
            may_wait: check.hints.may_wait,
            fails_open: fails_open && !is_denied(),
            recently_denied: deny_cache.and_then(|cache| cache.recently_denied(check)),
        }
    }

    /// Decides the usual part of a draft as [`decide`](Self::decide) does. Returns `None` if the limiter has no memory, the key is long, or
    /// the memory has no room for it. Then nothing was charged. This usual check has no list of pairs on the heap.
    #[inline(always)]
    pub(super) fn decide_part_now(&self, part: UsualPart<'_>, purpose: Purpose) -> Option<Decision> {
        let UsualPart { key, costs, .. } = part;
        let LimiterInner { settings, local_policies, pair_backend: Some(backend), events, .. } = &*self.0
        else {
            return None;
        };
        let (namespace, policies) = (&settings.namespace, local_policies.local());
        let decided = match &**policies {
            [policy] => backend.check_key_now(namespace, &[part.pair(policy)], purpose),
            policies => check_several_now(backend, namespace, part, policies, purpose),
        };
        if let Some(decision) = &decided {
            if let Some(costs) = costs {
                self.report_costs(part, costs, purpose);
            }
            if purpose != Purpose::Peek {
                events.decision(decision, DecidedPairs::OfKey(key));
            }
        }
        decided
    }

    /// Reports costs that are mistakes. One unit of each policy is none. It is no part of the usual check, which must stay short.
    #[inline(never)]
    fn report_costs(&self, part: UsualPart<'_>, costs: &Costs, purpose: Purpose) {
        let LimiterInner { local_policies, events, .. } = &*self.0;
        let policies = &**local_policies.local();
        events.unknown_policies(costs, policies);
        if purpose != Purpose::Peek {
            policies.iter().for_each(|policy| events.cost_above_quota(part.pair(policy)));
        }
    }
}

/// Decides a part against several policies. Its list would make the code for one policy slower.
#[inline(never)]
fn check_several_now(
    backend: &MemoryBackend,
    namespace: &Namespace,
    part: UsualPart<'_>,
    policies: &[Policy],
    purpose: Purpose,
) -> Option<Decision> {
    let pairs: SmallVec<[_; MAX_PAIRS]> = policies.iter().map(|policy| part.pair(policy)).collect();
    backend.check_key_now(namespace, &pairs, purpose)
}
