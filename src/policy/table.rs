//! Tables of policies that change at run time.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, iter, mem,
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
};

use super::{IntoTier, Policies, Policy, TableUse, Tier};
use crate::error::ConfigError;

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
/// If several selectors of one layer use one table, all of them see the same state of the table for a request. The tiers that they may
/// choose for one request need policies of different names, also for different keys, and at most
/// [`MAX_PAIRS`](crate::backend::MAX_PAIRS) policies together. Otherwise, such a request is rejected with a 500. If two selectors may return
/// names that are not in the table, both choose the default: make it [`Tier::Unlimited`], or use a table for each selector, whose policies
/// have different names.
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
/// tiers.set("gold", Policy::new("requests", 2_000, minute)?)?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
///
/// With the feature `serde`, a table is read from a file and [replaced](Self::replace) while the service runs: see
/// [the guide](crate::guide::policies#policies-from-a-file).
///
/// # Names that are not in the table
///
/// A request whose name is not in the table has the default tier, as a request without a name. So a misspelt or unknown name is limited
/// if the default is, and no request is rejected because of it. The first such request causes one warning (feature `tracing`), which
/// does not contain the name. After [`replace`](Self::replace) or [`remove`](Self::remove), there may be another one. If the table
/// lists only the exceptions from its default, call [`lists_exceptions`](Self::lists_exceptions), and no warning is logged.
///
/// # Changes that do not suit a layer
///
/// While a layer chooses from the table, each change is compared with the layer. A change with an error has no effect: the policies in
/// force stay in force.
///
/// | a tier | the result |
/// | --- | --- |
/// | repeats the name of a policy that the layer has for every request, or has more than [`MAX_PAIRS`](crate::backend::MAX_PAIRS) policies together with them | an error, also when the layer is built |
/// | has a policy [in flight](crate::Policy::in_flight), and the backend holds no units, or the layer [keeps the type of a body](crate::RateLimitLayer::same_body) | an error, also when the layer is built |
/// | has a policy for which the constant cost of all requests is 0, and the layer [settles](crate::guide::settling) | an error, also when the layer is built |
/// | has no policy that a constant cost [names](crate::Costs), and nor has any other tier in the tables of the layer | one warning, with the next request after [`replace`](Self::replace) or the build. The cost has no effect |
/// | has a quota below the constant cost of all requests | an error. When the layer is built, there is no error, and the first such request causes a warning |
/// | has a quota and a constant cost that allow more charges than a [sliding log](crate::Algorithm::SlidingLog) holds | one warning, with the next request |
///
/// If several limits or layers choose from the table, the tier may have any cost that suits one of them. A tier may lack a policy that
/// another tier has: its cost then has no effect. So [`set`](Self::set), [`set_default`](Self::set_default) and [`remove`](Self::remove) do not
/// compare the names of costs. Nor are they compared while no tier of any table of a layer has a policy, because the tiers may follow.
///
/// Not compared are costs from a closure, two tables of one layer, two tiers that several selectors of a layer may choose from one table,
/// and tables that are read with [`pick`](Self::pick). If a limit of the layer has another selector than a table, the names of costs are not
/// compared.
#[derive(Clone)]
pub struct PolicyTable(Arc<Shared>);

struct Shared {
    state: RwLock<State>,
    /// Whether the state has a problem to log.
    has_problem: AtomicBool,
    /// How often all entries have been replaced.
    replacements: AtomicUsize,
    /// What is known of requests whose name is not in the table: one of the constants of `unlisted`.
    unlisted: AtomicU8,
}

struct State {
    entries: Arc<TierEntries>,
    /// The layers that use this table.
    uses: Vec<Weak<TableUse>>,
    /// A problem of the last change that a layer must log.
    problem: Option<ConfigError>,
}

mod unlisted {
    /// No request has had such a name.
    pub(super) const UNSEEN: u8 = 0;
    /// A request has had one.
    pub(super) const SEEN: u8 = 1;
    /// A layer has logged it.
    pub(super) const LOGGED: u8 = 2;
    /// Such names are expected.
    pub(super) const EXPECTED: u8 = 3;
}

#[derive(Clone)]
pub(super) struct TierEntries {
    pub(super) default: Tier,
    pub(super) named: HashMap<String, Tier>,
}

impl TierEntries {
    fn pick(&self, name: Option<&str>) -> &Tier {
        name.and_then(|name| self.named.get(name)).unwrap_or(&self.default)
    }

    /// Returns all tiers with their names. `None` is the default tier.
    fn tiers(&self) -> impl Iterator<Item = (Option<&str>, &Tier)> {
        iter::once((None, &self.default)).chain(self.named.iter().map(|(name, tier)| (Some(&**name), tier)))
    }

    /// Compares all tiers with what some layers require. Returns a problem that does not prevent a tier, if there is one.
    fn check(&self, uses: &[Arc<TableUse>]) -> Result<Option<ConfigError>, ConfigError> {
        let mut problem = None;
        for (name, tier) in self.tiers() {
            problem = check(uses, name, tier)?.or(problem);
        }
        Ok(problem)
    }
}

fn invalid(name: Option<&str>, error: ConfigError) -> ConfigError {
    ConfigError::InvalidTier { name: name.map(str::to_owned), error: Box::new(error) }
}

/// Compares a tier with what some layers require. `None` is the default tier. Returns a problem that does not prevent the tier, if there
/// is one.
fn check(
    uses: &[Arc<TableUse>],
    name: Option<&str>,
    tier: &Tier,
) -> Result<Option<ConfigError>, ConfigError> {
    let Some(policies) = tier.policies() else { return Ok(None) };
    let invalid = |error| invalid(name, error);
    uses.iter().try_for_each(|of_layer| of_layer.check_policies(policies)).map_err(invalid)?;
    // One table may serve limits with different costs, each of which chooses its own tiers.
    let (mut full, mut impossible) = (None, None);
    for checked in uses.iter().flat_map(|of_layer| of_layer.check_costs(policies)) {
        match checked {
            Ok(()) => return Ok(None),
            Err(error @ ConfigError::TooManyCharges { .. }) => full = Some(error),
            Err(error) => impossible = Some(error),
        }
    }
    match (full, impossible) {
        (None, Some(error)) => Err(invalid(error)),
        (full, _) => Ok(full.map(invalid)),
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
        let state = State { entries: entries.into(), uses: Vec::new(), problem: None };
        Self(Arc::new(Shared {
            state: RwLock::new(state),
            has_problem: AtomicBool::new(false),
            replacements: AtomicUsize::new(0),
            unlisted: AtomicU8::new(unlisted::UNSEEN),
        }))
    }

    /// Sets the policies of a name, or [`Tier::Unlimited`], and returns the table. Call it before a layer uses the table: layers compare
    /// only later changes, as by [`set`](Self::set).
    #[must_use]
    pub fn with(self, name: impl Into<String>, tier: impl IntoTier) -> Self {
        let (name, tier) = (name.into(), tier.into());
        Arc::make_mut(&mut self.write().entries).named.insert(name, tier);
        self
    }

    /// States that this table and its clones list only the exceptions from its default, as a table by route or by tenant does. So a name
    /// that is not in the table is no mistake, and causes no warning. [`replace`](Self::replace) does not change this.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Policy, PolicyTable};
    ///
    /// let minute = Duration::from_secs(60);
    /// let routes = PolicyTable::new(Policy::new("requests", 100, minute)?)
    ///     .lists_exceptions()
    ///     .with("/login", Policy::new("logins", 5, minute)?);
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[must_use]
    pub fn lists_exceptions(self) -> Self {
        self.0.unlisted.store(unlisted::EXPECTED, Ordering::Relaxed);
        self
    }

    /// Returns the tier of this name, or the default if the name is `None` or not in the table.
    pub fn pick<'a>(&self, name: impl Into<Option<&'a str>>) -> Tier {
        self.entries().pick(name.into()).clone()
    }

    /// Sets the policies of a name, or [`Tier::Unlimited`], and returns the previous tier.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if the tier [does not suit](Self#changes-that-do-not-suit-a-layer) a layer that uses this table.
    /// Then the previous tier stays in force.
    pub fn set(&self, name: impl Into<String>, tier: impl IntoTier) -> Result<Option<Tier>, ConfigError> {
        let (name, tier) = (name.into(), tier.into());
        let mut state = self.write();
        let problem = check(&state.live_uses(), Some(&name), &tier)?;
        state.forget_problem(Some(&name));
        self.note(&mut state, problem);
        Ok(Arc::make_mut(&mut state.entries).named.insert(name, tier))
    }

    /// Removes a name, which has the default tier from then on, and returns its previous tier.
    pub fn remove(&self, name: &str) -> Option<Tier> {
        let mut state = self.write();
        state.forget_problem(Some(name));
        let previous = Arc::make_mut(&mut state.entries).named.remove(name);
        drop(state);
        self.expect_warning();
        previous
    }

    /// Sets the default policies, or [`Tier::Unlimited`].
    ///
    /// # Errors
    ///
    /// Returns the error of [`set`](Self::set). Then the previous default stays in force.
    pub fn set_default(&self, tier: impl IntoTier) -> Result<(), ConfigError> {
        let tier = tier.into();
        let mut state = self.write();
        let problem = check(&state.live_uses(), None, &tier)?;
        state.forget_problem(None);
        self.note(&mut state, problem);
        Arc::make_mut(&mut state.entries).default = tier;
        Ok(())
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
    /// let previous = tiers.replace(PolicyTable::new(Policy::new("requests", 20, minute)?))?;
    /// assert_eq!(tiers.pick("gold"), Policy::new("requests", 20, minute)?.into());
    /// assert_eq!(previous.pick("gold"), Tier::Unlimited);
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::InvalidTier`] if a tier [does not suit](Self#changes-that-do-not-suit-a-layer) a layer that uses this table.
    /// Then nothing is replaced.
    pub fn replace(&self, with: Self) -> Result<Self, ConfigError> {
        let entries = with.entries();
        let mut state = self.write();
        let problem = entries.check(&state.live_uses())?;
        // The problem of an earlier change is that of a tier that is no longer in force.
        state.problem = None;
        self.note(&mut state, problem);
        let previous = mem::replace(&mut state.entries, entries);
        self.0.replacements.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.expect_warning();
        Ok(Self::from_entries(previous))
    }

    /// Compares the tiers of this table, and those of later changes, with what a layer requires, as long as the layer exists.
    pub(crate) fn use_by(&self, of_layer: &Arc<TableUse>) -> Result<(), ConfigError> {
        let mut state = self.write();
        let tiers = state.entries.tiers();
        for (name, tier) in tiers {
            let Some(policies) = tier.policies() else { continue };
            of_layer.check_policies(policies).map_err(|error| invalid(name, error))?;
        }
        state.uses.retain(|of_layer| of_layer.strong_count() > 0);
        state.uses.push(Arc::downgrade(of_layer));
        // A cost that does not suit is no error yet: a later layer may choose this tier.
        let problem = state.entries.check(&state.live_uses()).unwrap_or(None);
        self.note(&mut state, problem);
        Ok(())
    }

    /// Notes a problem for the next request.
    fn note(&self, state: &mut State, problem: Option<ConfigError>) {
        if problem.is_some() {
            state.problem = problem;
            self.0.has_problem.store(true, Ordering::Relaxed);
        }
    }

    /// Returns a problem of the last change, once.
    #[inline]
    pub(crate) fn take_problem(&self) -> Option<ConfigError> {
        if !self.0.has_problem.load(Ordering::Relaxed) {
            return None;
        }
        self.0.has_problem.store(false, Ordering::Relaxed);
        self.write().problem.take()
    }

    /// Returns how often all entries have been replaced.
    #[inline]
    pub(crate) fn replacements(&self) -> usize {
        self.0.replacements.load(Ordering::Relaxed)
    }

    /// Returns the names of the policies of all tiers.
    pub(crate) fn policy_names(&self) -> BTreeSet<String> {
        let entries = self.entries();
        let policies = entries.tiers().filter_map(|(_, tier)| tier.policies()).flat_map(Policies::as_slice);
        policies.map(Policy::name).map(str::to_owned).collect()
    }

    /// Returns whether both share their entries.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a number that is the same for all clones.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns the tier of a request, and notes whether its name is not in the table.
    pub(super) fn choose<'a>(&self, entries: &'a TierEntries, name: Option<&str>) -> &'a Tier {
        match name.map(|name| entries.named.get(name)) {
            Some(Some(tier)) => tier,
            Some(None) => {
                self.change_unlisted(unlisted::UNSEEN, unlisted::SEEN);
                &entries.default
            }
            None => &entries.default,
        }
    }

    /// Returns true once, after a request has had a name that is not in the table.
    #[inline]
    pub(crate) fn has_unlisted(&self) -> bool {
        self.change_unlisted(unlisted::SEEN, unlisted::LOGGED)
    }

    /// Permits another warning about names that are not in the table.
    fn expect_warning(&self) {
        self.change_unlisted(unlisted::LOGGED, unlisted::UNSEEN);
    }

    #[inline]
    fn change_unlisted(&self, from: u8, to: u8) -> bool {
        let unlisted = &self.0.unlisted;
        // Usually there is nothing to change, and nothing is written.
        unlisted.load(Ordering::Relaxed) == from
            && unlisted.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    // No code that holds the lock can panic or wait.
    pub(super) fn entries(&self) -> Arc<TierEntries> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes the problem of a tier that is about to change. `None` is the default tier.
    fn forget_problem(&mut self, name: Option<&str>) {
        self.problem.take_if(
            |problem| matches!(problem, ConfigError::InvalidTier { name: of, .. } if of.as_deref() == name),
        );
    }

    fn live_uses(&self) -> Vec<Arc<TableUse>> {
        self.uses.iter().filter_map(Weak::upgrade).collect()
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
