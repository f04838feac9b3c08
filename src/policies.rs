//! Sets of policies, and tables of them that change at run time.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use http::Request;

use crate::{
    check::{MAX_PAIRS, Pair},
    cost::Costs,
    error::ConfigError,
    head::{FromHead, Head},
    key::PartitionKey,
    policy::Policy,
};

/// Policies that are in force together: 1 to [`MAX_PAIRS`], with different names.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Policies(Arc<[Policy]>);

impl Policies {
    /// A set of policies. Their order changes nothing but the order in which they are told.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoPolicies`], [`ConfigError::TooManyPolicies`] or [`ConfigError::DuplicatePolicy`].
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, ConfigError> {
        let policies: Arc<[Policy]> = policies.into_iter().collect();
        if policies.is_empty() {
            return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
        }
        distinct(&policies)?;
        Ok(Self(policies))
    }

    /// Policies of which nobody has seen yet that they can be a check.
    pub(crate) fn unchecked(policies: Vec<Policy>) -> Self {
        Self(policies.into())
    }

    /// The policies, in the order in which they were given.
    pub fn as_slice(&self) -> &[Policy] {
        &self.0
    }

    /// The pairs of this key and each of these policies, for a check of several keys. Of a policy that `costs` does not
    /// name, the request takes 1 unit.
    pub fn pairs(&self, key: &PartitionKey, costs: impl Into<Costs>) -> Vec<Pair> {
        let costs = costs.into();
        pairs(key, &self.0, &costs).collect()
    }
}

/// At most [`MAX_PAIRS`], with different names.
pub(crate) fn distinct(policies: &[Policy]) -> Result<(), ConfigError> {
    if policies.len() > MAX_PAIRS {
        return Err(ConfigError::TooManyPolicies { given: policies.len(), max: MAX_PAIRS });
    }
    for (i, policy) in policies.iter().enumerate() {
        if policies[..i].iter().any(|other| other.name() == policy.name()) {
            return Err(ConfigError::DuplicatePolicy { name: policy.name().to_owned() });
        }
    }
    Ok(())
}

pub(crate) fn pairs(key: &PartitionKey, policies: &[Policy], costs: &Costs) -> impl Iterator<Item = Pair> {
    policies.iter().map(|policy| {
        let cost = costs.of(policy.name()).unwrap_or(1);
        Pair::new(key.clone(), policy.clone(), cost)
    })
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self(Arc::new([policy]))
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Chooses policies for a request: by its tier, its tenant, its route.
///
/// Every closure `Fn(&Req) -> Policies` is a selector, and so is one that returns an `Option` of them; see
/// [`from_head`](crate::from_head) for closures that need no type, and [`PolicyTable`] for policies that change while the
/// service runs.
#[diagnostic::on_unimplemented(
    message = "`{Self}` chooses no policies for a `{Req}`",
    note = "use `from_head`, or a closure that names its parameter: `|request: &{Req}|`, and returns `Policies` or an `Option` of them"
)]
pub trait PolicySelector<Req> {
    /// The policies of this request, beside those that are in force for all. None if there are no others.
    fn select(&self, request: &Req) -> Option<Policies>;
}

/// Chooses nothing: the policies are the same for every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed;

impl<Req> PolicySelector<Req> for Fixed {
    fn select(&self, _request: &Req) -> Option<Policies> {
        None
    }
}

impl<F, Req, P> PolicySelector<Req> for F
where
    F: Fn(&Req) -> P,
    P: Into<Option<Policies>>,
{
    fn select(&self, request: &Req) -> Option<Policies> {
        self(request).into()
    }
}

impl<F, B, P> PolicySelector<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> P,
    P: Into<Option<Policies>>,
{
    fn select(&self, request: &Request<B>) -> Option<Policies> {
        self.call(request).into()
    }
}

/// Policies by the name of a tier, a tenant or a route, which may change while requests go on.
///
/// Clones are the same table: keep one, and give one to the closure that chooses. A change is in force for every request
/// whose policies are chosen after it; no restart, and nothing is lost:
///
/// - **another quota** takes effect at once, and what was used stays used. If that is more than the quota now is,
///   nothing remains until enough has left.
/// - **another window, algorithm or precision** is another policy, even under the same name, and counts afresh: whoever had
///   used up the old one has a full quota under the new one. What was counted by the old one is forgotten when its own
///   window has passed, and is in force again if the change is taken back before.
/// - **a policy that is taken away** is in the same way forgotten, and one that is added begins empty.
///
/// A charge that is settled after a change is settled under the policy that it was charged to.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, PolicyTable, RateLimitLayer, from_head, header};
///
/// let minute = Duration::from_secs(60);
/// let tiers = PolicyTable::new(Policy::new("requests", 10, minute)?)
///     .with("gold", Policy::new("requests", 1_000, minute)?);
///
/// /// What an earlier layer has found out about the user.
/// #[derive(Clone)]
/// struct Tier(&'static str);
///
/// let table = tiers.clone();
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .key(header("x-api-key")?)
///     .policies(from_head(move |head| table.pick(head.extensions.get::<Tier>().map(|tier| tier.0))))
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
    /// A table that knows no name: whoever asks gets these policies.
    pub fn new(default: impl Into<Policies>) -> Self {
        Self(Arc::new(RwLock::new(Table { default: default.into(), named: HashMap::new() })))
    }

    /// [`set`](Self::set), for a table that is being made.
    #[must_use]
    pub fn with(self, name: impl Into<String>, policies: impl Into<Policies>) -> Self {
        self.set(name, policies);
        self
    }

    /// The policies of this name, or the default for a name that is not there, and for none.
    pub fn pick<'a>(&self, name: impl Into<Option<&'a str>>) -> Policies {
        let table = self.read();
        let named = name.into().and_then(|name| table.named.get(name));
        named.unwrap_or(&table.default).clone()
    }

    /// Gives a name these policies from now on. Those that it had.
    pub fn set(&self, name: impl Into<String>, policies: impl Into<Policies>) -> Option<Policies> {
        let (name, policies) = (name.into(), policies.into());
        self.write().named.insert(name, policies)
    }

    /// Forgets a name, which has the default from now on. The policies that it had.
    pub fn remove(&self, name: &str) -> Option<Policies> {
        self.write().named.remove(name)
    }

    /// Makes these the default from now on.
    pub fn set_default(&self, policies: impl Into<Policies>) {
        let policies = policies.into();
        self.write().default = policies;
    }

    // Nothing that holds the lock can panic half-way, or wait.
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
