//! What the clones of a limiter share.

use std::{fmt, sync::Arc, time::Duration};

use super::{draft::Reserve, waiters::Waiters};
use crate::{
    backend::{DynBackend, PairBackend},
    check::Namespace,
    deny_cache::DenyCache,
    guard::Guard,
    key::PartitionKey,
    lease::Leases,
    observe::{Lifetime, LimiterEvents},
    outage::{LocalFallback, OutageRule},
    policy::Policy,
    settle::SettlementQueue,
};

/// A limiter: policies and a backend. It needs no HTTP and no tower service, and suits jobs and outgoing calls.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder(MemoryBackend::new())
///     .policy(Policy::new("mails", 2, Duration::from_secs(60))?)
///     .build()?;
///
/// let alice = PartitionKey::new("user", "alice");
/// assert!(limiter.check((alice.clone(), 2)).await?.is_admitted());
/// assert!(!limiter.check(alice).await?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones share everything.
#[derive(Clone)]
pub struct Limiter(pub(super) Arc<LimiterInner>);

pub(super) struct LimiterInner {
    pub(super) settings: LimiterSettings,
    pub(super) backend: Arc<dyn DynBackend>,
    /// The backend, if it decides one pair without a copy of it.
    pub(super) pair_backend: Option<Arc<dyn PairBackend>>,
    pub(super) queue: Arc<SettlementQueue>,
    /// `None` if the backend protects its servers itself.
    pub(super) guard: Option<Arc<Guard>>,
    /// `None` if the backend grants no leases.
    pub(super) leases: Option<Arc<Leases>>,
    /// `None` if the denials of the backend do not hold.
    pub(super) deny_cache: Option<Arc<DenyCache>>,
    pub(super) local_fallback: LocalFallback,
    pub(super) waiters: Arc<Waiters>,
    pub(super) events: Arc<LimiterEvents>,
    /// `None` if the store has no name.
    pub(super) _lifetime: Option<Lifetime>,
}

#[derive(Clone, Debug)]
pub(super) struct LimiterSettings {
    pub(super) policies: Vec<Policy>,
    pub(super) namespace: Namespace,
    /// The first part of every key.
    pub(super) region: Option<PartitionKey>,
    pub(super) deadline: Duration,
    pub(super) rule: OutageRule,
    pub(super) reserve: Reserve,
}

/// # What to check
///
/// The methods that check, wait, reserve or reset take one parameter, which is anything that is an [`IntoDraft`]:
///
/// | value | pairs |
/// | --- | --- |
/// | `key` | this [`PartitionKey`] and each policy of the limiter, at 1 unit |
/// | `(key, 10)` or `(key, costs)` | the same at this cost, or at these [`Costs`](crate::Costs) |
/// | `[pair, ..]`, `Vec<Pair>` | these [pairs](crate::backend::Pair) of a key and a policy, for several keys |
/// | [`Draft`] | policies chosen for this request, several keys, an outage rule of its own |
///
/// # Errors
///
/// If the backend makes no decision within the deadline, [`check`](Self::check), [`peek`](Self::peek) and [`reset`](Self::reset) return
/// a [`BackendError`]. They return [`Reason::Misconfigured`] without asking the backend, if the pairs cannot be a check.
/// [`admit`](Self::admit), [`wait`](Self::wait) and [`reserve`](Self::reserve) apply the outage rule, and return a [`Rejection`].
///
/// If the backend can only charge, then peek, reserve and reset return [`Reason::Unsupported`] without asking it.
///
/// # When a check begins
///
/// If the backend answers at once, a check is complete when the method returns. Otherwise, and always for a reset, it begins
/// when the future is polled. If the future is dropped before it is complete, the charge may stand.
///
/// Outside an async function, [`CheckFuture::now`](crate::future::CheckFuture::now) returns a decision that was made at once.
///
/// # Runtime
///
/// A backend that answers at once, such as the memory, needs no runtime. Any other backend needs tokio with its timer enabled
/// (`enable_time`, as in `#[tokio::main]`; a runtime without a timer panics). Outside tokio there is no deadline. To
/// [wait](Self::wait), every backend needs tokio with its timer enabled.

impl Limiter {
    /// Returns whether charges can be settled.
    pub(crate) fn can_settle(&self) -> bool {
        self.0.backend.changes_charges()
    }

    /// Returns whether estimates above a quota are clamped.
    pub(crate) fn clamps_estimates(&self) -> bool {
        self.0.settings.reserve.clamps
    }

    pub(crate) fn events(&self) -> &LimiterEvents {
        &self.0.events
    }

    /// Returns the policies in the order in which they were added.
    pub fn policies(&self) -> &[Policy] {
        &self.0.settings.policies
    }

    /// Returns the namespace, which separates this limiter from others on the same store.
    pub fn namespace(&self) -> &str {
        self.0.settings.namespace.as_str()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.settings, f)
    }
}
