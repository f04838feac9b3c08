//! The builder of a limiter.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::{
    draft::Reserve,
    inner::{Limiter, LimiterInner, LimiterSettings},
    waiters::Waiters,
};
use crate::{
    backend::{Backend, DynBackend, MemoryBackend, tokens::TokenStore},
    check::{MAX_PAIRS, Namespace},
    deny_cache::{DenyCache, DenyCacheConfig},
    error::ConfigError,
    guard::{Breaker, Guard, Protection},
    key::{HashSecret, PartitionKey, TooShort},
    learn::{Learner, Learning},
    lease::Leases,
    observe::{self, LimiterEvents},
    outage::{LocalFallback, OutageRule},
    parameter::IntoOption,
    per_thread::PerThread,
    policy::{Policies, Policy, check_held, distinct},
    settle::{SettlementQueue, Unsettled},
};

/// The builder of a [`Limiter`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    pub(crate) policies: Vec<Policy>,
    /// Policies of a layer's further limits, which are validated with those of the limiter.
    pub(crate) others: Vec<Policy>,
    pub(crate) needs_policies: bool,
    pub(crate) settles: bool,
    namespace: Option<String>,
    region: Option<String>,
    deadline: Duration,
    settlement_queue: usize,
    pub(crate) rule: OutageRule,
    pub(crate) reserve: Reserve,
    breaker: Option<Breaker>,
    max_checks_in_flight: usize,
    max_waiting: usize,
    max_waiting_per_key: usize,
    near_limit: f64,
    pseudonyms: Option<Result<HashSecret, TooShort>>,
    deny_cache: Option<DenyCacheConfig>,
    memory: Option<MemoryBackend>,
    learning: Option<Learning>,
    pair_backend: Option<MemoryBackend>,
    tokens: Option<Arc<dyn TokenStore>>,
    backend: Arc<dyn DynBackend>,
}

/// The largest settlement queue. It bounds the memory, at 100 bytes and more per settlement.
const MAX_QUEUE: usize = 1 << 20;

/// The largest bound of checks in flight, and of waiting requests. As many requests are held in memory.
const MAX_REQUESTS: usize = 1 << 20;

impl Limiter {
    /// The default deadline of a check: 100 ms.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// The default bound of the settlement queue: 1,024.
    pub const DEFAULT_SETTLEMENT_QUEUE: usize = 1_024;

    /// The default bound of checks in flight: 4,096. If each check takes 10 ms, this bound permits 400,000 checks per second. If
    /// each check takes the whole deadline, it permits 40,000. Each waiting check needs a few kilobytes of memory.
    pub const DEFAULT_MAX_CHECKS_IN_FLIGHT: usize = 4_096;

    /// The default bound of waiting requests: 4,096. Each of them needs a few kilobytes of memory.
    pub const DEFAULT_MAX_WAITING: usize = 4_096;

    /// The default bound of waiting requests of one key: 1,024. It is a quarter of the default for all keys, so that requests of one
    /// key leave room to wait for those of other keys.
    pub const DEFAULT_MAX_WAITING_PER_KEY: usize = 1_024;

    /// The default fraction of a quota that counts as [near the limit](LimiterBuilder::near_limit): 0.8.
    pub const DEFAULT_NEAR_LIMIT: f64 = 0.8;

    /// Returns a builder for a limiter over this backend.
    pub fn builder(backend: impl Backend) -> LimiterBuilder {
        let pair_backend = (&backend as &dyn Any).downcast_ref::<MemoryBackend>().cloned();
        LimiterBuilder {
            policies: Vec::new(),
            others: Vec::new(),
            needs_policies: true,
            settles: false,
            namespace: None,
            region: None,
            deadline: Self::DEFAULT_DEADLINE,
            settlement_queue: Self::DEFAULT_SETTLEMENT_QUEUE,
            rule: OutageRule::default(),
            reserve: Reserve::default(),
            breaker: Some(Breaker::default()),
            max_checks_in_flight: Self::DEFAULT_MAX_CHECKS_IN_FLIGHT,
            max_waiting: Self::DEFAULT_MAX_WAITING,
            max_waiting_per_key: Self::DEFAULT_MAX_WAITING_PER_KEY,
            near_limit: Self::DEFAULT_NEAR_LIMIT,
            pseudonyms: None,
            deny_cache: Some(DenyCacheConfig::default()),
            memory: None,
            learning: None,
            tokens: backend.tokens().map(|tokens| tokens.0),
            pair_backend,
            backend: Arc::new(backend),
        }
    }
}

impl LimiterBuilder {
    /// Adds a policy. There may be up to [`MAX_PAIRS`] policies, with different names. Their order has no effect except on
    /// the order of statuses and header fields.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Adds several policies, as [`policy`](Self::policy) does.
    pub fn policies(mut self, policies: Policies) -> Self {
        self.policies.extend_from_slice(policies.as_slice());
        self
    }

    /// Permits a limiter without policies of its own. Each check states its policies, or those beside the limiter's: by
    /// [pairs](crate::backend::Pair) or by a [`Draft`](crate::protocol::Draft).
    pub fn without_policies(self) -> Self {
        Self { needs_policies: false, ..self }
    }

    /// Sets the namespace, which separates two applications on one store: 1 to 64 printable ASCII characters without `{`, `}`
    /// and space. The default is `"tsw"`.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Makes the name of a region a part of every key: 1 to 64 printable ASCII characters. By default, keys have no region.
    ///
    /// If several regions share one store, each region then counts for itself: a client has the whole quota in *every* region.
    /// Without a region, all of them count together, exactly. [The guide](crate::guide::keys#region-as-part-of-every-key) compares
    /// both. The methods of the limiter add the region to the keys that they take.
    pub fn region(self, region: impl Into<String>) -> Self {
        Self { region: Some(region.into()), ..self }
    }

    /// Sets the deadline of a check: 1 ms to 60 s. The default is [`DEFAULT_DEADLINE`](Limiter::DEFAULT_DEADLINE). If the
    /// deadline passes, the check returns a [`BackendError`] with [`Reason::Timeout`], regardless of what the backend does. If the
    /// backend has answered other checks in time, the reason is [`Reason::Overloaded`]. [`reset`](Limiter::reset) has the same
    /// deadline. A settlement has 5 s.
    ///
    /// [`BackendError`]: crate::backend::BackendError
    /// [`Reason::Timeout`]: crate::backend::Reason::Timeout
    /// [`Reason::Overloaded`]: crate::backend::Reason::Overloaded
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets how many settlements may wait for a backend that does not answer at once: 1 to 2^20. The default is
    /// [`DEFAULT_SETTLEMENT_QUEUE`](Limiter::DEFAULT_SETTLEMENT_QUEUE). If the queue is full, a settlement is lost: the charge
    /// stands, and the limiter [counts](Limiter::lost_settlements) the loss. As many settlements are in progress at once as checks
    /// may be [in flight](Self::max_checks_in_flight).
    pub fn settlement_queue(self, settlements: usize) -> Self {
        Self { settlement_queue: settlements, ..self }
    }

    /// Sets what happens to the charge of a [reservation](crate::Reservation) that is dropped unsettled. The default is
    /// [`Unsettled::Keep`]: the charge stands. Plain checks are not affected.
    pub fn unsettled(self, rule: Unsettled) -> Self {
        Self { reserve: Reserve { unsettled: rule, ..self.reserve }, ..self }
    }

    /// Clamps the cost of a [reservation](crate::Reservation) to the smallest quota of the policies with this cost. By default, an estimate
    /// above a quota is denied, and no wait helps.
    ///
    /// A clamped estimate is charged in full, so it is admitted only if nothing of the quota is used. If the amount used is larger,
    /// the settlement charges the difference beyond the quota. Under the [local fallback](OutageRule::LocalFallback), an estimate
    /// is clamped to the share of this process.
    ///
    /// Plain checks are not affected: a cost above a quota is never admitted. Use this method only if a client can be charged
    /// afterwards for what it has used, and if a handler bounds what one request may use.
    pub fn clamp_estimates(self) -> Self {
        Self { reserve: Reserve { clamps: true, ..self.reserve }, ..self }
    }

    /// Sets the outage rule: what happens to a request if the backend makes no decision. The default is to
    /// [fail closed](OutageRule::FailClosed); [`OutageRule`] explains why.
    ///
    /// Layers, [`Limiter::admit`], [`Limiter::wait`], [`Limiter::reserve`] and [`Limiter::take_up_to`] apply the rule. All other methods of
    /// a limiter return the decision of the backend or a [`BackendError`](crate::backend::BackendError).
    pub fn outage(self, rule: OutageRule) -> Self {
        Self { rule, ..self }
    }

    /// Configures the circuit breaker. The default is [`Breaker::default`]. `None` disables it: every check asks the store. If
    /// limiters share a `RedisBackend`, the strictest settings of all of them apply, also after one of them is dropped.
    pub fn breaker(self, breaker: impl IntoOption<Breaker>) -> Self {
        Self { breaker: breaker.into(), ..self }
    }

    /// Sets how many checks may be in flight: 1 to 2^20. The default is
    /// [`DEFAULT_MAX_CHECKS_IN_FLIGHT`](Limiter::DEFAULT_MAX_CHECKS_IN_FLIGHT). Any further check fails at once with
    /// [`Reason::Overloaded`](crate::backend::Reason::Overloaded), without asking the store (load shedding). The outage rule does not
    /// apply: the request is rejected, unless the server has [answered no check for one
    /// deadline](crate::guide::outages#overload). A merged check that is dropped counts until its reply comes, at most until one second
    /// after its deadline. `RedisBackend` counts the checks of each server; in a cluster, each slot of a check counts. Checks that wait for a [lease](crate::guide::leases) of units
    /// have a bound of their own, of the same number: further checks ask the store.
    pub fn max_checks_in_flight(self, checks: usize) -> Self {
        Self { max_checks_in_flight: checks, ..self }
    }

    /// Sets how many requests may [wait](Limiter::wait) at the same time, for all keys: 1 to 2^20. The default is
    /// [`DEFAULT_MAX_WAITING`](Limiter::DEFAULT_MAX_WAITING). Any further request that would wait behind others of its key is
    /// rejected at once with [`Rejection::TooManyWaiting`](crate::Rejection::TooManyWaiting).
    ///
    /// A request whose queue is empty asks the store in any case. If the store denies it and it has no room to wait, it is
    /// rejected with [`Rejection::Denied`](crate::Rejection::Denied). So requests of one key never prevent those of another key
    /// that has room.
    pub fn max_waiting(self, requests: usize) -> Self {
        Self { max_waiting: requests, ..self }
    }

    /// Sets how many requests of one key may [wait](Limiter::wait) at the same time: 1 to 2^20. The default is
    /// [`DEFAULT_MAX_WAITING_PER_KEY`](Limiter::DEFAULT_MAX_WAITING_PER_KEY), which leaves room for other keys. Any further request
    /// of the key is rejected at once with [`Rejection::TooManyWaiting`](crate::Rejection::TooManyWaiting).
    ///
    /// The bound applies to one key and its policies, or to several keys that are checked together, whatever the quotas of the requests
    /// are. Requests with another headroom have a bound of their own. The request that asks the store counts too. A bound above [`max_waiting`](Self::max_waiting) has no effect. If all requests have the same
    /// key, set both to the same number.
    ///
    /// A long queue may take time, in which all queues of the limiter are locked. If the first request has to wait, and the last one cannot
    /// be admitted before any of them gives up, each one is compared with its own end: about 20 ns for each. So is each one that gives up
    /// ahead of others. With 100,000 requests of one key, these are 2 ms for each admission.
    pub fn max_waiting_per_key(self, requests: usize) -> Self {
        Self { max_waiting_per_key: requests, ..self }
    }

    /// Sets the fraction of a quota that counts as near the limit: above 0, and at most 1. The default is
    /// [`DEFAULT_NEAR_LIMIT`](Limiter::DEFAULT_NEAR_LIMIT).
    ///
    /// An admitted check is near the limit of a policy if it is charged to this policy, and at least this fraction of the quota is
    /// in use afterwards. [`Stats::near_limit`](crate::observe::Stats::near_limit) and the
    /// [metrics](crate::guide::observability) count these checks. The fraction changes no decision and no response. For one
    /// decision, see [`Status::is_near`](crate::Status::is_near).
    pub fn near_limit(self, fraction: f64) -> Self {
        Self { near_limit: fraction, ..self }
    }

    /// Adds a pseudonym of the partition key to the `debug` event of each denial, and to [`Limiter::most_denied`], so that support can
    /// find the events of a customer. [`Limiter::pseudonym`] returns the pseudonym of a key. By default, there are none.
    ///
    /// A pseudonym is a hash under this secret: 128 bits of an HMAC-SHA-256, as 32 hexadecimal digits. The secret must have at least 32
    /// random bytes. There are no pseudonyms without a secret: a reader of the log could find the key of a plain hash, by the hashes of all
    /// IPv4 addresses or of a list of users. [Keep the secret as a password](crate::guide::deployment#hash-secret), because its reader
    /// can do so too. It may be the `hash_secret` of `RedisBackend`: a pseudonym then reveals neither the key in Redis nor its slot.
    ///
    /// Limiters with the same secret have the same pseudonyms, in every process and every namespace. With a new secret, all
    /// pseudonyms change.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # let secret = "a secret from the environment, random";
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("mails", 2, Duration::from_secs(60))?)
    ///     .pseudonyms(secret)
    ///     .build()?;
    /// let alice = limiter.pseudonym(&PartitionKey::new("user", "alice"));
    /// assert_eq!(alice.map(|pseudonym| pseudonym.len()), Some(32));
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn pseudonyms(self, secret: impl AsRef<[u8]>) -> Self {
        Self { pseudonyms: Some(HashSecret::new(secret.as_ref())), ..self }
    }

    /// Configures the deny cache. The default is [`DenyCacheConfig::default`]. `None` disables it: every check asks the store. Then a
    /// check across slots of a cluster takes two round trips, a peek and a charge, so the deadline must be longer than both. A
    /// [known denial](crate::guide::outages#deny-cache-in-an-outage) still denies a check for which the store makes no decision.
    ///
    /// The cache has no effect for a backend that answers at once, or whose [denials do not
    /// hold](Backend::denials_hold).
    pub fn deny_cache(self, cache: impl IntoOption<DenyCacheConfig>) -> Self {
        Self { deny_cache: cache.into(), ..self }
    }

    /// Sets the memory of the [local fallback](OutageRule::LocalFallback). Use it to choose the bound on partition keys, to share
    /// local charges between limiters, or to set the clock in a test. By default, the limiter creates a memory of its own when it
    /// makes the first local decision.
    ///
    /// At its bound on keys, it behaves as the backend does: see
    /// [Bound on partition keys](MemoryBackend#bound-on-partition-keys).
    pub fn local_memory(self, memory: MemoryBackend) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Enables [`Limiter::learn`]: the limiter obeys the answers of the API that it calls. By default, it does not: each admission then
    /// keeps a copy of its pairs.
    ///
    /// A denial of the API blocks the [gates](Policy::gate) of its request. So a limiter with policies needs one, unless
    /// [`obeys_waits`](Learning::obeys_waits) and [`backs_off`](Learning::backs_off) are off. If a layer or the drafts choose the gates,
    /// call [`without_policies`](Self::without_policies): policies that were added stay.
    pub fn learn(self, learning: Learning) -> Self {
        Self { learning: Some(learning), ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// - [`ConfigError::NoPolicies`] or [`ConfigError::TooManyPolicies`] unless there are 1 to 8 policies.
    /// - [`ConfigError::DuplicatePolicy`] if two policies have one name.
    /// - [`ConfigError::CannotHold`] if a policy is in flight, and the backend holds no units.
    /// - [`ConfigError::HashSecret`] if the secret of the pseudonyms is too short.
    /// - [`ConfigError::InvalidValue`] if another value is outside of the range that its method states, or if the limiter learns to wait
    ///   and none of its policies is a gate.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let all: Vec<_> = self.policies.iter().chain(&self.others).cloned().collect();
        self.validate(&all)?;
        let Self { backend, deadline, max_checks_in_flight, near_limit, reserve, rule, .. } = self;
        let namespace = self.namespace.map_or(Ok(Namespace::default()), |given| Namespace::new(&given))?;
        let region = self.region.map(region_key).transpose()?;
        let pseudonyms = self.pseudonyms.transpose().map_err(TooShort::into_error)?;
        let store = backend.store();
        let name = store.as_deref().unwrap_or("custom backend");
        let name = format!("{name}, namespace {}", namespace.as_str());
        let protection = Protection::new(self.breaker, deadline, max_checks_in_flight);
        let guard = (!backend.protect(protection)).then(|| Guard::for_backend(protection, &name));
        let lifetime = store.as_deref().and_then(|store| observe::new_limits(store, &namespace, &all, &name));
        let events = Arc::new(LimiterEvents::new(name, &all, near_limit, pseudonyms));
        // Limiters with one store and one namespace share their counts.
        let namespace = match &store {
            Some(store) => namespace.in_store(store),
            None => namespace.in_unnamed_store(),
        };
        let queue = SettlementQueue::new(
            backend.clone(),
            self.tokens,
            self.settlement_queue,
            max_checks_in_flight,
            events.clone(),
        );
        let new_leases =
            || Leases::new(namespace.clone(), queue.clone(), events.clone(), max_checks_in_flight);
        Ok(Limiter(Arc::new(LimiterInner {
            guard,
            holds_units: backend.holds_units(),
            leases: backend.grants_leases().then(new_leases),
            deny_cache: backend.denials_hold().then(|| DenyCache::new(self.deny_cache, namespace.clone())),
            local_fallback: LocalFallback::new(|| Arc::new(self.memory.unwrap_or_else(MemoryBackend::new))),
            waiters: Waiters::new(self.max_waiting, self.max_waiting_per_key),
            local_policies: PerThread::new(|| self.policies.iter().map(Policy::counted_apart).collect()),
            // Such a check keeps no list of its pairs, which learning and units in flight need, and no copy of its key, which a
            // region needs.
            pair_backend: self.pair_backend.filter(|_| {
                let holds = self.policies.iter().any(|policy| policy.properties().is_held);
                self.learning.is_none() && region.is_none() && !holds
            }),
            settings: LimiterSettings { policies: self.policies, namespace, region, deadline, rule, reserve },
            queue,
            learner: self.learning.map(Learner::new),
            backend,
            events,
            _lifetime: lifetime,
        })))
    }

    /// Checks all settings but the namespace and the region.
    fn validate(&self, policies: &[Policy]) -> Result<(), ConfigError> {
        let Self { deadline, settlement_queue, max_checks_in_flight, near_limit, .. } = *self;
        if self.policies.is_empty() && self.needs_policies {
            return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
        }
        distinct(policies)?;
        let deadlines = Duration::from_millis(1)..=Duration::from_secs(60);
        ConfigError::check_range("deadline", deadline, deadlines, "1 ms to 60 s")?;
        let max =
            |name, given, max| ConfigError::check_range(name, given, 1..=max, format_args!("1 to {max}"));
        max("settlement_queue", settlement_queue, MAX_QUEUE)?;
        self.breaker.map_or(Ok(()), Breaker::validate)?;
        max("max_checks_in_flight", max_checks_in_flight, MAX_REQUESTS)?;
        max("max_waiting", self.max_waiting, MAX_REQUESTS)?;
        max("max_waiting_per_key", self.max_waiting_per_key, MAX_REQUESTS)?;
        // NaN is in no range.
        let fractions = f64::MIN_POSITIVE..=1.0;
        ConfigError::check_range("near_limit", near_limit, fractions, "above 0 and at most 1")?;
        self.deny_cache.map_or(Ok(()), DenyCacheConfig::validate)?;
        self.learning.as_ref().map_or(Ok(()), |learning| self.check_learning(learning))?;
        if self.settles && !self.backend.changes_charges() {
            return Err(ConfigError::CannotSettle);
        }
        check_held(policies, self.backend.holds_units())
    }

    /// Checks what the limiter learns. Without a gate, no denial of the API would block its requests. If the limiter needs no policies, a
    /// table or the drafts may choose the gates.
    fn check_learning(&self, learning: &Learning) -> Result<(), ConfigError> {
        learning.validate()?;
        let is_gate = |policy: &Policy| !policy.properties().has_quota;
        let blocks = learning.obeys_waits || learning.backs_off;
        if !blocks || !self.needs_policies || self.policies.iter().chain(&self.others).any(is_gate) {
            return Ok(());
        }
        let names: Vec<_> = self.policies.iter().map(Policy::name).collect();
        let valid = "a list with a gate, such as `Policy::gate(\"api\")?`, unless `obeys_waits` and `backs_off` are false; \
                     or, if requests choose their gates, call `without_policies()`";
        Err(ConfigError::invalid_value("learn: policies", format_args!("{names:?}"), valid))
    }
}

fn region_key(region: String) -> Result<PartitionKey, ConfigError> {
    ConfigError::check_name("region", &region)?;
    Ok(PartitionKey::new("region", region))
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
