//! Tables of policies that change at run time.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use super::{
    Policies,
    selector::{PolicySelector, from_fn},
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
/// A charge that is settled after a change is settled under the policy that it was charged to.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, PolicyTable, RateLimitLayer, extension};
///
/// /// The user, as an earlier layer has verified it.
/// #[derive(Clone)]
/// struct User { id: String, tier: String }
///
/// let minute = Duration::from_secs(60);
/// let tiers = PolicyTable::new(Policy::new("requests", 10, minute)?)
///     .with("gold", Policy::new("requests", 1_000, minute)?);
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .key(extension("user", |user: &User| user.id.clone()))
///     .policies(tiers.choose_by(|head| head.extension::<User>().map(|user| user.tier.as_str())))
///     .build()?;
///
/// tiers.set("gold", Policy::new("requests", 2_000, minute)?);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct PolicyTable(Arc<RwLock<Table>>);

struct Table {
    default: Policies,
    named: HashMap<String, Policies>,
}

impl PolicyTable {
    /// Creates a table without names, in which every lookup returns these policies.
    pub fn new(default: impl Into<Policies>) -> Self {
        Self(Arc::new(RwLock::new(Table { default: default.into(), named: HashMap::new() })))
    }

    /// Sets the policies of a name and returns the table.
    #[must_use]
    pub fn with(self, name: impl Into<String>, policies: impl Into<Policies>) -> Self {
        self.set(name, policies);
        self
    }

    /// Returns the policies of this name, or the default if the name is `None` or not in the table.
    pub fn pick<'a>(&self, name: impl Into<Option<&'a str>>) -> Policies {
        let table = self.read();
        let named = name.into().and_then(|name| table.named.get(name));
        named.unwrap_or(&table.default).clone()
    }

    /// Returns a selector that picks the policies by the name that the closure returns.
    pub fn choose_by<F>(&self, name: F) -> impl PolicySelector + use<F>
    where
        F: for<'a> Fn(&Head<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        let table = self.clone();
        from_fn(move |head| Some(table.pick(name(head))))
    }

    /// Sets the policies of a name and returns the previous ones.
    pub fn set(&self, name: impl Into<String>, policies: impl Into<Policies>) -> Option<Policies> {
        let (name, policies) = (name.into(), policies.into());
        self.write().named.insert(name, policies)
    }

    /// Removes a name, which has the default policies from then on, and returns its previous policies.
    pub fn remove(&self, name: &str) -> Option<Policies> {
        self.write().named.remove(name)
    }

    /// Sets the default policies.
    pub fn set_default(&self, policies: impl Into<Policies>) {
        let policies = policies.into();
        self.write().default = policies;
    }

    // No code that holds the lock can panic or wait.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.read();
        f.debug_struct("PolicyTable").field("default", &table.default).field("named", &table.named).finish()
    }
}
