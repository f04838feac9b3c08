//! The checks that a limiter makes: of a key, of pairs, and of a draft.

use std::sync::Arc;

use super::{
    Limiter, Settings,
    draft::{Against, Draft, Part, Reserve, Rest},
    outcome::Rejection,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, MAX_PAIRS, Pair},
    cost::Costs,
    error::ConfigError,
    key::PartitionKey,
    policy::{distinct, pair, pairs},
};

impl Limiter {
    /// Returns the check of this key against all policies of the limiter.
    #[inline]
    pub(super) fn own(&self, key: PartitionKey, costs: &Costs) -> Result<Check, BackendError> {
        if self.policies().is_empty() {
            return Err(BackendError::with_source(Reason::Other, ConfigError::NoPolicies { max: MAX_PAIRS }));
        }
        Ok(self.of_limiter(key, costs, false))
    }

    /// Returns the check of this key against the policies of the limiter, of which there is at least one.
    #[inline(always)]
    pub(super) fn of_limiter(&self, mut key: PartitionKey, costs: &Costs, is_shadow: bool) -> Check {
        let Settings { policies, namespace, region, .. } = &self.0.settings;
        if let Some(region) = region {
            key = region.and(&key);
        }
        self.0.events.unknown_policies(costs, policies);
        let namespace = namespace.clone();
        match &policies[..] {
            [policy] => Check::of_pair(namespace, pair(key, policy, costs).shadow_if(is_shadow)),
            policies => {
                let pairs = pairs(&key, policies, costs).map(|pair| pair.shadow_if(is_shadow));
                Check::of_limiter(namespace, pairs)
            }
        }
    }

    /// Returns the check of these pairs.
    pub(super) fn of_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<Check, ConfigError> {
        let mut pairs = pairs.into();
        if let Some(region) = &self.0.settings.region {
            for pair in &mut pairs {
                pair.key = region.and(&pair.key);
            }
        }
        Ok(Check::new(pairs)?.in_namespace(self.0.settings.namespace.clone()))
    }

    /// Returns the check of any draft. Returns `None` if the request passes uncounted: the draft is exempt, or has shadow pairs only and
    /// cannot be a check.
    pub(super) fn counted(&self, draft: Draft) -> Option<Result<Check, Rejection>> {
        let is_shadow = draft.is_shadow();
        if let Some(error) = draft.rest.as_ref().and_then(|rest| rest.uncounted.as_ref()) {
            self.0.events.misconfigured_shadow(error);
        }
        match self.check_of(draft) {
            Ok(check) => check.map(Ok),
            // Shadow pairs reject no request.
            Err(error) if is_shadow => {
                self.0.events.misconfigured_shadow(&error);
                None
            }
            Err(error) => {
                self.0.events.misconfigured(&error);
                Some(Err(Rejection::Misconfigured(Arc::new(error))))
            }
        }
    }

    /// Returns the check of a draft, or `None` if the draft is exempt.
    fn check_of(&self, draft: Draft) -> Result<Option<Check>, ConfigError> {
        let Rest { others, pairs: mut all, .. } = draft.rest.map(|rest| *rest).unwrap_or_default();
        let of_parts_only = all.is_empty();
        for Part { key, costs, against, is_shadow } in draft.first.iter().chain(&others) {
            let pairs = |policies| pairs(key, policies, costs).map(|pair| pair.shadow_if(*is_shadow));
            if *against == Against::Limiter && self.policies().is_empty() {
                return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
            }
            if !matches!(against, Against::Only(_)) {
                all.extend(pairs(self.policies()));
            }
            if let Against::LimiterAnd(Some(policies)) | Against::Only(policies) = against {
                all.extend(pairs(policies.as_slice()));
            }
        }
        for Part { costs, .. } in draft.first.iter().chain(&others) {
            self.0.events.unknown_policies(costs, all.iter().map(|pair| &pair.policy));
        }
        if all.is_empty() {
            return Ok(None);
        }
        if of_parts_only {
            distinct(&all.iter().map(|pair| pair.policy.clone()).collect::<Vec<_>>())?;
        }
        self.of_pairs(all).map(Some)
    }

    /// Returns how a draft reserves, or `None` for a plain charge.
    #[inline]
    pub(super) fn reserve_of(&self, draft: &Draft) -> Option<Reserve> {
        let own = self.0.settings.reserve;
        let unsettled = draft.unsettled.unwrap_or(own.unsettled);
        draft.reserves.then_some(Reserve { unsettled, clamps: draft.clamps || own.clamps })
    }
}
