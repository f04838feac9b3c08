//! A backend without its type, with the same verbs.

use std::{future::Future, pin::Pin};

use super::Backend;
use crate::{
    check::{Check, Pair, Purpose, Refund, ReleasedPairs},
    decision::Decision,
    error::{BackendError, Reason},
    guard::Protection,
    observe::ServerBreaker,
};

type Borrowing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A [`Backend`] without its type. Its decisions are complete: they have what a limiter needs of them.
pub(crate) trait DynBackend: Send + Sync {
    fn check<'a>(&'a self, check: &'a Check) -> Borrowing<'a, Result<Decision, BackendError>>;
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>>;
    fn changes_charges(&self) -> bool;
    fn refund<'a>(&'a self, refund: &'a Refund) -> Borrowing<'a, Result<u64, BackendError>>;
    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>>;
    fn reset<'a>(&'a self, pairs: &'a Check) -> Borrowing<'a, Result<(), BackendError>>;
    fn reset_now(&self, pairs: &Check) -> Option<Result<(), BackendError>>;
    fn denials_hold(&self) -> bool;
    fn grants_leases(&self) -> bool;
    fn holds_units(&self) -> bool;
    fn protect(&self, protection: Protection) -> bool;
    fn breakers(&self) -> Vec<ServerBreaker>;
    fn drain(&self) -> Borrowing<'_, ()>;
    fn store(&self) -> Option<String>;
}

impl<B: Backend> DynBackend for B {
    fn check<'a>(&'a self, check: &'a Check) -> Borrowing<'a, Result<Decision, BackendError>> {
        Box::pin(async { complete(check, Backend::check(self, check).await) })
    }

    #[inline]
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        Some(complete(check, Backend::check_now(self, check)?))
    }

    fn changes_charges(&self) -> bool {
        Backend::changes_charges(self)
    }

    fn refund<'a>(&'a self, refund: &'a Refund) -> Borrowing<'a, Result<u64, BackendError>> {
        Box::pin(Backend::refund(self, refund))
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        Backend::refund_now(self, refund)
    }

    fn reset<'a>(&'a self, pairs: &'a Check) -> Borrowing<'a, Result<(), BackendError>> {
        Box::pin(Backend::reset(self, pairs))
    }

    fn reset_now(&self, pairs: &Check) -> Option<Result<(), BackendError>> {
        Backend::reset_now(self, pairs)
    }

    fn denials_hold(&self) -> bool {
        Backend::denials_hold(self)
    }

    fn grants_leases(&self) -> bool {
        Backend::changes_charges(self) && Backend::grants_leases(self)
    }

    fn holds_units(&self) -> bool {
        Backend::holds_units(self)
    }

    fn protect(&self, protection: Protection) -> bool {
        Backend::protect(self, protection)
    }

    fn breakers(&self) -> Vec<ServerBreaker> {
        Backend::breakers(self)
    }

    fn drain(&self) -> Borrowing<'_, ()> {
        Box::pin(Backend::drain(self))
    }

    fn store(&self) -> Option<String> {
        Backend::store(self)
    }
}

/// Rejects a decision without a status for every pair, which would admit pairs that were not checked, and an admitted
/// reservation without a receipt for every pair, which could not be settled. A lease needs receipts, too, and at most the units
/// that were asked for. Units that it holds wake the requests that wait for them.
#[inline]
fn complete(check: &Check, decided: Result<Decision, BackendError>) -> Result<Decision, BackendError> {
    let decision = decided?;
    let (pairs, is_admitted) = (check.pairs(), decision.is_admitted());
    let has_receipts = !is_admitted || decision.receipts().len() == pairs.len();
    let is_valid = match check.purpose() {
        Purpose::Reserve | Purpose::TakeUpTo(_) | Purpose::Debit | Purpose::LeaseAhead => has_receipts,
        Purpose::Lease => has_receipts && (!is_admitted || has_leases(pairs, decision.leases())),
        _ => true,
    };
    if decision.is_complete(check) && is_valid {
        if let Some(hold) = decision.hold() {
            hold.wake_on_release(|| {
                let pairs = decision.held_pairs(check).map(|(_, pair, _)| pair);
                let released = ReleasedPairs::new(check.scope(), pairs);
                move || released.wake()
            });
        }
        Ok(decision)
    } else {
        Err(BackendError::new(Reason::BrokenReply))
    }
}

/// Returns whether the units that were leased are at most those of the request.
fn has_leases(pairs: &[Pair], leases: &[u32]) -> bool {
    leases.len() == pairs.len() && pairs.iter().zip(leases).all(|(pair, units)| *units <= pair.lease)
}
