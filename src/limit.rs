//! One limit: a partition key with its cost and its policies.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    cost::{self, CostFunction, Costs, IntoCosts},
    error::ConfigError,
    head::Head,
    key::{KeyError, KeyExtractor, MissingKey, PartitionKey},
    limiter::{Against, Draft},
    observe,
    policy::{
        self, IntoTier, Policies, Policy, PolicySelector, PolicyTable, Tier, check_constant_costs,
        check_estimates,
    },
};

/// The number of requests without an extension after which the order of the layers may be wrong.
const MAX_LACKING: u32 = 100;

/// A further limit of a layer: a partition key with a cost and policies of its own. Made by [`limit`], for
/// [`RateLimitLayerBuilder::also`](crate::RateLimitLayerBuilder::also).
#[derive(Clone)]
#[must_use = "a limit has no effect until it is added to a layer with `.also(..)`"]
pub struct Limit {
    key: Arc<dyn KeyExtractor>,
    /// The number of requests that lacked an extension of the key, until one has the key.
    lacking: Arc<AtomicU32>,
    cost: Arc<dyn CostFunction>,
    missing_key: MissingKey,
    /// The policies of every request.
    policies: Option<Policies>,
    selectors: Vec<Arc<dyn PolicySelector>>,
}

/// What a layer requires of the constant costs of its limits.
pub(crate) struct CostRules<'a> {
    /// The names that a cost may have: those of all policies of the layer. `None` if the policies depend on the request.
    pub(crate) names: Option<&'a [&'a str]>,
    /// Whether a cost is an estimate, which must not be 0.
    pub(crate) settles: bool,
    /// Whether a cost may be above a quota.
    pub(crate) clamps: bool,
}

/// Limits by this key in addition to the layer's first key: by user *and* by address *and* by route.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, header, limit, peer_ip};
///
/// let minute = Duration::from_secs(60);
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("per-address", 1_000, minute)?)
///     .key(peer_ip())
///     .also(limit(header("x-api-key")?).policy(Policy::new("per-key", 100, minute)?))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn limit(key: impl KeyExtractor) -> Limit {
    Limit {
        lacking: Arc::default(),
        key: Arc::new(key),
        cost: Arc::new(1),
        missing_key: MissingKey::default(),
        policies: None,
        selectors: Vec::new(),
    }
}

/// The parameter of [`RateLimitLayerBuilder::also`](crate::RateLimitLayerBuilder::also), which exists for its error message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit",
    label = "expected a limit: a key with its policies",
    note = "write `limit(key).policy(Policy::new(..)?)`"
)]
pub trait IntoLimit {
    fn into_limit(self) -> Limit;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Limit {
        self
    }
}

impl Limit {
    /// Adds a policy for this key. All policies of a layer need different names, and one request is checked against at most
    /// [`MAX_PAIRS`](crate::backend::MAX_PAIRS) policies.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policies: joined(self.policies, policy.into()), ..self }
    }

    /// Chooses further policies for this key by the request. Several selectors add their policies.
    pub fn policies(mut self, selector: impl PolicySelector) -> Self {
        self.selectors.push(Arc::new(selector));
        self
    }

    /// Chooses further policies for this key by a closure. It returns a [`Policy`], [`Policies`] or a [`Tier`]; [`Tier::Unlimited`] adds
    /// no policies.
    pub fn policies_by<T: IntoTier>(self, choose: impl Fn(&Head<'_>) -> T + Send + Sync + 'static) -> Self {
        self.policies(policy::from_fn(choose))
    }

    /// Sets the cost of a request for these policies. The default is 1 quota unit.
    pub fn cost(self, cost: impl CostFunction) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Sets the cost of a request for these policies by a closure.
    pub fn cost_by<C: IntoCosts>(self, cost: impl Fn(&Head<'_>) -> C + Send + Sync + 'static) -> Self {
        self.cost(cost::from_fn(cost))
    }

    /// Sets the rule for a request without this key. The default is to reject it. If the request is exempt from this limit, the
    /// other limits of the layer still apply.
    pub fn missing_key(self, rule: MissingKey) -> Self {
        Self { missing_key: rule, ..self }
    }

    pub(crate) fn with_key(self, key: impl KeyExtractor) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    pub(crate) fn own_policies(&self) -> &[Policy] {
        self.policies.as_ref().map_or(&[], Policies::as_slice)
    }

    pub(crate) fn counts_by_peer(&self) -> bool {
        self.key.is_peer_address()
    }

    pub(crate) fn chooses_policies(&self) -> bool {
        !self.selectors.is_empty()
    }

    /// Returns whether each selector of this limit chooses from a table.
    pub(crate) fn chooses_only_from_tables(&self) -> bool {
        self.selectors.iter().all(|selector| selector.table().is_some())
    }

    /// Returns the tables from which this limit chooses policies.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &PolicyTable> {
        self.selectors.iter().filter_map(|selector| selector.table())
    }

    /// Returns the constant costs of this limit, with the names of the requests that have them.
    pub(crate) fn constant_costs(&self) -> Vec<(String, Costs)> {
        let mut all = Vec::new();
        self.cost.constants(&mut |requests, costs| all.push((requests.to_owned(), costs.clone())));
        all
    }

    pub(crate) fn without_policies(self) -> Self {
        Self { policies: None, ..self }
    }

    /// Compares the constant costs of this limit with the quotas of these policies and with the size of a sliding log, and with the rules
    /// of the layer.
    pub(crate) fn check_costs(&self, policies: &[Policy], rules: &CostRules<'_>) -> Result<(), ConfigError> {
        let mut checked = Ok(());
        self.cost.constants(&mut |requests, costs| {
            if checked.is_ok() {
                checked = rules.check(requests, costs, policies);
            }
            // Some routes may be free.
            if checked.is_ok() && rules.settles && requests.is_empty() {
                checked = check_estimates_of_limit(costs, policies);
            }
        });
        checked
    }

    /// Returns the draft of this limit.
    pub(crate) fn draft(&self, head: &Head<'_>) -> Result<Draft, KeyError> {
        Ok(match (self.extract(head)?, self.choose(head)) {
            (Some(key), Some(policies)) => Draft::part(key, self.cost.cost(head), Against::Only(policies)),
            _ => Draft::exempt(),
        })
    }

    /// Returns the draft of this limit together with the policies of the limiter.
    #[inline]
    pub(crate) fn draft_with_limiter(&self, head: &Head<'_>) -> Result<Draft, KeyError> {
        Ok(match self.extract(head)? {
            Some(key) => Draft::part(key, self.cost.cost(head), Against::LimiterAnd(self.choose(head))),
            None => Draft::exempt(),
        })
    }

    /// Returns the key that counts, or `None` if the request is exempt from this limit.
    #[inline]
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        match self.key.extract(head) {
            Ok(None) => match &self.missing_key {
                MissingKey::Shared(key) => Ok(Some(key.clone())),
                MissingKey::Exempt => Ok(None),
                MissingKey::Reject => Err(self.missing(head)),
            },
            Ok(key) => {
                if self.lacking.load(Ordering::Relaxed) < MAX_LACKING {
                    self.lacking.store(MAX_LACKING, Ordering::Relaxed);
                }
                Ok(key)
            }
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn missing(&self, head: &Head<'_>) -> KeyError {
        let what = self.key.missing(head);
        if self.lacking.load(Ordering::Relaxed) < MAX_LACKING
            && self.key.lacks_extension(head)
            && self.lacking.fetch_add(1, Ordering::Relaxed) == MAX_LACKING - 1
        {
            observe::extension_not_found(&what, MAX_LACKING);
        }
        KeyError::Missing { what }
    }

    /// Returns the policies of a request, or `None` if there are none.
    #[inline]
    fn choose(&self, head: &Head<'_>) -> Option<Policies> {
        if self.selectors.is_empty() { self.policies.clone() } else { self.choose_by(head) }
    }

    fn choose_by(&self, head: &Head<'_>) -> Option<Policies> {
        self.selectors.iter().map(|selector| selector.select(head)).fold(
            self.policies.clone(),
            |policies, tier| match tier {
                Tier::Limited(more) => joined(policies, more),
                Tier::Unlimited => policies,
            },
        )
    }
}

/// Returns these policies together.
fn joined(policies: Option<Policies>, more: Policies) -> Option<Policies> {
    match policies {
        None => Some(more),
        Some(policies) => Some(Policies::unchecked([policies.as_slice(), more.as_slice()].concat())),
    }
}

impl CostRules<'_> {
    /// Compares these costs with these policies. Returns the first mistake.
    fn check(&self, requests: &str, costs: &Costs, policies: &[Policy]) -> Result<(), ConfigError> {
        check_constant_costs(requests, costs, policies, self.clamps)?;
        if let Some(names) = self.names
            && let Some(name) = costs.names().find(|name| !names.contains(name))
        {
            let (name, known) = (name.to_owned(), names.iter().map(|&name| name.to_owned()).collect());
            return Err(ConfigError::CostWithoutPolicy { requests: requests.to_owned(), name, known });
        }
        Ok(())
    }
}

/// Returns an error if the estimate of all requests is 0 for a policy, or for all policies that may be chosen.
fn check_estimates_of_limit(costs: &Costs, policies: &[Policy]) -> Result<(), ConfigError> {
    if policies.is_empty() && *costs == Costs::from(0) {
        return Err(ConfigError::ZeroEstimate { policy: String::new() });
    }
    check_estimates(costs, policies)
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("policies", &self.own_policies()).finish_non_exhaustive()
    }
}
