//! What a limiter is built of.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use super::{Inner, Limiter, Settings, engine::Engine};
use crate::{
    backend::{Backend, memory::MemoryBackend},
    check::{MAX_PAIRS, Namespace},
    deny_cache::{Denials, DenyCache, check_deny_cache},
    error::ConfigError,
    observe,
    outage::{Breaker, Guard, Local, OutageRule, check_breaker},
    policies::distinct,
    policy::Policy,
    settle::Queue,
};

/// Makes a [`Limiter`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    policies: Vec<Policy>,
    /// Those of further keys, which the limiter does not know and a layer does.
    others: Vec<Policy>,
    /// Whether there is a further key without a policy.
    has_idle_key: bool,
    needs_policies: bool,
    settles: bool,
    namespace: Option<String>,
    deadline: Duration,
    queue: usize,
    rule: OutageRule,
    breaker: Option<Breaker>,
    max_in_flight: usize,
    deny_cache: Option<DenyCache>,
    memory: Option<MemoryBackend>,
    engine: Arc<dyn Engine>,
}

/// The largest queue of settlements. It is a bound on memory, at some 100 bytes each and more.
const MAX_QUEUE: usize = 1 << 20;

/// The largest bound on checks under way: as many requests are held in memory.
const MAX_IN_FLIGHT: usize = 1 << 20;

impl LimiterBuilder {
    pub(super) fn new(backend: impl Backend) -> Self {
        Self {
            policies: Vec::new(),
            others: Vec::new(),
            has_idle_key: false,
            needs_policies: true,
            settles: false,
            namespace: None,
            deadline: Limiter::DEFAULT_DEADLINE,
            queue: Limiter::DEFAULT_SETTLEMENT_QUEUE,
            rule: OutageRule::default(),
            breaker: Some(Breaker::default()),
            max_in_flight: Limiter::DEFAULT_MAX_IN_FLIGHT,
            deny_cache: Some(DenyCache::default()),
            memory: None,
            engine: Arc::new(backend),
        }
    }

    /// Adds a policy; there may be up to [`MAX_PAIRS`], with different names. Their order changes nothing but the order
    /// in which they are told.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Needs no policies: they come with each check, as with [`Limiter::check_pairs`].
    pub fn without_policies(mut self) -> Self {
        self.needs_policies = false;
        self
    }

    /// Keeps two applications on one store apart: 1 to 64 printable ASCII characters without `{`, `}` and space; `"tsw"`
    /// unless it is said.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How long a check may take, whatever the backend does inside: 1 ms to 60 s, and
    /// [`DEFAULT_DEADLINE`](Limiter::DEFAULT_DEADLINE) unless it is said. After it the outcome is a [`BackendError`]
    /// with [`Reason::Timeout`]. The same holds for what a settlement asks.
    ///
    /// [`BackendError`]: crate::BackendError
    /// [`Reason::Timeout`]: crate::Reason::Timeout
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many settlements may wait for a backend that does not answer at once: 1 to 2^20, and
    /// [`DEFAULT_SETTLEMENT_QUEUE`](Limiter::DEFAULT_SETTLEMENT_QUEUE) unless it is said. One that finds no place is lost:
    /// its charge stands, and it is [counted](Limiter::lost_settlements).
    pub fn settlement_queue(mut self, settlements: usize) -> Self {
        self.queue = settlements;
        self
    }

    /// What becomes of a request that the store cannot decide: it is [refused](OutageRule::Refuse) unless this is said. See
    /// [`OutageRule`] for why.
    ///
    /// A layer follows it, and [`Limiter::admit`]. All else that a limiter is asked is answered by the store or by a
    /// [`BackendError`](crate::BackendError).
    pub fn outage(mut self, rule: OutageRule) -> Self {
        self.rule = rule;
        self
    }

    /// When a store that fails is left alone, and for how long: [`Breaker::default`] unless it is said. `None` asks the store
    /// every time, whatever it has answered before.
    pub fn breaker(mut self, breaker: impl Into<Option<Breaker>>) -> Self {
        self.breaker = breaker.into();
        self
    }

    /// How many checks may be under way at once: 1 to 2^20, and [`DEFAULT_MAX_IN_FLIGHT`](Limiter::DEFAULT_MAX_IN_FLIGHT)
    /// unless it is said. One more is an outage with [`Reason::Shed`](crate::Reason::Shed), at once, and the store is not
    /// asked.
    pub fn max_in_flight(mut self, checks: usize) -> Self {
        self.max_in_flight = checks;
        self
    }

    /// For how long what the store has denied is repeated without asking, and of how many pairs: [`DenyCache::default`] unless
    /// it is said. `None` asks the store every time.
    ///
    /// It makes no difference to a backend that answers at once, nor to one of which nobody knows that its
    /// [denials hold](Backend::denials_hold).
    pub fn deny_cache(mut self, cache: impl Into<Option<DenyCache>>) -> Self {
        self.deny_cache = cache.into();
        self
    }

    /// Where [local decisions](OutageRule::Local) are kept: for another bound on partition keys than
    /// [`MemoryBackend::DEFAULT_MAX_KEYS`], or for several limiters that share what they grant locally, or for a clock that a
    /// test moves. Unless it is said, the limiter makes a memory of its own when the first one is taken.
    pub fn local_memory(mut self, memory: MemoryBackend) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Names further policies of the same checks, which are the limiter's no more than their key is. There must be some unless
    /// others are chosen for each request.
    pub(crate) fn other(mut self, policies: impl IntoIterator<Item = Policy>, may_be_none: bool) -> Self {
        let before = self.others.len();
        self.others.extend(policies);
        self.has_idle_key |= self.others.len() == before && !may_be_none;
        self
    }

    /// Demands a backend that can change a charge.
    pub(crate) fn settling(mut self) -> Self {
        self.settles = true;
        self
    }

    /// The limiter.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoPolicies`], [`ConfigError::TooManyPolicies`], [`ConfigError::DuplicatePolicy`],
    /// [`ConfigError::Namespace`], [`ConfigError::Deadline`], [`ConfigError::SettlementQueue`],
    /// [`ConfigError::BreakerFailures`], [`ConfigError::BreakerOpenFor`], [`ConfigError::MaxInFlight`],
    /// [`ConfigError::DenyCacheMaxAge`] or [`ConfigError::DenyCacheMaxEntries`].
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let Self {
            policies,
            others,
            has_idle_key,
            needs_policies,
            settles,
            namespace,
            deadline,
            queue,
            rule,
            breaker,
            max_in_flight,
            deny_cache,
            memory,
            engine,
        } = self;
        if has_idle_key || policies.is_empty() && needs_policies {
            return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
        }
        let all: Vec<_> = policies.iter().chain(&others).cloned().collect();
        distinct(&all)?;
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&deadline) {
            return Err(ConfigError::Deadline { deadline });
        }
        if !(1..=MAX_QUEUE).contains(&queue) {
            return Err(ConfigError::SettlementQueue { given: queue, max: MAX_QUEUE });
        }
        if let Some(breaker) = breaker {
            check_breaker(breaker)?;
        }
        if !(1..=MAX_IN_FLIGHT).contains(&max_in_flight) {
            return Err(ConfigError::MaxInFlight { given: max_in_flight, max: MAX_IN_FLIGHT });
        }
        if let Some(cache) = deny_cache {
            check_deny_cache(cache)?;
        }
        if settles && !engine.can_change() {
            return Err(ConfigError::CannotSettle);
        }
        let namespace = namespace.map_or(Ok(Namespace::default()), |given| Namespace::new(&given))?;
        let store = engine.name_of_store();
        let denials = deny_cache.filter(|_| engine.can_remember()).map(Denials::new);
        let limiter = Limiter(Arc::new(Inner {
            queue: Queue::new(engine.clone(), deadline, queue, denials.clone()),
            denials,
            settings: Settings { policies, namespace, deadline, rule },
            guard: Guard::new(breaker, deadline, max_in_flight),
            local: memory.map(Local::in_memory).unwrap_or_default(),
            engine,
            warned_of_name: AtomicBool::new(false),
            warned_of_draft: AtomicBool::new(false),
        }));
        if let Some(store) = store {
            let alive = Arc::downgrade(&limiter.0);
            observe::new_limits(&store, &limiter.0.settings.namespace, &all, alive);
        }
        Ok(limiter)
    }
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
