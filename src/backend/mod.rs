//! Backends: the memory of this process, Redis, or any other type that decides a [`Check`].
//!
//! A backend knows policies and decisions. It knows nothing of requests, headers and responses.
//!
//! | for | backend | properties |
//! | --- | --- | --- |
//! | one process | [`MemoryBackend`] | exact, bounded, answers at once |
//! | several processes | `RedisBackend` (feature `redis`) | the same decisions; one script call on the server's own clock |
//! | unit tests | `testing::FakeBackend` (feature `test-util`) | returns what the test configures, and records every check |
//! | something else | your own [`Backend`] | one method, written as an `async fn` |

use std::future::Future;

use crate::{decision::Decision, guard::Protection, observe::ServerBreaker};

mod erased;
#[cfg(feature = "test-util")]
pub(crate) mod fake;
mod generation;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod tokens;

pub use crate::error::{BackendError, Reason};
pub(crate) use erased::DynBackend;
pub use memory::{MemoryBackend, WhenFull};
pub use tokens::Tokens;

pub use crate::check::{Check, MAX_PAIRS, Pair, Purpose, Receipt, Refund, RefundPair};

/// A backend decides a check: all pairs at one instant, all charged or none.
///
/// The contract: a check is admitted if every pair with a cost above zero has room. A pair has room if its cost and the charges
/// in the window that ends now do not exceed the quota. An admitted check charges every pair. A denied check changes nothing. The
/// waits are exact, as [`Status`](crate::Status) defines them.
///
/// [Shadow pairs](Pair::shadow) are left out of the verdict. An admitted check charges those that have room, at the same instant. The
/// others are not charged, and their statuses have a wait. An error of a shadow pair must not fail the check, if this can be avoided:
/// then the pair has no status.
///
/// Only [`check`](Self::check) is required. A backend that can change charges also implements
/// [`changes_charges`](Self::changes_charges), [`refund`](Self::refund) and [`reset`](Self::reset). Only the backends of this crate have
/// [`tokens`](Self::tokens). With any other backend, [`into_token`](crate::Reservation::into_token) returns [`Reason::Unsupported`].
///
/// The trait is not dyn-compatible. No `Box<dyn Backend>` is needed to
/// [choose the backend at run time](crate::guide::cookbook#choose-the-backend-at-run-time).
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{
///     Decision, Limiter, Policy, Status, Wait,
///     backend::{Backend, BackendError, Check},
/// };
///
/// /// Admits everything and counts nothing.
/// struct Unlimited;
///
/// impl Backend for Unlimited {
///     async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
///         let admits = |pair| Status::new(pair, 1, Wait::ZERO, Duration::ZERO, Duration::ZERO);
///         Ok(Decision::new(0, check.pairs().iter().map(admits).collect::<Vec<_>>()))
///     }
/// }
///
/// let policy = Policy::new("burst", 10, Duration::from_secs(1))?;
/// let limiter = Limiter::builder(Unlimited).policy(policy).build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit backend",
    label = "expected a backend, such as `MemoryBackend::new()` or a `RedisBackend`",
    note = "if the value is a `Result`, add `?`; if it is a future, add `.await`; if it is a `RedisBackendBuilder`, call `.lazy()?` or `.connect().await?`",
    note = "if it is a URL, write `RedisBackend::lazy(url)?`; if it is an `Arc`, pass a clone of the backend, which shares its counts"
)]
#[expect(unused_variables, reason = "the defaults need no arguments")]
pub trait Backend: Send + Sync + 'static {
    /// Decides a check, and charges it if all pairs admit. A backend returns [`Reason::Unsupported`] for an
    /// [`Algorithm`](crate::Algorithm) or a [`Purpose`] that it does not know: later versions may add some.
    ///
    /// The future may be dropped before it is complete: when a client disconnects, or when the deadline of the limiter passes. Then
    /// the charge may stand.
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] with a reason if the backend makes no decision. An error is never a denial.
    fn check(&self, check: &Check) -> impl Future<Output = Result<Decision, BackendError>> + Send;

    /// Decides at once, for backends that never wait. Returns `None` if this backend must wait. A limiter calls this method
    /// first, and calls [`check`](Self::check) only after `None`. If it returns `None`, it must have charged nothing.
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        None
    }

    /// Returns whether this backend can change charges: whether it supports every [`Purpose`] of a check,
    /// [`refund`](Self::refund) and [`reset`](Self::reset). Otherwise, a limiter sends it only plain charges.
    fn changes_charges(&self) -> bool {
        false
    }

    /// Refunds units, each to its charge. A charge that has left its window, or whose record has another generation, receives
    /// nothing. A refund is sent once and never resent, because it may have been applied. After its
    /// [deadline](Refund::deadline), the backend must not apply it. By default, returns what [`refund_now`](Self::refund_now) returns.
    ///
    /// Returns the instant of the refund, in microseconds of the clock of the backend, as
    /// [`Decision::at_micros`] does for a check. If several clocks were read, returns the largest reading.
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] with a reason if it may not have been applied.
    fn refund(&self, refund: &Refund) -> impl Future<Output = Result<u64, BackendError>> + Send {
        async { self.refund_now(refund).unwrap_or_else(|| Err(BackendError::new(Reason::Unsupported))) }
    }

    /// Refunds units at once, for backends that never wait. Returns `None` if this backend must wait, and then it must have
    /// changed nothing. A limiter calls this method first, and calls [`refund`](Self::refund) only after `None`.
    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        None
    }

    /// Clears the usage of the pairs of a check, unless its deadline has passed. Their costs and the purpose have no effect. By
    /// default, returns what [`reset_now`](Self::reset_now) returns.
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] with a reason if it may not have been applied.
    fn reset(&self, pairs: &Check) -> impl Future<Output = Result<(), BackendError>> + Send {
        async { self.reset_now(pairs).unwrap_or_else(|| Err(BackendError::new(Reason::Unsupported))) }
    }

    /// Clears the usage of the pairs at once, for backends that never wait. Returns `None` if this backend must wait, and then it
    /// must have changed nothing. A limiter calls this method first, and calls [`reset`](Self::reset) only after `None`.
    fn reset_now(&self, pairs: &Check) -> Option<Result<(), BackendError>> {
        None
    }

    /// Returns whether the denials of this backend hold. A denial holds if it stays true until its wait has passed, unless units
    /// are refunded, the pair is reset, or its record is lost. It must also be true for every check of the same pair for which
    /// the quota minus the cost is the same or smaller. The clock of the backend must run at the rate of this process.
    ///
    /// A limiter may then repeat denials from its [deny cache](crate::outage::DenyCacheConfig). It calls this method once, when it is
    /// built.
    fn denials_hold(&self) -> bool {
        false
    }

    /// Returns whether this backend grants leases: whether it decides checks with [`Purpose::Lease`] and [`Purpose::LeaseAhead`]. It must
    /// have a clock of its own that runs at the rate of this process, and the receipt of a bucket must contain its end in microseconds of
    /// this clock. A limiter calls this method once, when it is built. After `false`, the default, [leased
    /// policies](crate::Policy::leased) ask the backend about every request.
    fn grants_leases(&self) -> bool {
        false
    }

    /// Returns whether this backend holds the units of policies [in flight](crate::Policy::in_flight): whether the decision of an
    /// admitted check has a [`Hold`](crate::hold::Hold), which [`Decision::with_hold`] adds, and whose drop releases the units.
    /// Otherwise, a check of such a policy returns [`Reason::Unsupported`]. False by default.
    fn holds_units(&self) -> bool {
        false
    }

    /// Takes over the circuit breaker and the load shedding of a limiter: for a backend of several servers, of which one may fail
    /// while the others answer. Returns whether it does. A limiter calls this method once, when it is built. After `false`, the
    /// default, the limiter guards the backend as one server.
    ///
    /// A backend around another one may pass this call on to it.
    fn protect(&self, protection: Protection) -> bool {
        false
    }

    /// Returns the circuit breakers of a backend that [protects](Self::protect) its servers itself, for
    /// [`Limiter::stats`](crate::Limiter::stats). Empty by default.
    fn breakers(&self) -> Vec<ServerBreaker> {
        Vec::new()
    }

    /// Waits until the backend has no work in the background, such as the rollback of a charge.
    /// [`Limiter::drain`](crate::Limiter::drain) calls it. Returns at once by default.
    fn drain(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns the name of the store, or `None` if it is not known, the default. Backends of this process that share a store return the
    /// same name. So their limiters warn about conflicting policies, and a refund or a reset by one of them invalidates the denials that
    /// the others of its namespace know; a reset also ends their leases. A limiter calls this method once, when it is built.
    fn store(&self) -> Option<String> {
        None
    }

    /// Returns what makes and settles [tokens](crate::Reservation::into_token), or `None` without support for them, the default. Only the
    /// backends of this crate have it; a backend around one of them may pass this call on to it. A limiter calls this method once, when it
    /// is built.
    fn tokens(&self) -> Option<Tokens> {
        None
    }
}
