//! From a request to what the limiter is asked: one hook, whatever it is made of.

use http::Request;

use crate::{
    check::Pair,
    cost::{CostFunction, Costs},
    head::{FromHead, Head},
    key::{KeyError, KeyExtractor, PartitionKey},
    outage::OutageRule,
    policies::{Fixed, Policies, PolicySelector},
    policy::Policy,
};

/// Turns a request into what the limiter is asked.
///
/// [`Keyed`] is made of a key, a cost and exemptions, which is what most services want. Every closure
/// `Fn(&Req) -> Result<Draft, KeyError>` is a plan too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` plans nothing for a `{Req}`",
    note = "its key, its cost or its exemptions are not for requests of this type"
)]
pub trait Plan<Req> {
    /// What to ask for this request.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] if the request names nobody whose usage could be counted. It is refused then, and the error is no
    /// 429.
    fn plan(&self, request: &Req) -> Result<Draft, KeyError>;
}

/// What to ask the limiter for one request: all of it in one check, which is admitted as a whole or not at all.
///
/// A draft without pairs lets the request through, uncounted. One that cannot be a check, with more than
/// [`MAX_PAIRS`](crate::MAX_PAIRS) pairs or one of them twice, is a mistake in the server, and the request is refused with a
/// [`Refusal::Misconfigured`](crate::Refusal::Misconfigured).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// Most drafts have one, and need no list.
    pub(crate) first: Option<Part>,
    pub(crate) others: Vec<Part>,
    pub(crate) pairs: Vec<Pair>,
    /// The limiter's own if it is not said.
    pub(crate) outage: Option<OutageRule>,
}

/// One key and what it is checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: PartitionKey,
    pub(crate) costs: Costs,
    pub(crate) against: Against,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The limiter's own policies, of which there must be some.
    Limiter,
    /// The limiter's own policies, of which there may be none, and these.
    LimiterAnd(Option<Policies>),
    Only(Policies),
}

impl Draft {
    /// Nothing: let it through, uncounted.
    pub fn exempt() -> Self {
        Self::default()
    }

    /// Check this key against all policies of the limiter. Of a policy that `costs` does not name, the request takes 1 unit.
    pub fn check(key: PartitionKey, costs: impl Into<Costs>) -> Self {
        Self::part(key, costs.into(), Against::Limiter)
    }

    /// Check this key against these policies, and not against those of the limiter.
    pub fn check_against(key: PartitionKey, policies: Policies, costs: impl Into<Costs>) -> Self {
        Self::part(key, costs.into(), Against::Only(policies))
    }

    /// Check these pairs.
    pub fn pairs(pairs: impl Into<Vec<Pair>>) -> Self {
        Self { pairs: pairs.into(), ..Self::default() }
    }

    /// What becomes of the request if the store cannot decide; what the [layer](crate::Builder::outage) says unless it is said.
    #[must_use]
    pub fn outage(self, rule: OutageRule) -> Self {
        Self { outage: Some(rule), ..self }
    }

    /// Check this and the other. Where both say an outage rule, the other's stands.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        match (&self.first, other.first) {
            (None, first) => self.first = first,
            (Some(_), first) => self.others.extend(first),
        }
        self.others.extend(other.others);
        self.pairs.extend(other.pairs);
        self.outage = other.outage.or(self.outage);
        self
    }

    fn part(key: PartitionKey, costs: Costs, against: Against) -> Self {
        Self { first: Some(Part { key, costs, against }), ..Self::default() }
    }
}

/// A plan of a key, a cost and exemptions; with policies `S` that are chosen for each request, and with other plans `O` for
/// further keys, if there are any.
///
/// The type of a layer names it: `RateLimitLayer<Keyed<Or<Header, PeerIp>, RouteCosts>>`.
#[derive(Clone, Debug)]
pub struct Keyed<K, C = u32, X = NoExemptions, S = Fixed, O = ()> {
    pub(crate) key: K,
    pub(crate) cost: C,
    pub(crate) exempt: X,
    pub(crate) without_key: WithoutKey,
    pub(crate) selector: S,
    pub(crate) others: O,
}

/// A further key with policies and a cost of its own, for [`Builder::also`](crate::Builder::also); made by [`limit`]. It is a
/// plan of its own, too.
#[derive(Clone, Debug)]
#[must_use = "it limits nothing until it is part of a layer"]
pub struct Limit<K, C = u32, S = Fixed> {
    pub(crate) key: K,
    cost: C,
    without_key: WithoutKey,
    pub(crate) policies: Vec<Policy>,
    selector: S,
    pub(crate) selects: bool,
}

/// Limits by this key, beside another one: the user *and* the address *and* the route.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, header, limit, peer_ip};
///
/// let minute = Duration::from_secs(60);
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .key(header("x-api-key")?)
///     .policy(Policy::new("per-key", 100, minute)?)
///     .also(limit(peer_ip()).policy(Policy::new("per-address", 1_000, minute)?))
///     .build()?;
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub fn limit<K>(key: K) -> Limit<K> {
    let without_key = WithoutKey::default();
    Limit { key, cost: 1, without_key, policies: Vec::new(), selector: Fixed, selects: false }
}

impl<K, C, S> Limit<K, C, S> {
    /// Adds a policy for this key. All policies of a layer need different names, and a request can be checked against at
    /// most [`MAX_PAIRS`](crate::MAX_PAIRS).
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Chooses policies for this key by the request: a [`PolicySelector`]. They come to those of [`policy`](Self::policy),
    /// of which there may be none then.
    pub fn policies<S2>(self, selector: S2) -> Limit<K, C, S2> {
        let Self { key, cost, without_key, policies, .. } = self;
        Limit { key, cost, without_key, policies, selector, selects: true }
    }

    /// What a request takes of these policies: a [`CostFunction`]; 1 quota unit unless it is said.
    pub fn cost<C2>(self, cost: C2) -> Limit<K, C2, S> {
        let Self { key, without_key, policies, selector, selects, .. } = self;
        Limit { key, cost, without_key, policies, selector, selects }
    }

    /// What happens to a request without this key; it is refused unless something else is said. Where it is exempt, the
    /// other keys are checked all the same.
    pub fn without_key(mut self, rule: WithoutKey) -> Self {
        self.without_key = rule;
        self
    }
}

/// What happens to a request that has no key of the kind that is asked for.
///
/// A request whose key is there but cannot be read is refused in any case: otherwise a client would choose, by what it
/// garbles, to be counted with others or not at all. So is one whose key the server is not set up to know, such as the
/// peer's address without connect info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutKey {
    /// It is refused, with 400 over HTTP: nobody passes uncounted, and nobody shares a limit unawares.
    #[default]
    Refuse,
    /// It passes, uncounted; where several keys are checked, uncounted by this one.
    Exempt,
    /// It shares this key with all others that have none.
    Share(PartitionKey),
}

/// Tells which requests pass uncounted. Every closure `Fn(&Req) -> bool` is an exemption.
pub trait Exemption<Req> {
    /// Whether this request passes, uncounted.
    fn is_exempt(&self, request: &Req) -> bool;
}

/// Counts every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoExemptions;

impl<Req, F> Plan<Req> for F
where
    F: Fn(&Req) -> Result<Draft, KeyError>,
{
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        self(request)
    }
}

impl<Req, K, C, X, S, O> Plan<Req> for Keyed<K, C, X, S, O>
where
    K: KeyExtractor<Req>,
    C: CostFunction<Req>,
    X: Exemption<Req>,
    S: PolicySelector<Req>,
    O: Plan<Req>,
{
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        if self.exempt.is_exempt(request) {
            return Ok(Draft::exempt());
        }
        let mut draft = Draft::exempt();
        if let Some(key) = self.without_key.or_key(self.key.extract(request)?)? {
            let against = Against::LimiterAnd(self.selector.select(request));
            draft = Draft::part(key, self.cost.cost(request), against);
        }
        Ok(draft.and(self.others.plan(request)?))
    }
}

impl<Req, K, C, S> Plan<Req> for Limit<K, C, S>
where
    K: KeyExtractor<Req>,
    C: CostFunction<Req>,
    S: PolicySelector<Req>,
{
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        if self.policies.is_empty() && !self.selects {
            return Err(KeyError::Misconfigured { what: "a limit has a key and no policy".to_owned() });
        }
        let Some(key) = self.without_key.or_key(self.key.extract(request)?)? else {
            return Ok(Draft::exempt());
        };
        let mut policies = self.policies.clone();
        policies.extend(self.selector.select(request).iter().flat_map(Policies::as_slice).cloned());
        let against = Against::Only(Policies::unchecked(policies));
        Ok(Draft::part(key, self.cost.cost(request), against))
    }
}

/// Chooses an outage rule for a request: by its route, its cost, its tenant.
///
/// Every closure `Fn(&Req) -> OutageRule` does; see [`from_head`](crate::from_head) for closures that need no type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` chooses no outage rule for a `{Req}`",
    note = "use `from_head`, or a closure that names its parameter: `|request: &{Req}|`, and returns an `OutageRule`"
)]
pub trait OutageSelector<Req> {
    /// What becomes of this request if the store cannot decide.
    fn rule(&self, request: &Req) -> OutageRule;
}

/// The outage rule of each request; made by [`Builder::outage_by`](crate::Builder::outage_by). As a plan it asks nothing.
#[derive(Clone, Copy, Debug)]
pub struct OutageBy<F>(pub(crate) F);

impl<Req, F> OutageSelector<Req> for F
where
    F: Fn(&Req) -> OutageRule,
{
    fn rule(&self, request: &Req) -> OutageRule {
        self(request)
    }
}

impl<B, F> OutageSelector<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> OutageRule,
{
    fn rule(&self, request: &Request<B>) -> OutageRule {
        self.call(request)
    }
}

impl<Req, F: OutageSelector<Req>> Plan<Req> for OutageBy<F> {
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        Ok(Draft::exempt().outage(self.0.rule(request)))
    }
}

/// No further key.
impl<Req> Plan<Req> for () {
    fn plan(&self, _request: &Req) -> Result<Draft, KeyError> {
        Ok(Draft::exempt())
    }
}

/// Both, in one check.
impl<Req, A: Plan<Req>, B: Plan<Req>> Plan<Req> for (A, B) {
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        Ok(self.0.plan(request)?.and(self.1.plan(request)?))
    }
}

impl WithoutKey {
    /// The key that counts; None if the request passes this one by.
    fn or_key(&self, key: Option<PartitionKey>) -> Result<Option<PartitionKey>, KeyError> {
        match (key, self) {
            (Some(key), _) => Ok(Some(key)),
            (None, Self::Share(key)) => Ok(Some(key.clone())),
            (None, Self::Exempt) => Ok(None),
            (None, Self::Refuse) => Err(KeyError::Missing),
        }
    }
}

impl<Req> Exemption<Req> for NoExemptions {
    fn is_exempt(&self, _request: &Req) -> bool {
        false
    }
}

impl<Req, F> Exemption<Req> for F
where
    F: Fn(&Req) -> bool,
{
    fn is_exempt(&self, request: &Req) -> bool {
        self(request)
    }
}

impl<B, F> Exemption<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> bool,
{
    fn is_exempt(&self, request: &Request<B>) -> bool {
        self.call(request)
    }
}
