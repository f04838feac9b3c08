//! The backend of [`RedisBackend`]: a check in one call, or in one call for each slot.

use std::sync::{Arc, atomic::Ordering};

use super::{RedisBackend, patience::Patience};
use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Refund},
    decision::Decision,
    guard::Protection,
    key::PartitionKey,
    observe::ServerBreaker,
};

/// The most pairs in one call of the refund script, so that it takes at most 1 ms of the server. Pairs are refunded independently.
const REFUND_PAIRS: usize = 4;

impl RedisBackend {
    /// Returns the indices of the partition keys by slot. None if one call is enough, or if this is not known to be a cluster.
    fn slots<'a>(&self, keys: impl ExactSizeIterator<Item = &'a PartitionKey>) -> Option<Vec<Vec<usize>>> {
        if keys.len() < 2 || !self.is_cluster.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.names.group_by_slot(keys)).filter(|slots| slots.len() > 1)
    }

    /// Returns the indices of the partition keys by slot after a CROSSSLOT error, by which nothing has run. From then on this is
    /// known to be a cluster.
    fn slots_after<'a, T>(
        &self,
        outcome: &Result<T, BackendError>,
        keys: impl ExactSizeIterator<Item = &'a PartitionKey>,
    ) -> Option<Vec<Vec<usize>>> {
        if !outcome.as_ref().is_err_and(|error| error.reason() == Reason::CrossSlot) {
            return None;
        }
        self.is_cluster.store(true, Ordering::Relaxed);
        self.slots(keys)
    }
}

impl Backend for RedisBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let keys = || check.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.slots(keys()) {
            Some(slots) => return Box::pin(self.check_in_slots(check, &slots)).await,
            None => self.check_in_slot(check, Patience::Caller).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => Box::pin(self.check_in_slots(check, &slots)).await,
            None => outcome,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        let keys = || refund.pairs().iter().map(|pair| &pair.key);
        let in_calls = |slots: &[Vec<usize>]| {
            slots
                .iter()
                .flat_map(|pairs| pairs.chunks(REFUND_PAIRS))
                .map(<[usize]>::to_vec)
                .collect::<Vec<_>>()
        };
        let count = refund.pairs().len();
        let outcome = match self.slots(keys()) {
            Some(slots) => return self.refund_in_slots(refund, &in_calls(&slots)).await,
            None if count <= REFUND_PAIRS => self.refund_in_slot(refund).await,
            None => self.refund_in_slots(refund, &in_calls(&[(0..count).collect()])).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => self.refund_in_slots(refund, &in_calls(&slots)).await,
            None => outcome,
        }
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let keys = || pairs.pairs().iter().map(|pair| &pair.key);
        let outcome = match self.slots(keys()) {
            Some(slots) => return self.reset_in_slots(pairs, &slots).await,
            None => self.reset_in_slot(pairs).await,
        };
        match self.slots_after(&outcome, keys()) {
            Some(slots) => self.reset_in_slots(pairs, &slots).await,
            None => outcome,
        }
    }

    /// Protects each server on its own. The strictest settings of the limiters that share this backend apply to all servers.
    fn protect(&self, protection: Protection) -> bool {
        self.topology.protect(protection);
        true
    }

    /// Returns the circuit breaker of each server. In a cluster, the first one is that of the look-ups of slots.
    fn breakers(&self) -> Vec<ServerBreaker> {
        self.topology.breakers()
    }

    /// Waits until all rollbacks have ended.
    async fn drain(&self) {
        self.rollbacks.drain().await;
    }

    /// Returns true on the server's own clock. A test may move an injected clock at any time.
    fn denials_hold(&self) -> bool {
        self.injected_micros().is_none()
    }

    /// Returns true on the server's own clock. A test may move an injected clock at any time.
    fn grants_leases(&self) -> bool {
        self.injected_micros().is_none()
    }

    fn store(&self) -> Option<String> {
        // Only clones share their count of unanswered checks.
        let store =
            self.topology.store().unwrap_or_else(|| format!("redis by {:p}", Arc::as_ptr(&self.unanswered)));
        // Backends with different secrets share no keys. A hash under the secret does not reveal it.
        let hash = || self.names.tag(&PartitionKey::new("", ""));
        Some(if self.names.has_secret() { format!("{store} under {}", hash()) } else { store })
    }
}
