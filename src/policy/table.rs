//! Tables of policies that change at run time.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
};

use super::{
    Tier,
    selector::{PolicySelector, from_fn},
    tier::IntoTier,
};
use crate::head::Head;

/// Policies by the name of a tier, a tenant or a route, which may change while the service runs.
///
/// Clones share one table: keep one, and give one to the layer. A change applies to every request whose policies are chosen
/// after it. No restart is needed, and no usage is lost:
///
/// - **Another quota** takes effect at once and keeps the usage. If more than the new quota is used, nothing remains until
///   enough units have left the window.
/// - **Another window, algorithm or precision** makes another policy, even under the same name, and counting starts from zero:
///   a client that had used up the old policy has a full quota under the new one. The old usage leaves with its own window. If
///   the change is reverted before that, the old usage counts again.
/// - **A policy that is removed** leaves in the same way, and one that is added starts from zero.
///
/// If several selectors of one layer use one table, all of them see the same state of the table for a request.
///
/// A charge that is settled after a change is settled under the policy that it was charged to.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, PolicyTable, RateLimitLayer, extension, policy::Tier};
///
/// /// The user, as an earlier layer has verified it.
/// #[derive(Clone)]
/// struct User { id: String, tier: String }
///
/// let minute = Duration::from_secs(60);
/// let tiers = PolicyTable::new(Policy::new("requests", 10, minute)?)
///     .with("gold", Policy::new("requests", 1_000, minute)?)
///     .with("internal", Tier::Unlimited);
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .key(extension("user", |user: &User| user.id.clone()))
///     .policies(tiers.choose_by(|head| head.extension::<User>().map(|user| user.tier.as_str())))
///     .build()?;
///
/// tiers.set("gold", Policy::new("requests", 2_000, minute)?);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// With the feature `serde`, a table is read from a file and [replaced](Self::replace) while the service runs: see
/// [the guide](crate::guide::policies#policies-from-a-file).
#[derive(Clone)]
pub struct PolicyTable(Arc<RwLock<Arc<TierEntries>>>);

#[derive(Clone)]
pub(super) struct TierEntries {
    pub(super) default: Tier,
    pub(super) named: HashMap<String, Tier>,
}

impl TierEntries {
    fn pick(&self, name: Option<&str>) -> &Tier {
        name.and_then(|name| self.named.get(name)).unwrap_or(&self.default)
    }
}

impl PolicyTable {
    /// Creates a table without names, in which every lookup returns this default: policies, or [`Tier::Unlimited`]. With an unlimited
    /// default, a request whose name is not in the table is
    /// [not limited](crate::guide::limits_nothing#policy-table-with-an-unlimited-default).
    pub fn new(default: impl IntoTier) -> Self {
        Self::from_entries(TierEntries { default: default.into(), named: HashMap::new() })
    }

    pub(super) fn from_entries(entries: impl Into<Arc<TierEntries>>) -> Self {
        Self(Arc::new(RwLock::new(entries.into())))
    }

    /// Sets the policies of a name, or [`Tier::Unlimited`], and returns the table.
    #[must_use]
    pub fn with(self, name: impl Into<String>, tier: impl IntoTier) -> Self {
        self.set(name, tier);
        self
    }

    /// Returns the tier of this name, or the default if the name is `None` or not in the table.
    pub fn pick<'a>(&self, name: impl Into<Option<&'a str>>) -> Tier {
        self.entries().pick(name.into()).clone()
    }

    /// Returns a selector that picks the policies by the name that the closure returns. For an unlimited tier, it selects none.
    pub fn choose_by<F>(&self, name: F) -> impl PolicySelector + use<F>
    where
        F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        let table = self.clone();
        from_fn(move |head| {
            let id = Arc::as_ptr(&table.0).addr();
            let entries = head.look_up(id, || table.entries());
            entries.pick(name(head)).policies().cloned()
        })
    }

    /// Sets the policies of a name, or [`Tier::Unlimited`], and returns the previous tier.
    pub fn set(&self, name: impl Into<String>, tier: impl IntoTier) -> Option<Tier> {
        let (name, tier) = (name.into(), tier.into());
        Arc::make_mut(&mut self.write()).named.insert(name, tier)
    }

    /// Removes a name, which has the default tier from then on, and returns its previous tier.
    pub fn remove(&self, name: &str) -> Option<Tier> {
        Arc::make_mut(&mut self.write()).named.remove(name)
    }

    /// Sets the default policies, or [`Tier::Unlimited`].
    pub fn set_default(&self, tier: impl IntoTier) {
        let tier = tier.into();
        Arc::make_mut(&mut self.write()).default = tier;
    }

    /// Replaces all entries by those of the other table, at once, and returns the previous entries as a table of their own. For
    /// each request, a layer uses the entries before the change or those after it, and never a mixture.
    ///
    /// No request is dropped or delayed, and a policy that is in both tables keeps its usage. A later change of the other table
    /// has no effect on this one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Policy, PolicyTable, policy::Tier};
    ///
    /// let minute = Duration::from_secs(60);
    /// let tiers = PolicyTable::new(Policy::new("requests", 10, minute)?).with("gold", Tier::Unlimited);
    ///
    /// let previous = tiers.replace(PolicyTable::new(Policy::new("requests", 20, minute)?));
    /// assert_eq!(tiers.pick("gold"), Policy::new("requests", 20, minute)?.into());
    /// assert_eq!(previous.pick("gold"), Tier::Unlimited);
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn replace(&self, with: Self) -> Self {
        let entries = with.entries();
        Self::from_entries(mem::replace(&mut *self.write(), entries))
    }

    // No code that holds the lock can panic or wait.
    pub(super) fn entries(&self) -> Arc<TierEntries> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Arc<TierEntries>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        f.debug_struct("PolicyTable")
            .field("default", &entries.default)
            .field("named", &entries.named)
            .finish()
    }
}
