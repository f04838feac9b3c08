//! A backend without its type, with the same verbs.

use std::{future::Future, pin::Pin};

use crate::{
    check::{Check, Namespace, PairRef, Purpose, Refund},
    decision::Decision,
    error::BackendError,
    guard::Protection,
    observe::ServerBreaker,
};

pub(super) type Borrowing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A [`Backend`](super::Backend) without its type. Its decisions are complete: they have what a limiter needs of them.
pub(crate) trait DynBackend: Send + Sync {
    fn check<'a>(&'a self, check: &'a Check) -> Borrowing<'a, Result<Decision, BackendError>>;
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>>;
    /// Decides a check of one pair, without a copy of the pair. Returns `None` if the backend is no memory, or has no room. Then it has
    /// charged nothing.
    fn check_pair_now(&self, namespace: &Namespace, pair: PairRef<'_>, purpose: Purpose) -> Option<Decision>;
    fn changes_charges(&self) -> bool;
    fn refund<'a>(&'a self, refund: &'a Refund) -> Borrowing<'a, Result<u64, BackendError>>;
    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>>;
    fn reset<'a>(&'a self, pairs: &'a Check) -> Borrowing<'a, Result<(), BackendError>>;
    fn denials_hold(&self) -> bool;
    fn grants_leases(&self) -> bool;
    fn protect(&self, protection: Protection) -> bool;
    fn breakers(&self) -> Vec<ServerBreaker>;
    fn drain(&self) -> Borrowing<'_, ()>;
    fn store(&self) -> Option<String>;
}
