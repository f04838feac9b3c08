//! Lookups in the deny cache, and the denials that it learns from the store.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    cache::{Denied, DenyCache, decision},
    cached_pair::Denial,
    revalidation::Permission,
};
use crate::{
    check::{Check, Purpose},
    decision::Decision,
    error::BackendError,
};

/// The result of a lookup.
pub(crate) enum CacheLookup {
    /// The check is denied.
    Hit(Decision),
    /// The store must be asked, and the cache learns from its decision.
    Miss(CacheMiss),
    /// The store must be asked, and its decision is not cached.
    Bypass,
}

/// A check that the store must be asked.
pub(crate) struct CacheMiss {
    denials: Arc<DenyCache>,
    /// The permission to ask although a cached denial answers the check.
    permission: Option<Permission>,
}

/// A check that is being sent.
pub(crate) struct SentCheck {
    miss: CacheMiss,
    at: Instant,
    invalidations: u64,
}

impl DenyCache {
    /// Looks up a check.
    pub(crate) fn lookup(self: &Arc<Self>, check: &Check) -> CacheLookup {
        // Zero units are always admitted.
        if !matches!(check.purpose(), Purpose::Charge | Purpose::Reserve | Purpose::TakeUpTo(1..)) {
            return CacheLookup::Bypass;
        }
        let miss = |permission| CacheLookup::Miss(CacheMiss { denials: self.clone(), permission });
        let Some(now) = self.now() else { return miss(None) };
        let denied = self.denied(check, now, self.max_age);
        if denied.is_empty() {
            return miss(None);
        }
        let asks = |denied: &Denied<'_>| denied.entry.revalidation.clone();
        // One entry that needs no refresh is enough for the verdict. The wait is the longest, so it needs those of all pairs.
        let permission = if denied.iter().all(|denied| denied.found.is_old) {
            Permission::to_refresh(denied.iter().map(asks).collect(), now)
        } else {
            let unknown = denied.iter().filter(|denied| !denied.found.is_exact);
            Permission::to_ask(unknown.map(asks).collect(), now, self.max_age)
        };
        match permission {
            Some(_) => miss(permission),
            None => CacheLookup::Hit(decision(check, &denied, now)),
        }
    }
}

impl CacheMiss {
    /// Marks that the check is sent now, or later: a denial is valid from here on.
    pub(crate) fn send(self, now: Instant) -> SentCheck {
        let invalidations = self.denials.invalidations();
        SentCheck { miss: self, at: now, invalidations }
    }
}

impl SentCheck {
    /// Enters the denials of a decision. If the check gets no decision, repeats a known denial, of any age.
    pub(crate) fn learn(
        self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        let Self { miss: CacheMiss { denials, permission }, at, invalidations } = self;
        let decision = match outcome {
            Ok(decision) => decision,
            // The charges of this check are kept, because no denial was known when it was sent.
            Err(error) if check.hints.fails_open => return Err(error),
            Err(error) => return denials.repeat(check).ok_or(error),
        };
        for (pair, status) in decision.statuses_of(check).filter(|(pair, _)| pair.cost > 0) {
            if pair.is_shadow && !status.retry_after().is_zero() {
                // It was not charged, and its denial denies no check.
                continue;
            }
            if !status.retry_after().is_zero() {
                let sent = denials.micros(at);
                let denial = Denial::new(pair, status, sent, decision.at_micros(), decision.is_divided());
                denials.enter(pair, denial, invalidations, permission.as_ref());
            } else {
                denials.admitted(pair, &decision, permission.is_some());
            }
            if decision.is_admitted() {
                denials.charged(pair);
            }
        }
        Ok(decision)
    }
}
