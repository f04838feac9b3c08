//! Who decides: the memory of this process, Redis, or anything that can answer a [`Check`].
//!
//! A backend knows policies and decisions. It knows nothing of requests, headers and responses.

use std::future::Future;

use crate::{check::Check, decision::Decision};

mod error;
#[cfg(feature = "test-util")]
pub(crate) mod fake;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use error::{BackendError, Reason};

/// What decides a check: all pairs at one instant, all charged or none.
///
/// The contract of an answer: a check is admitted if for every pair with a cost above zero the cost fits into the
/// policy's quota beside everything charged in the window that ends now. An admitted check charges every pair. A
/// denied check changes nothing. The waits in the statuses are exact, as [`Status`](crate::Status) tells.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Backend, BackendError, Check, Decision, Limiter, Policy, Status, Wait};
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
}
