//! The check of a draft.

use std::sync::Arc;

use super::{
    draft::{Against, Draft, Part, Rest},
    inner::{Limiter, LimiterSettings},
    rejection::Rejection,
};
use crate::{
    check::{Check, MAX_PAIRS, Pair},
    error::ConfigError,
    policy::distinct,
};

impl Limiter {
    /// Returns the check of a draft, or `None` if the draft is exempt.
    #[inline]
    pub(super) fn check_for_draft(&self, draft: Draft) -> Result<Option<Check>, ConfigError> {
        match draft {
            // The usual draft. The builder has validated the policies.
            Draft {
                first: Some(part @ Part { against: Against::Limiter | Against::LimiterAnd(None), .. }),
                rest: None,
                ..
            } if !self.policies().is_empty() => Ok(Some(self.check_for_key(part))),
            draft => self.check_for_parts(draft),
        }
    }

    /// Returns the check of any draft whose errors reject the request. Returns `None` if the request passes uncounted: the draft is
    /// exempt, or has shadow pairs only and cannot be a check.
    pub(super) fn check_to_admit(&self, draft: Draft) -> Result<Option<Check>, Rejection> {
        let (is_shadow, mut is_mistake) = (draft.is_shadow(), false);
        if let Some(error) = draft.rest.as_ref().and_then(|rest| rest.uncounted.as_ref()) {
            self.0.events.misconfigured_shadow(error);
            is_mistake = true;
        }
        let check = match self.check_for_draft(draft) {
            Ok(check) => check,
            // Shadow pairs reject no request.
            Err(error) if is_shadow => {
                self.0.events.misconfigured_shadow(&error);
                is_mistake = true;
                None
            }
            Err(error) => {
                self.0.events.misconfigured(&error);
                return Err(Rejection::Misconfigured(Arc::new(error)));
            }
        };
        // Another part may be a check, which counts as such.
        if is_mistake && check.is_none() {
            self.0.events.not_made();
        }
        Ok(check)
    }

    /// Returns the check of a key against all policies of the limiter, of which there is at least one.
    #[inline(always)]
    fn check_for_key(&self, Part { mut key, costs, is_shadow, .. }: Part) -> Check {
        let LimiterSettings { namespace, region, .. } = &self.0.settings;
        let policies = self.0.local_policies.local();
        if let Some(region) = region {
            key = region.and(&key);
        }
        self.0.events.unknown_policies(&costs, &**policies);
        let namespace = namespace.clone();
        match &**policies {
            [policy] => {
                let pair = Pair::for_policy(key, policy, &costs).shadow_if(is_shadow);
                Check::from_valid_pairs(namespace, [pair].into())
            }
            policies => {
                let pairs = Pair::for_policies(&key, policies, &costs).map(|pair| pair.shadow_if(is_shadow));
                Check::from_valid_pairs(namespace, pairs.collect())
            }
        }
    }

    fn check_for_parts(&self, draft: Draft) -> Result<Option<Check>, ConfigError> {
        let has_empty_list = draft.is_empty() && draft.rest.is_some();
        let Rest { others, pairs: mut all, uncounted } = draft.rest.map(|rest| *rest).unwrap_or_default();
        if has_empty_list && uncounted.is_none() {
            return Err(ConfigError::Pairs { given: 0, max: MAX_PAIRS });
        }
        let has_pairs_only_from_parts = all.is_empty();
        for Part { key, costs, against, is_shadow } in draft.first.iter().chain(&others) {
            let pairs =
                |policies| Pair::for_policies(key, policies, costs).map(|pair| pair.shadow_if(*is_shadow));
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
        if has_pairs_only_from_parts {
            distinct(&all.iter().map(|pair| pair.policy.clone()).collect::<Vec<_>>())?;
        }
        let LimiterSettings { namespace, region, .. } = &self.0.settings;
        if let Some(region) = region {
            for pair in &mut all {
                pair.key = region.and(&pair.key);
            }
        }
        Ok(Some(Check::new(all)?.in_namespace(namespace.clone())))
    }
}
