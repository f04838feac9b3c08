//! The builder of a layer for HTTP. Its calls come in any order.

use std::{fmt, iter, sync::Arc, time::Duration};

use tower_layer::Layer;

use crate::{
    answer::{Answer, Dialect, IntoAnswer, ProblemDetails, RetryAfter, WithFields, with_status},
    backend::{Backend, memory::MemoryBackend},
    check::MAX_PAIRS,
    cost::{CostFunction, IntoCosts, IntoUsed},
    deny_cache::DenyCacheConfig,
    error::ConfigError,
    head::{Head, ResponseHead},
    key::{self, KeyExtractor, MissingKey, PartitionKey},
    layer::RateLimitLayer,
    limit::{CostRules, IntoLimit, Limit, limit},
    limiter::{IntoDraft, Limiter, LimiterBuilder, Rejection, Reserve},
    outage::{Breaker, OutageRule},
    parameter::IntoOption,
    policy::{IntoTier, MAX_WINDOW, Policy, PolicySelector, TableUse, check_held, distinct},
    protocol::{HeadFn, Http, HttpOptions, Peers, Tables},
    settle::Unsettled,
};

/// The builder of a [`RateLimitLayer`] for HTTP.
///
/// A policy and a key are required. The cost is 1 by default, and everything else has a safe default. The calls come in any
/// order. Key, cost, policies and outage rule each have two methods: one for a value, and one named `.._by` for a closure. The
/// closure takes the request's [`Head`].
///
/// A secret for the hash of partition keys is a setting of the backend: call `RedisBackendBuilder::hash_secret` before
/// [`RateLimitLayer::builder`]. [The guide](crate::guide::deployment#hash-secret) states where to keep the secret.
#[derive(Clone)]
#[must_use = "a builder does nothing until `.build()?`"]
pub struct RateLimitLayerBuilder {
    limiter: Source,
    has_key: bool,
    /// A method that has no effect together with `plan_by`.
    unplanned: Option<&'static str>,
    first: Limit,
    options: HttpOptions,
    dialect: Option<Dialect>,
    retry_after: Option<RetryAfter>,
}

/// A [`Backend`] or a [`Limiter`]: what a layer is built over. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit backend or a limiter",
    label = "expected a backend, such as `MemoryBackend::new()` or a `RedisBackend`, or a `Limiter`",
    note = "if the value is a `Result`, add `?`; if it is a future, add `.await`; if it is a `RedisBackendBuilder`, call `.lazy()?` or `.connect().await?`",
    note = "if it is a URL, write `RedisBackend::lazy(url)?`; if it is an `Arc`, pass a clone of the backend, which shares its counts"
)]
pub trait IntoSource {
    #[doc(hidden)]
    fn into_source(self) -> Source;
}

#[diagnostic::do_not_recommend]
impl<B: Backend> IntoSource for B {
    fn into_source(self) -> Source {
        Source::Own(Box::new(Limiter::builder(self)))
    }
}

impl IntoSource for Limiter {
    fn into_source(self) -> Source {
        Source::Shared(self, None)
    }
}

/// The limiter of the layer.
#[derive(Clone)]
pub enum Source {
    Own(Box<LimiterBuilder>),
    /// A limiter that several layers share, and a method that cannot change it.
    Shared(Limiter, Option<&'static str>),
}

impl RateLimitLayer {
    /// Returns a builder for a layer over a [`Backend`], or over a [`Limiter`] that several layers may share.
    ///
    /// The policies of a shared limiter apply in addition to those of the layer. Set its settings, such as its deadline, with
    /// [`Limiter::builder`].
    ///
    /// The builder has the same type for every backend. So a program can
    /// [choose its backend at run time](crate::guide::cookbook#choose-the-backend-at-run-time).
    pub fn builder(backend_or_limiter: impl IntoSource) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder {
            limiter: backend_or_limiter.into_source(),
            has_key: false,
            unplanned: None,
            first: limit(key::from_fn(|_| None::<PartitionKey>)),
            options: HttpOptions::default(),
            dialect: None,
            retry_after: None,
        }
    }
}

impl RateLimitLayerBuilder {
    fn limiter(self, method: &'static str, change: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> Self {
        let limiter = match self.limiter {
            Source::Own(builder) => Source::Own(Box::new(change(*builder))),
            Source::Shared(limiter, misused) => Source::Shared(limiter, misused.or(Some(method))),
        };
        Self { limiter, ..self }
    }

    /// Changes the first limit, which `plan_by` would replace.
    fn first(self, method: &'static str, change: impl FnOnce(Limit) -> Limit) -> Self {
        Self { first: change(self.first), unplanned: self.unplanned.or(Some(method)), ..self }
    }

    /// Changes the options of the protocol.
    fn option(mut self, set: impl FnOnce(&mut HttpOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// Sets the partition key: whose usage this limit counts.
    pub fn key(self, key: impl KeyExtractor) -> Self {
        Self { has_key: true, ..self.first("key", |limit| limit.with_key(key)) }
    }

    /// Sets the partition key by a closure. It returns a [`PartitionKey`], or an `Option` or a `Result` of one.
    ///
    /// The closure cannot be async. To look up a key asynchronously, use
    /// [an earlier layer](crate::guide::cookbook#limit-by-a-tenant-that-is-looked-up-asynchronously).
    ///
    /// Return a value that the client cannot invent. For a header, use [`header`](crate::header), which also rejects repeated and
    /// malformed values.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, PartitionKey, Policy, RateLimitLayer};
    ///
    /// /// The user, as an earlier layer has verified it.
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key_by(|head| head.extension::<User>().map(|user| PartitionKey::new("user", user.id.to_be_bytes())))
    ///     .cost_by(|head| if head.method.is_safe() { 1 } else { 5 })
    ///     .exempt(|head| head.uri.path() == "/health")
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn key_by<K: key::IntoKey>(self, key: impl Fn(&Head<'_>) -> K + Send + Sync + 'static) -> Self {
        self.key(key::from_fn(key))
    }

    /// Sets the rule for a request without a key. The default is to reject it.
    pub fn missing_key(self, rule: MissingKey) -> Self {
        self.first("missing_key", |limit| limit.missing_key(rule))
    }

    /// Adds a policy. There may be up to [`MAX_PAIRS`] policies, with different names.
    pub fn policy(self, policy: Policy) -> Self {
        Self { first: self.first.policy(policy), ..self }
    }

    /// Chooses policies by the request, for example by its tier. The layer adds them to the policies of [`policy`](Self::policy),
    /// which is then optional, and of other selectors. If a request has no policy at all, it passes uncounted.
    ///
    /// One request may have at most [`MAX_PAIRS`] policies, all with different names. Otherwise, the layer rejects the request
    /// with [`Rejection::Misconfigured`], over HTTP with 500.
    pub fn policies(self, selector: impl PolicySelector) -> Self {
        self.first("policies", |limit| limit.policies(selector))
    }

    /// Chooses policies by a closure; see [`policies`](Self::policies). It returns a [`Policy`], [`Policies`](crate::Policies) or a
    /// [`Tier`](crate::policy::Tier). `Tier::Unlimited` adds no policies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip, policy::Tier};
    ///
    /// let minute = Duration::from_secs(60);
    /// let searches = Policy::new("searches", 10, minute)?;
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 600, minute)?)
    ///     .policies_by(move |head| match head.uri.path() {
    ///         "/search" => searches.clone().into(),
    ///         _ => Tier::Unlimited,
    ///     })
    ///     .key(peer_ip())
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn policies_by<T: IntoTier>(self, choose: impl Fn(&Head<'_>) -> T + Send + Sync + 'static) -> Self {
        self.first("policies_by", |limit| limit.policies_by(choose))
    }

    /// Sets the cost of a request for the first key of the layer. The default is 1 quota unit of every policy. A
    /// [further limit](Self::also) has a cost of its own.
    pub fn cost(self, cost: impl CostFunction) -> Self {
        self.first("cost", |limit| limit.cost(cost))
    }

    /// Sets the cost of a request by a closure. It returns a `u32` or [`Costs`](crate::Costs). It cannot be async.
    pub fn cost_by<C: IntoCosts>(self, cost: impl Fn(&Head<'_>) -> C + Send + Sync + 'static) -> Self {
        self.first("cost_by", |limit| limit.cost_by(cost))
    }

    /// Adds a further limit, with a key, policies and a cost of its own; see [`limit`]. All limits of a layer are one check: it
    /// is admitted if all policies have room, and then all are charged.
    pub fn also(self, limit: impl IntoLimit) -> Self {
        self.option(|options| options.others.push(limit.into_limit()))
    }

    /// Plans the check of a request by a closure, in place of `key`, `missing_key`, `cost` and `policies`. Use it for explicit
    /// pairs of keys and policies, or for an outage rule per draft. The closure returns a [`Draft`](crate::protocol::Draft), or
    /// another type that implements [`IntoDraft`].
    ///
    /// A key without policies of its own is checked against the policies of [`policy`](Self::policy). If there are none, the
    /// layer rejects the request with [`Rejection::Misconfigured`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, PartitionKey, Policy, RateLimitLayer, key::KeyError, protocol::Draft};
    ///
    /// /// The user, as an earlier layer has verified it.
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let uploads = Policy::new("uploads", 5, Duration::from_secs(60))?;
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 100, Duration::from_secs(60))?)
    ///     .plan_by(move |head| {
    ///         let user = head.extension::<User>().ok_or_else(|| KeyError::missing("user"))?;
    ///         let user = PartitionKey::new("user", user.id.to_be_bytes());
    ///         let requests = Draft::check(user.clone(), 1);
    ///         Ok(match head.uri.path() {
    ///             "/health" => Draft::exempt(),
    ///             "/upload" => requests.and(Draft::check_against(user, uploads.clone(), 1)),
    ///             _ => requests,
    ///         })
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn plan_by<T: IntoDraft>(self, plan: impl Fn(&Head<'_>) -> T + Send + Sync + 'static) -> Self {
        self.option(|options| options.plan = Some(Arc::new(move |head| plan(head).into_draft())))
    }

    /// Exempts the requests for which the closure returns true: they pass uncounted by all limits of the layer. If it is called
    /// several times, each closure exempts requests. Compare a path [as a whole](crate::guide::keys#exempt-requests).
    pub fn exempt(self, exempt: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.option(|options| options.exempt = Some(either(options.exempt.take(), exempt)))
    }

    /// Puts all policies of the layer in shadow mode: the layer counts requests, and rejects none. This includes the policies of a
    /// shared limiter and of further limits. For a single policy, use [`Policy::shadow`].
    ///
    /// The layer also passes requests without a partition key, uncounted, and requests whose check fails. The
    /// [guide](crate::guide::rollout) describes how to read what the policies would have denied.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .shadow()
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn shadow(self) -> Self {
        self.shadow_by(|_| true)
    }

    /// Puts all policies of the layer in [shadow mode](Self::shadow) for the requests for which the closure returns true. If it is
    /// called several times, each closure selects requests.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, extension};
    ///
    /// /// The tenant, as an earlier layer has verified it.
    /// #[derive(Clone)]
    /// struct Tenant { id: String }
    ///
    /// // The limit is enforced for one tenant so far.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("requests", 1_000, Duration::from_secs(60))?)
    ///     .key(extension("tenant", |tenant: &Tenant| tenant.id.clone()))
    ///     .shadow_by(|head| head.extension::<Tenant>().is_none_or(|tenant| tenant.id != "acme"))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn shadow_by(self, is_shadow: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.option(|options| options.shadow = Some(either(options.shadow.take(), is_shadow)))
    }

    /// Enforces the policies of the layer for this percentage of the partition keys, 0 to 100. For all other keys, the policies are in
    /// shadow mode. The default is 100.
    ///
    /// A key is enforced if its [percentile](PartitionKey::percentile) is below the percentage. So a key that is enforced at 10 percent
    /// is also enforced at 20 percent, in every process. Each limit of a layer goes by its own key. A
    /// [region](Self::region) makes no difference. A request without a key is rejected as usual. A client that can choose its key can
    /// choose one that is not enforced.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .enforce_percent(10)
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn enforce_percent(self, percent: u32) -> Self {
        self.option(|options| options.enforce_percent = Some(percent))
    }

    /// Sets the outage rule: what happens to a request if the backend makes no decision. The default is to
    /// [fail closed](OutageRule::FailClosed).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, OutageRule, Policy, RateLimitLayer, outage::Share, peer_ip};
    ///
    /// // Four processes: in an outage, each grants a quarter of every quota.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 100, Duration::from_secs(1))?)
    ///     .outage(OutageRule::LocalFallback(Share::among(4)?))
    ///     .key(peer_ip())
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn outage(self, rule: OutageRule) -> Self {
        self.option(|options| options.outage = Some(rule))
    }

    /// Sets the outage rule by a closure, which the layer calls for every request that it checks. It replaces the rule of
    /// [`outage`](Self::outage).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, OutageRule, Policy, RateLimitLayer, peer_ip};
    ///
    /// // Cheap requests go on in an outage, expensive requests do not.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 100, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .outage_by(|head| match head.uri.path() {
    ///         "/export" => OutageRule::FailClosed,
    ///         _ => OutageRule::FailOpen,
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn outage_by(self, rule: impl Fn(&Head<'_>) -> OutageRule + Send + Sync + 'static) -> Self {
        self.option(|options| options.outage_by = Some(Arc::new(rule)))
    }

    /// Settles every charge: replaces it by the amount used, which the closure returns for the response. The cost is then an
    /// estimate.
    ///
    /// The closure returns a `u32`, [`Costs`](crate::Costs), or an `Option` of one. A `u32` replaces the charges of *all* policies of the request,
    /// including those of further limits. [`Costs`](crate::Costs) replace only the charges of the policies that they name. If the
    /// closure returns `None`, the charge stands. It also stands if the inner service fails or panics, or if the request is
    /// dropped before its response, unless [`unsettled`](Self::unsettled) sets another rule. Two functions are ready to use:
    ///
    /// - [`actual_cost`](crate::settle::actual_cost) reads the [`ActualCost`](crate::settle::ActualCost) that the handler leaves.
    /// - [`by_hand`](crate::settle::by_hand) leaves the settlement to the handler, which takes the
    ///   [`Reservation`](crate::Reservation) from its request. For a streamed response, it uses a [`Meter`](crate::settle::Meter).
    ///
    /// Settling does not delay the response. The header fields of this response state the charge as it was made. An estimate of 0
    /// is always admitted, and the amount used is then charged beyond the quota. Therefore, a constant cost of 0 for all requests is
    /// an error. Do not let a closure return 0, and do not let a client choose the estimate.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::StatusCode;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// // A 304 response is free.
    /// let downloads = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("downloads", 100, Duration::from_secs(60))?)
    ///     .key(peer_ip())
    ///     .settle_by(|response| (response.status == StatusCode::NOT_MODIFIED).then_some(0))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    ///
    /// To count failed logins only, do not refund by the status: see
    /// [the guide](crate::guide::settling#settle-by-the-response).
    pub fn settle_by<U: IntoUsed>(
        self,
        used: impl Fn(&ResponseHead<'_>) -> U + Send + Sync + 'static,
    ) -> Self {
        self.option(|options| options.settle = Some(Arc::new(move |response| used(response).into_used())))
    }

    /// Sets what happens to the charge of a [reservation](crate::Reservation) that is dropped unsettled, for example because the
    /// handler panics or the client disconnects before the response. The default is [`Unsettled::Keep`]: the charge stands. If the
    /// layer shares a limiter, the rule of the limiter is the default.
    ///
    /// With [`Unsettled::Refund`], a request is also refunded if the closure of [`settle_by`](Self::settle_by) returns `None` and
    /// the handler does not settle it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{
    ///     MemoryBackend, Policy, RateLimitLayer, peer_ip,
    ///     settle::{Unsettled, by_hand},
    /// };
    ///
    /// // The handler settles what it has used. If it panics, the request is free.
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("tokens", 10_000, Duration::from_secs(60))?)
    ///     .key(peer_ip())
    ///     .cost(500)
    ///     .settle_by(by_hand)
    ///     .unsettled(Unsettled::Refund)
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn unsettled(self, rule: Unsettled) -> Self {
        self.option(|options| options.unsettled = Some(rule))
    }

    /// Clamps the estimate of a [reservation](crate::Reservation) to the quotas of its policies, for all limits of the layer; see
    /// [`LimiterBuilder::clamp_estimates`]. A request is a reservation if the layer [settles](Self::settle_by), or if its draft
    /// [reserves](crate::protocol::Draft::reserve). For all other requests, a cost above a quota is never admitted.
    pub fn clamp_estimates(self) -> Self {
        self.option(|options| options.clamps = true)
    }

    /// Builds the responses of rejected requests by a closure, which cannot be async. The layer adds the header fields and the extension.
    ///
    /// The closure answers all [rejections](Rejection) and chooses the status, with two exceptions below. Use 429 only for
    /// [`Rejection::Denied`] and [`Rejection::WaitTooLong`]. If an outage looked like a denial, clients would wait although they have not exceeded a limit. A response with the status 200, such as
    /// that of `Response::new`, gets the status of [`Rejection::status`], unless it has the header field `grpc-status`. If your clients expect an
    /// error with the status 200, implement [`Answer`] instead. With `answer::HttpOrGrpc`, the closure answers only requests that are not
    /// gRPC calls.
    ///
    /// The layer adds `Cache-Control: no-store`, unless the response has a `Cache-Control` of its own. The closure returns an
    /// `http::Response` with a complete body. In axum (feature `axum`), add `.into_response()` to what a handler would return.
    ///
    /// For the text of the body, use [`Rejection::client_text`]. The text of `Display` may name a [hidden](Policy::hidden) policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Response, StatusCode};
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, Rejection, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .rejection(|rejection, head| {
    ///         let mut response = Response::new(format!("{} is rate limited", head.uri.path()));
    ///         *response.status_mut() = match rejection {
    ///             Rejection::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
    ///             Rejection::Key(_) => StatusCode::UNAUTHORIZED,
    ///             _ => StatusCode::SERVICE_UNAVAILABLE,
    ///         };
    ///         response
    ///     })
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn rejection<A: IntoAnswer>(
        self,
        reject: impl Fn(&Rejection, &Head<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.option(|options| {
            options.reject = Some(Arc::new(move |rejection, head| {
                with_status(rejection, reject(rejection, head).into_answer())
            }));
        })
    }

    /// Sets the responses to rejected requests, and the header fields. The default is [`ProblemDetails`]. Use `answer::Grpc` or
    /// `answer::HttpOrGrpc` (feature `tonic`) for tonic.
    pub fn answer(self, answer: impl Answer) -> Self {
        self.option(|options| options.answer = Some(Arc::new(answer)))
    }

    /// Sets the dialect of the rate limit fields of all responses. The default is [`Dialect::Draft11`], or the fields of an
    /// [`answer`](Self::answer) that has fields of its own; a dialect replaces these.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, answer::{Dialect, Reset}, peer_ip};
    ///
    /// // X-RateLimit-Limit: 10, X-RateLimit-Remaining: 9, X-RateLimit-Reset: 1
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .dialect(Dialect::XRateLimit(Reset::Seconds))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn dialect(self, dialect: Dialect) -> Self {
        Self { dialect: Some(dialect), ..self }
    }

    /// Adds a random time, from zero to `max`, to the wait in `Retry-After`, so that clients that were denied together do not
    /// return together. The sum is rounded up to whole seconds, so use seconds. The default is zero.
    ///
    /// The field never states less than the exact wait. The wait in a body, the `t` of `RateLimit`, and the wait over gRPC have no
    /// jitter. The fields of an [`answer`](Self::answer) that has fields of its own are replaced, as by
    /// [`dialect`](Self::dialect).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .retry_after_jitter(Duration::from_secs(5))
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn retry_after_jitter(self, max: Duration) -> Self {
        let settings = RetryAfter { max_jitter: max, ..self.retry_after.unwrap_or_default() };
        Self { retry_after: Some(settings), ..self }
    }

    /// Adds `retry-after-ms` to every denial that has `Retry-After`: the same wait in milliseconds, rounded up. The clients of OpenAI
    /// and Anthropic prefer it, so they wait up to a second less. It has no standard. By default, no response has it. A script in the
    /// browser reads it only if [CORS exposes it](crate::guide::proxies#cors-preflight-requests-and-429-in-the-browser).
    ///
    /// If an answer has [fields of its own](Answer::fields), this replaces them by those of the [`dialect`](Self::dialect).
    pub fn retry_after_ms(self) -> Self {
        let settings = RetryAfter { states_millis: true, ..self.retry_after.unwrap_or_default() };
        Self { retry_after: Some(settings), ..self }
    }

    /// Leaves the [`Decision`](crate::Decision) of an admitted request out of its extensions, for services in which no handler reads it.
    ///
    /// This saves up to three allocations of each request. The header fields do not depend on it. Reservations, the
    /// [`Hold`](crate::hold::Hold) of a request in flight and the values of an outage stay in the extensions.
    ///
    /// If an outer layer does not omit decisions, a handler
    /// reads the decision of that layer. Of nested layers, this one is not compared with the others: no warning says that both charge the
    /// same pair.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryBackend, Policy, RateLimitLayer, peer_ip};
    ///
    /// let limits = RateLimitLayer::builder(MemoryBackend::new())
    ///     .policy(Policy::new("burst", 10, Duration::from_secs(1))?)
    ///     .key(peer_ip())
    ///     .omit_decision()
    ///     .build()?;
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn omit_decision(self) -> Self {
        self.option(|options| options.omits_decision = true)
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns:
    ///
    /// - [`ConfigError::NoKey`] without a key
    /// - [`ConfigError::PlanAndPart`] if `plan_by` replaces a part that was set
    /// - [`ConfigError::RejectionOverGrpc`] if a closure builds responses that `answer::Grpc` would replace
    /// - [`ConfigError::NoPolicies`] or [`ConfigError::LimitWithoutPolicy`] if a limit has no policies
    /// - [`ConfigError::CannotSettle`] if the layer settles and the backend cannot change charges
    /// - [`ConfigError::SharedLimiter`] if a setting of a shared limiter is changed
    /// - [`ConfigError::InvalidValue`] if the percentage of enforced keys is above 100, or the jitter of `Retry-After` is longer than 366
    ///   days
    /// - [`ConfigError::CostAboveQuota`] if a constant cost is above the quota of a policy, unless it is a clamped estimate
    /// - [`ConfigError::ZeroEstimate`] if the layer settles and the constant cost of all requests is 0 for a policy
    /// - [`ConfigError::TooManyCharges`] if a constant cost allows more charges in a window than a sliding log can hold
    /// - [`ConfigError::CostWithoutPolicy`] if a constant cost names a policy that the layer does not have
    /// - [`ConfigError::InvalidTier`] if a tier of a [policy table](crate::PolicyTable#changes-that-do-not-suit-a-layer) does not suit
    ///   the policies
    /// - the errors of [`LimiterBuilder::build`] for the policies of all limits together
    pub fn build(mut self) -> Result<RateLimitLayer, ConfigError> {
        self.check_parts()?;
        let limiter = match &self.limiter {
            Source::Own(builder) => {
                let limiter = self.own_limiter(builder)?;
                // They are those of the limiter now.
                self.first = self.first.without_policies();
                limiter
            }
            Source::Shared(_, Some(method)) => return Err(ConfigError::SharedLimiter { method }),
            Source::Shared(limiter, None) => {
                self.check_shared(limiter)?;
                limiter.clone()
            }
        };
        self.check_costs(&limiter)?;
        let tables = self.tables(&limiter)?;
        let http = self.into_http(&limiter, tables);
        Ok(RateLimitLayer::new(limiter, http))
    }

    /// Checks the parts that do not depend on the limiter.
    fn check_parts(&self) -> Result<(), ConfigError> {
        let (percent, text) = (self.options.enforce_percent, "0 to 100 percent of the partition keys");
        ConfigError::check_range("enforce_percent", percent.unwrap_or(100), 0..=100, text)?;
        let jitter = self.retry_after.map_or(Duration::ZERO, |settings| settings.max_jitter);
        ConfigError::check_range(
            "retry_after_jitter",
            jitter,
            Duration::ZERO..=MAX_WINDOW,
            "0 s to 366 days",
        )?;
        match (&self.options.plan, self.unplanned) {
            (None, _) if !self.has_key => return Err(ConfigError::NoKey),
            (Some(_), Some(method)) => return Err(ConfigError::PlanAndPart { method }),
            _ => {}
        }
        // An answer that overrides the closure for a plain request as well does so for every request.
        let plain = http::Request::new(());
        let is_overridden = |answer: &Arc<dyn Answer>| answer.overrides_rejection(&Head::from(&plain));
        if self.options.reject.is_some() && self.options.answer.as_ref().is_some_and(is_overridden) {
            return Err(ConfigError::RejectionOverGrpc);
        }
        let lacks_policies = |limit: &Limit| limit.own_policies().is_empty() && !limit.chooses_policies();
        if self.options.others.iter().any(lacks_policies) {
            return Err(ConfigError::LimitWithoutPolicy);
        }
        Ok(())
    }

    /// Builds the limiter of this layer alone.
    fn own_limiter(&self, builder: &LimiterBuilder) -> Result<Limiter, ConfigError> {
        let HttpOptions { settle, unsettled, clamps, outage, .. } = &self.options;
        let mut builder = builder.clone();
        builder.policies = self.first.own_policies().to_vec();
        builder.others = self.further_policies().cloned().collect();
        builder.needs_policies = !self.may_lack_policies();
        builder.settles = settle.is_some();
        builder.rule = outage.unwrap_or_default();
        builder.reserve = Reserve { unsettled: unsettled.unwrap_or_default(), clamps: *clamps };
        builder.build()
    }

    /// Checks whether a limiter that several layers share suits this layer.
    fn check_shared(&self, limiter: &Limiter) -> Result<(), ConfigError> {
        let first = self.first.own_policies();
        if self.options.plan.is_some() && !first.is_empty() {
            return Err(ConfigError::PlanAndPart { method: "policy" });
        }
        let own = limiter.policies().iter().chain(first);
        if own.clone().next().is_none() && !self.may_lack_policies() {
            return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
        }
        distinct(&own.chain(self.further_policies()).cloned().collect::<Vec<_>>())?;
        if self.options.settle.is_some() && !limiter.can_settle() {
            return Err(ConfigError::CannotSettle);
        }
        check_held(first.iter().chain(self.further_policies()), limiter.holds_units())
    }

    /// Compares the constant costs with the policies. A plan has no constant costs, and may choose any policies.
    fn check_costs(&self, limiter: &Limiter) -> Result<(), ConfigError> {
        let HttpOptions { plan, others, settle, .. } = &self.options;
        let first: Vec<Policy> =
            limiter.policies().iter().chain(self.first.own_policies()).cloned().collect();
        let names: Vec<&str> = first.iter().chain(self.further_policies()).map(Policy::name).collect();
        let is_chosen = plan.is_some() || self.limits().any(Limit::chooses_policies);
        let names = (!is_chosen).then_some(&*names);
        // A layer that settles makes every request a reservation.
        let settles = settle.is_some();
        let clamps = self.clamps(limiter);
        let rules = CostRules { names, settles, clamps };
        if plan.is_none() {
            self.first.check_costs(&first, &rules)?;
        }
        others.iter().try_for_each(|limit| limit.check_costs(limit.own_policies(), &rules))
    }

    /// Compares the policy tables with the policies and the constant costs.
    fn tables(&self, limiter: &Limiter) -> Result<Option<Tables>, ConfigError> {
        let limits: Vec<&Limit> = self.limits().collect();
        let own = limiter.policies().iter().chain(self.first.own_policies());
        let of_layer = TableUse {
            fixed: own.chain(self.further_policies()).cloned().collect(),
            limits: Vec::new(),
            clamps: self.clamps(limiter),
            settles: self.options.settle.is_some(),
            holds_units: limiter.holds_units(),
            keeps_bodies: false,
        };
        Tables::new(limiter, &limits, &of_layer, self.options.plan.is_some())
    }

    /// Returns whether a constant cost may be above a quota: the layer settles, and clamps its estimates.
    fn clamps(&self, limiter: &Limiter) -> bool {
        self.options.settle.is_some() && (self.options.clamps || limiter.clamps_estimates())
    }

    fn into_http(mut self, limiter: &Limiter, tables: Option<Tables>) -> Http {
        if self.dialect.is_some() || self.retry_after.is_some() {
            self.options.answer = Some(Arc::new(WithFields {
                answer: self.options.answer.unwrap_or_else(|| Arc::new(ProblemDetails)),
                dialect: self.dialect.unwrap_or_default(),
                retry_after: self.retry_after.unwrap_or_default(),
            }));
        }
        let counts_by_peer = self.limits().any(Limit::counts_by_peer);
        let peers = counts_by_peer.then(|| Arc::new(Peers::new(limiter.clone())));
        let is_plain = peers.is_none() && tables.is_none() && self.options.are_plain();
        Http { first: self.first, peers, tables: tables.map(Arc::new), options: self.options, is_plain }
    }

    fn may_lack_policies(&self) -> bool {
        self.options.plan.is_some() || self.first.chooses_policies()
    }

    /// Returns all limits of the layer.
    fn limits(&self) -> impl Iterator<Item = &Limit> {
        iter::once(&self.first).chain(&self.options.others)
    }

    /// Returns the policies of the further limits.
    fn further_policies(&self) -> impl Iterator<Item = &Policy> {
        self.options.others.iter().flat_map(Limit::own_policies)
    }
}

/// The settings of the limiter.
impl RateLimitLayerBuilder {
    /// Sets the namespace, which separates two applications on one store; see [`LimiterBuilder::namespace`].
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.limiter("namespace", |limiter| limiter.namespace(namespace))
    }

    /// Makes the name of a region a part of every key; see [`LimiterBuilder::region`].
    pub fn region(self, region: impl Into<String>) -> Self {
        self.limiter("region", |limiter| limiter.region(region))
    }

    /// Sets the deadline of a check; see [`LimiterBuilder::deadline`].
    pub fn deadline(self, deadline: Duration) -> Self {
        self.limiter("deadline", |limiter| limiter.deadline(deadline))
    }

    /// Configures the circuit breaker; see [`LimiterBuilder::breaker`].
    pub fn breaker(self, breaker: impl IntoOption<Breaker>) -> Self {
        self.limiter("breaker", |limiter| limiter.breaker(breaker))
    }

    /// Sets how many checks may be in flight; see [`LimiterBuilder::max_checks_in_flight`].
    pub fn max_checks_in_flight(self, checks: usize) -> Self {
        self.limiter("max_checks_in_flight", |limiter| limiter.max_checks_in_flight(checks))
    }

    /// Sets the fraction of a quota that counts as near the limit; see [`LimiterBuilder::near_limit`].
    pub fn near_limit(self, fraction: f64) -> Self {
        self.limiter("near_limit", |limiter| limiter.near_limit(fraction))
    }

    /// Adds pseudonyms of partition keys to the events of denials, under a secret of at least 32 random bytes; see
    /// [`LimiterBuilder::pseudonyms`].
    pub fn pseudonyms(self, secret: impl AsRef<[u8]>) -> Self {
        self.limiter("pseudonyms", |limiter| limiter.pseudonyms(secret))
    }

    /// Configures the deny cache; see [`LimiterBuilder::deny_cache`].
    pub fn deny_cache(self, cache: impl IntoOption<DenyCacheConfig>) -> Self {
        self.limiter("deny_cache", |limiter| limiter.deny_cache(cache))
    }

    /// Sets the memory of the local fallback; see [`LimiterBuilder::local_memory`].
    pub fn local_memory(self, memory: MemoryBackend) -> Self {
        self.limiter("local_memory", |limiter| limiter.local_memory(memory))
    }

    /// Sets the bound of the settlement queue; see [`LimiterBuilder::settlement_queue`].
    pub fn settlement_queue(self, settlements: usize) -> Self {
        self.limiter("settlement_queue", |limiter| limiter.settlement_queue(settlements))
    }
}

/// Returns a closure that is true if one of two closures is.
fn either(
    one: Option<HeadFn<bool>>,
    other: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static,
) -> HeadFn<bool> {
    match one {
        None => Arc::new(other),
        Some(one) => Arc::new(move |head| one(head) || other(head)),
    }
}

/// Explains a forgotten `build`. It is never implemented.
#[diagnostic::on_unimplemented(
    message = "a `RateLimitLayerBuilder` is not a layer",
    label = "this builder has not been built",
    note = "call `.build()?` first"
)]
pub trait Built<S> {
    type Service;

    fn built(&self, inner: S) -> Self::Service;
}

#[doc(hidden)]
impl<S> Layer<S> for RateLimitLayerBuilder
where
    RateLimitLayerBuilder: Built<S>,
{
    type Service = <RateLimitLayerBuilder as Built<S>>::Service;

    fn layer(&self, inner: S) -> Self::Service {
        self.built(inner)
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .field("policies", &self.first.own_policies())
            .finish_non_exhaustive()
    }
}
