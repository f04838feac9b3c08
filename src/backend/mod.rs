//! Backends: the memory of this process, Redis, or any other type that decides a [`Check`].
//!
//! A backend knows policies and decisions. It knows nothing of requests, headers and responses.
//!
//! | | | |
//! | --- | --- | --- |
//! | one process | [`MemoryBackend`] | exact, bounded, answers at once |
//! | several processes | `RedisBackend` (feature `redis`) | the same decisions; one script call on the server's own clock |
//! | unit tests | `testing::FakeBackend` (feature `test-util`) | returns what the test configures, and records every check |
//! | something else | your own [`Backend`] | one method, written as an `async fn` |

use std::future::Future;

use crate::decision::Decision;

mod error;
#[cfg(feature = "test-util")]
pub(crate) mod fake;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use error::{BackendError, Reason};
pub use memory::MemoryBackend;

pub use crate::check::{Check, MAX_PAIRS, Pair, Purpose, Receipt, Refund, RefundPair};

/// A backend decides a check: all pairs at one instant, all charged or none.
///
/// The contract of an answer: a check is admitted if for every pair with a cost above zero the cost fits into the
/// policy's quota beside everything charged in the window that ends now. An admitted check charges every pair. A
/// denied check changes nothing. The waits in the statuses are exact, as [`Status`](crate::Status) tells.
///
/// One method makes a backend. The others are for those that can do more than charge; see
/// [`changes_charges`](Self::changes_charges).
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
    note = "if the value is a `Result`, add `?`; if it is a future, add `.await`; to share a `Limiter` between layers, call `RateLimitLayer::with_limiter(limiter)`"
)]
pub trait Backend: Send + Sync + 'static {
    /// Decides, and charges if it admits.
    ///
    /// The future may be dropped before it is done: when a client goes away, or when the deadline of the limiter has
    /// passed. Then the charge may stand.
    ///
    /// # Errors
    ///
    /// A [`BackendError`] with a reason if there is no decision. It is never a denial.
    fn check(&self, check: &Check) -> impl Future<Output = Result<Decision, BackendError>> + Send;

    /// Decides at once, for backends that never wait; `None` if this one has to. A limiter asks here first, and calls
    /// [`check`](Self::check) only after `None`, which must have charged nothing.
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        let _ = check;
        None
    }

    /// Whether this backend can do more than charge: whether it knows every [`Purpose`](crate::backend::Purpose) of a check, and
    /// [`refund`](Self::refund) and [`reset`](Self::reset). A limiter asks it for nothing of that otherwise.
    fn changes_charges(&self) -> bool {
        false
    }

    /// Gives units back, each to the charge that had taken them, where that still counts: a charge that has left, or
    /// whose record is of another generation, gets nothing back. It is sent once, and never again: it may have run.
    ///
    /// # Errors
    ///
    /// A [`BackendError`] with a reason if it may not have been done.
    fn refund(&self, refund: &Refund) -> impl Future<Output = Result<(), BackendError>> + Send {
        let _ = refund;
        async { Err(BackendError::new(Reason::Unsupported)) }
    }

    /// Gives units back at once, for backends that never wait; `None` if this one has to, and then nothing was done. A
    /// limiter asks here first, and calls [`refund`](Self::refund) only after `None`.
    fn refund_now(&self, refund: &Refund) -> Option<Result<(), BackendError>> {
        let _ = refund;
        None
    }

    /// Forgets everything that is recorded for the pairs of a check; their costs and the purpose make no difference.
    ///
    /// # Errors
    ///
    /// A [`BackendError`] with a reason if it may not have been done.
    fn reset(&self, pairs: &Check) -> impl Future<Output = Result<(), BackendError>> + Send {
        let _ = pairs;
        async { Err(BackendError::new(Reason::Unsupported)) }
    }

    /// Whether a denial of this backend holds: it stays true until its wait has passed, on a clock that runs as this process's
    /// does, unless units are given back, the pair is reset, or its record is lost; and it is true of every check of the same
    /// pair that leaves no more of its quota, whatever that is by then.
    ///
    /// A limiter may repeat it then without asking; see [`DenyCache`](crate::outage::DenyCache). It looks here once, when it is built.
    fn denials_hold(&self) -> bool {
        false
    }

    /// A name of the store, equal for all backends of this process that share one: so that limits which contradict each
    /// other there can be warned about. None if it is not known.
    fn store(&self) -> Option<String> {
        None
    }
}
