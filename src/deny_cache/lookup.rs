//! Lookups in the deny cache, and the denials that it learns from the store.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    cache::{Denials, decision},
    entry::{Known, Refresh},
};
use crate::{
    backend::BackendError,
    check::{Check, Purpose},
    decision::Decision,
};

/// The result of a lookup.
pub(crate) enum Lookup {
    /// The check is denied.
    Hit(Decision),
    /// The store must be asked, and the cache learns from its decision.
    Miss(Miss),
    /// The store must be asked, and its decision is not cached.
    Bypass,
}

/// A check that the store must be asked.
pub(crate) struct Miss {
    denials: Arc<Denials>,
    /// The refresh of the entries that deny the check, if there are any.
    refresh: Option<Refresh>,
}

/// A check that is being sent.
pub(crate) struct Sent {
    miss: Miss,
    at: Instant,
    invalidations: u64,
}

impl Denials {
    /// Looks up a check.
    pub(crate) fn lookup(self: &Arc<Self>, check: &Check) -> Lookup {
        if !matches!(check.purpose(), Purpose::Charge | Purpose::Reserve) {
            return Lookup::Bypass;
        }
        let Some(now) = self.now() else { return Lookup::Miss(Miss::new(self.clone(), None)) };
        let denied = self.denied(check, now);
        if denied.is_empty() {
            return Lookup::Miss(Miss::new(self.clone(), None));
        }
        // One entry that needs no refresh is enough.
        if denied.iter().all(|denied| denied.needs_refresh) {
            let entries = denied.iter().map(|denied| denied.entry.clone()).collect();
            if let Some(refresh) = Refresh::of(entries) {
                return Lookup::Miss(Miss::new(self.clone(), Some(refresh)));
            }
        }
        Lookup::Hit(decision(check, &denied, now))
    }
}

impl Miss {
    pub(super) fn new(denials: Arc<Denials>, refresh: Option<Refresh>) -> Self {
        Self { denials, refresh }
    }

    /// Marks the send time of the check. Call it right before sending: a denial is valid from here on.
    pub(crate) fn send(self) -> Sent {
        let invalidations = self.denials.invalidations();
        Sent { miss: self, at: Instant::now(), invalidations }
    }
}

impl Sent {
    /// Enters the denials of a decision. If a refresh gets no decision, it repeats the cached denial.
    pub(crate) fn learn(
        self,
        check: &Check,
        outcome: Result<Decision, BackendError>,
    ) -> Result<Decision, BackendError> {
        let Self { miss: Miss { denials, refresh }, at, invalidations } = self;
        let decision = match outcome {
            Ok(decision) => decision,
            Err(error) => return refresh.and_then(|_| denials.repeat(check)).ok_or(error),
        };
        for (pair, status) in decision.statuses_of(check).filter(|(pair, _)| pair.cost > 0) {
            if !status.retry_after().is_zero() {
                denials.enter(pair, Known::new(pair, status, at, decision.at_micros()), invalidations);
            } else if refresh.is_some() {
                denials.invalidate_if_denied(pair);
            }
        }
        Ok(decision)
    }
}
