//! The layer, and the builder whose calls read as a sentence.

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use crate::{
    backend::{Backend, memory::MemoryBackend},
    deny_cache::DenyCache,
    error::ConfigError,
    limiter::{Limiter, LimiterBuilder},
    outage::{Breaker, OutageRule},
    plan::{Keyed, Limit, NoExemptions, OutageBy, WithoutKey},
    policies::Fixed,
    policy::Policy,
    respond::{Http, Refusal, WithRejection},
    service::RateLimit,
    settle::Settling,
};

/// Limits a service: asks the backend for every request, and answers those that are refused itself.
///
/// `P` tells what is asked for a request (a [`Plan`](crate::Plan)), `R` what is answered (a [`Respond`](crate::Respond)).
/// The type can be named in a struct: `RateLimitLayer<Keyed<Or<Header, PeerIp>, RouteCosts>>`. Cloning is cheap, and all
/// clones, and all services that they make, share one state.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{KeyExt, MemoryBackend, Policy, RateLimitLayer, RouteCosts, header, peer_ip};
///
/// let limits = RateLimitLayer::builder(MemoryBackend::new())
///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
///     .policy(Policy::new("sustained", 1_000, Duration::from_secs(3600))?)
///     .key(header("x-api-key")?.or(peer_ip()))
///     .cost(RouteCosts::new().route("/search", 100)?)
///     .build()?;
///
/// # async fn search() {}
/// # use axum::{Router, routing::get};
/// let app: Router = Router::new().route("/search", get(search)).layer(limits);
/// # Ok::<(), tower_sliding_window::ConfigError>(())
/// ```
pub struct RateLimitLayer<P, R = Http> {
    limiter: Limiter,
    plan: Arc<P>,
    respond: Arc<R>,
}

/// Makes a [`RateLimitLayer`]. Policy and key are required; first the key, then what depends on it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<P, R = Http> {
    limiter: LimiterBuilder,
    plan: P,
    respond: R,
}

/// A builder's plan before its key is known; `build` comes with [`key`](Builder::key) or [`plan`](Builder::plan).
#[derive(Clone, Copy, Debug)]
pub struct Unkeyed;

impl RateLimitLayer<Unkeyed> {
    /// Begins a layer that asks this backend.
    pub fn builder(backend: impl Backend) -> Builder<Unkeyed> {
        Builder { limiter: Limiter::builder(backend), plan: Unkeyed, respond: Http }
    }
}

impl<P, R> RateLimitLayer<P, R> {
    /// A layer of these parts: for several layers that share one limiter.
    pub fn new(limiter: Limiter, plan: P, respond: R) -> Self {
        Self { limiter, plan: Arc::new(plan), respond: Arc::new(respond) }
    }

    /// The limiter that this layer asks.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl<P, R> Builder<P, R> {
    /// Adds a policy; see [`LimiterBuilder::policy`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.limiter = self.limiter.policy(policy);
        self
    }

    /// Keeps two applications on one store apart; see [`LimiterBuilder::namespace`].
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.limiter = self.limiter.namespace(namespace);
        self
    }

    /// How long a check may take; see [`LimiterBuilder::deadline`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.limiter = self.limiter.deadline(deadline);
        self
    }

    /// What becomes of a request that the store cannot decide; see [`LimiterBuilder::outage`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, OutageRule, Policy, RateLimitLayer, Share, header};
    ///
    /// // Four processes: in an outage each grants a quarter of every quota.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 100, Duration::from_secs(1))?)
    ///     .outage(OutageRule::Local(Share::among(4)?))
    ///     .key(header("x-api-key")?)
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn outage(mut self, rule: OutageRule) -> Self {
        self.limiter = self.limiter.outage(rule);
        self
    }

    /// When a store that fails is left alone, and for how long; see [`LimiterBuilder::breaker`].
    pub fn breaker(mut self, breaker: impl Into<Option<Breaker>>) -> Self {
        self.limiter = self.limiter.breaker(breaker);
        self
    }

    /// How many checks may be under way at once; see [`LimiterBuilder::max_in_flight`].
    pub fn max_in_flight(mut self, checks: usize) -> Self {
        self.limiter = self.limiter.max_in_flight(checks);
        self
    }

    /// For how long what the store has denied is repeated without asking; see [`LimiterBuilder::deny_cache`].
    pub fn deny_cache(mut self, cache: impl Into<Option<DenyCache>>) -> Self {
        self.limiter = self.limiter.deny_cache(cache);
        self
    }

    /// Where local decisions are kept; see [`LimiterBuilder::local_memory`].
    pub fn local_memory(mut self, memory: MemoryBackend) -> Self {
        self.limiter = self.limiter.local_memory(memory);
        self
    }

    /// How many settlements may wait; see [`LimiterBuilder::settlement_queue`].
    pub fn settlement_queue(mut self, settlements: usize) -> Self {
        self.limiter = self.limiter.settlement_queue(settlements);
        self
    }

    /// Replaces what a request was charged by what it has really used, as its response tells: a [`Used`](crate::Used), such as
    /// a closure `Fn(&Res) -> Option<u32>`.
    ///
    /// The cost is then an estimate. The response does not wait for the settlement, and its header fields tell of the charge
    /// as it was made. The whole charge stands where there is no word of what was used: when the closure says `None`, when the
    /// inner service fails or panics, and when the request is dropped before its response is there.
    ///
    /// The inner service finds the [`Reservation`](crate::Reservation) in the request's extensions, and may settle it itself;
    /// whoever is first, settles.
    ///
    /// A bare number replaces the charges of *all* policies and keys of the request; [`Costs`](crate::Costs) name those that
    /// are meant. The headers of this response still tell of the charge, the next ones of what was used.
    ///
    /// An estimate of 0 is admitted whatever was used before, and what was used is then charged past the quota: do not let a
    /// client choose that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Response, StatusCode};
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, header};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(header("x-api-key")?)
    ///     .settle(|response: &Response<axum::body::Body>| {
    ///         (response.status() == StatusCode::NOT_MODIFIED).then_some(0)
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn settle<F>(self, used: F) -> Builder<P, Settling<F, R>> {
        let respond = Settling::new(used, self.respond);
        Builder { limiter: self.limiter.settling(), plan: self.plan, respond }
    }

    /// Answers refused requests by a closure. The headers are added to its answer, and the decision to its extensions.
    ///
    /// The closure answers all [refusals](Refusal), and chooses the status. Only [`Refusal::Denied`] is a 429: an outage
    /// that looks like a denial sends clients away that have done nothing wrong.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Response, StatusCode};
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, Refusal, header};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(header("x-api-key")?)
    ///     .rejection(|refusal| {
    ///         let status = match refusal {
    ///             Refusal::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
    ///             Refusal::NoKey(_) => StatusCode::UNAUTHORIZED,
    ///             _ => StatusCode::SERVICE_UNAVAILABLE,
    ///         };
    ///         let mut response = Response::new(axum::body::Body::from("slow down"));
    ///         *response.status_mut() = status;
    ///         response
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn rejection<F, Res>(self, reject: F) -> Builder<P, WithRejection<F, R>>
    where
        F: Fn(&Refusal) -> Res,
    {
        let respond = WithRejection::new(reject, self.respond);
        Builder { limiter: self.limiter, plan: self.plan, respond }
    }
}

impl<P> Builder<P, Http> {
    /// Speaks to clients in another way than [`Http`]. What [`rejection`](Self::rejection) and [`settle`](Self::settle) say
    /// comes after it, and is said in this way then.
    pub fn respond<R>(self, respond: R) -> Builder<P, R> {
        Builder { limiter: self.limiter, plan: self.plan, respond }
    }
}

impl<R> Builder<Unkeyed, R> {
    /// Whose usage is counted: a [`KeyExtractor`](crate::KeyExtractor).
    pub fn key<K>(self, key: K) -> Builder<Keyed<K>, R> {
        let without_key = WithoutKey::default();
        let plan = Keyed { key, cost: 1, exempt: NoExemptions, without_key, selector: Fixed, others: () };
        Builder { limiter: self.limiter, plan, respond: self.respond }
    }

    /// What is asked for a request, where a key, a cost and exemptions do not say it: a [`Plan`](crate::Plan).
    pub fn plan<P>(self, plan: P) -> Builder<Planned<P>, R> {
        Builder { limiter: self.limiter, plan: Planned(plan), respond: self.respond }
    }
}

/// A builder's plan that is the user's own.
#[derive(Clone, Copy, Debug)]
pub struct Planned<P>(P);

impl<K, C, X, S, O, R> Builder<Keyed<K, C, X, S, O>, R> {
    /// What a request takes: a [`CostFunction`](crate::CostFunction); 1 quota unit of every policy unless it is said.
    pub fn cost<C2>(self, cost: C2) -> Builder<Keyed<K, C2, X, S, O>, R> {
        let Keyed { key, exempt, without_key, selector, others, .. } = self.plan;
        let plan = Keyed { key, cost, exempt, without_key, selector, others };
        Builder { limiter: self.limiter, plan, respond: self.respond }
    }

    /// Which requests pass uncounted, whatever keys they have: an [`Exemption`](crate::Exemption); none unless it is said.
    pub fn exempt<X2>(self, exempt: X2) -> Builder<Keyed<K, C, X2, S, O>, R> {
        let Keyed { key, cost, without_key, selector, others, .. } = self.plan;
        let plan = Keyed { key, cost, exempt, without_key, selector, others };
        Builder { limiter: self.limiter, plan, respond: self.respond }
    }

    /// What happens to a request without a key; it is refused unless something else is said.
    pub fn without_key(mut self, rule: WithoutKey) -> Self {
        self.plan.without_key = rule;
        self
    }

    /// Chooses policies by the request, by its tier, for example: a [`PolicySelector`](crate::PolicySelector). They come to
    /// those of [`policy`](Self::policy), of which there may be none then. A request for which it chooses none passes, where
    /// there are no others, uncounted.
    ///
    /// All policies of one request need different names, and there are at most [`MAX_PAIRS`](crate::MAX_PAIRS) of them: a
    /// request that has others is refused, with 500 over HTTP.
    pub fn policies<S2>(self, selector: S2) -> Builder<Keyed<K, C, X, S2, O>, R> {
        let Keyed { key, cost, exempt, without_key, others, .. } = self.plan;
        let plan = Keyed { key, cost, exempt, without_key, selector, others };
        Builder { limiter: self.limiter.without_policies(), plan, respond: self.respond }
    }

    /// Limits by a further key at the same time, with policies and a cost of its own; see [`limit`](crate::limit). All keys are
    /// one check: it is admitted if all policies have room, and then all are charged.
    #[expect(clippy::type_complexity, reason = "a name for it would only hide what it is made of")]
    pub fn also<K2, C2, S2>(
        self,
        limit: Limit<K2, C2, S2>,
    ) -> Builder<Keyed<K, C, X, S, (O, Limit<K2, C2, S2>)>, R> {
        let Keyed { key, cost, exempt, without_key, selector, others } = self.plan;
        let limiter = self.limiter.other(limit.policies.iter().cloned(), limit.selects);
        let plan = Keyed { key, cost, exempt, without_key, selector, others: (others, limit) };
        Builder { limiter, plan, respond: self.respond }
    }

    /// What becomes of this request if the store cannot decide: an [`OutageSelector`](crate::OutageSelector), such as a closure
    /// `Fn(&Req) -> OutageRule`. It is asked for every request that is counted, and stands before what
    /// [`outage`](Self::outage) says.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, OutageRule, Policy, RateLimitLayer, from_head, header};
    ///
    /// // What is cheap goes on, and what is dear does not.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 100, Duration::from_secs(1))?)
    ///     .key(header("x-api-key")?)
    ///     .outage_by(from_head(|head| match head.uri.path() {
    ///         "/export" => OutageRule::Refuse,
    ///         _ => OutageRule::Admit,
    ///     }))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "a name for it would only hide what it is made of")]
    pub fn outage_by<F>(self, rule: F) -> Builder<Keyed<K, C, X, S, (O, OutageBy<F>)>, R> {
        let Keyed { key, cost, exempt, without_key, selector, others } = self.plan;
        let plan = Keyed { key, cost, exempt, without_key, selector, others: (others, OutageBy(rule)) };
        Builder { limiter: self.limiter, plan, respond: self.respond }
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// Those of [`LimiterBuilder::build`], for the policies of all keys together, and [`ConfigError::CannotSettle`].
    #[expect(clippy::type_complexity, reason = "a name for it would only hide what it is made of")]
    pub fn build(self) -> Result<RateLimitLayer<Keyed<K, C, X, S, O>, R>, ConfigError> {
        Ok(RateLimitLayer::new(self.limiter.build()?, self.plan, self.respond))
    }
}

impl<P, R> Builder<Planned<P>, R> {
    /// Needs no policies: the plan brings them along; see [`LimiterBuilder::without_policies`].
    pub fn without_policies(mut self) -> Self {
        self.limiter = self.limiter.without_policies();
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// Those of [`LimiterBuilder::build`], and [`ConfigError::CannotSettle`].
    pub fn build(self) -> Result<RateLimitLayer<P, R>, ConfigError> {
        Ok(RateLimitLayer::new(self.limiter.build()?, self.plan.0, self.respond))
    }
}

impl<S, P, R> Layer<S> for RateLimitLayer<P, R> {
    type Service = RateLimit<S, P, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.limiter.clone(), self.plan.clone(), self.respond.clone())
    }
}

impl<P, R> Clone for RateLimitLayer<P, R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), plan: self.plan.clone(), respond: self.respond.clone() }
    }
}

impl<P, R> fmt::Debug for RateLimitLayer<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
