//! What the clones of a limiter share.

use std::{fmt, sync::Arc, time::Duration};

use super::{draft::Reserve, waiters::Waiters};
use crate::{
    backend::{DynBackend, MemoryBackend},
    check::Namespace,
    deny_cache::DenyCache,
    guard::Guard,
    key::PartitionKey,
    learn::Learner,
    lease::Leases,
    observe::{Lifetime, LimiterEvents},
    outage::{LocalFallback, OutageRule},
    per_thread::PerThread,
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
/// assert!(limiter.check((&alice, 2)).await?.is_admitted());
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
    /// The policies of the settings: a decision contains clones of them, which threads need not count in turn.
    pub(super) local_policies: PerThread<Box<[Policy]>>,
    pub(super) backend: Arc<dyn DynBackend>,
    /// Whether the backend holds units in flight.
    pub(super) holds_units: bool,
    /// The backend, if it decides the pairs of a key without a copy of them.
    pub(super) pair_backend: Option<MemoryBackend>,
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
    /// `None` unless the limiter learns from answers.
    pub(super) learner: Option<Learner>,
    /// `None` if the store has no name.
    pub(super) _lifetime: Option<Lifetime>,
}

#[derive(Clone)]
pub(super) struct LimiterSettings {
    pub(super) policies: Vec<Policy>,
    pub(super) namespace: Namespace,
    /// The first part of every key.
    pub(super) region: Option<PartitionKey>,
    pub(super) deadline: Duration,
    pub(super) rule: OutageRule,
    pub(super) reserve: Reserve,
}

impl Limiter {
    /// Returns whether charges can be settled.
    pub(crate) fn can_settle(&self) -> bool {
        self.0.backend.changes_charges()
    }

    /// Returns whether the backend holds the units of policies in flight.
    pub(crate) fn holds_units(&self) -> bool {
        self.0.holds_units
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
        let LimiterSettings { policies, namespace, region, deadline, rule, .. } = &self.0.settings;
        f.debug_struct("Limiter")
            .field("policies", policies)
            .field("namespace", &namespace.as_str())
            .field("region", region)
            .field("deadline", deadline)
            .field("rule", rule)
            .finish_non_exhaustive()
    }
}
