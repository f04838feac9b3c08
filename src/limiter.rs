//! Policies and a backend, and one deadline around what it does.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, MAX_PAIRS, Namespace, Pair},
    decision::Decision,
    error::ConfigError,
    key::PartitionKey,
    observe,
    policy::Policy,
};

/// A limit without HTTP: for jobs, outgoing calls, and everything that is no tower service.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder(MemoryBackend::new())
///     .policy(Policy::new("mails", 2, Duration::from_secs(60))?)
///     .build()?;
///
/// let alice = PartitionKey::new("user", "alice");
/// assert!(limiter.check(alice.clone(), 2).await?.is_admitted());
/// assert!(!limiter.check(alice, 1).await?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cloning is cheap, and clones share everything.
#[derive(Clone)]
pub struct Limiter(Arc<Inner>);

struct Inner {
    settings: Settings,
    engine: Arc<dyn Engine>,
}

#[derive(Clone, Debug)]
struct Settings {
    policies: Vec<Policy>,
    namespace: Namespace,
    deadline: Duration,
}

/// Makes a [`Limiter`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder {
    policies: Vec<Policy>,
    namespace: Option<String>,
    deadline: Duration,
    engine: Arc<dyn Engine>,
}

/// A check under way. It resolves to the decision, at once where the backend answers at once.
#[must_use = "a check does nothing unless it is awaited"]
pub struct CheckFuture(Progress);

/// What a check comes to.
type Outcome = Result<Decision, BackendError>;

enum Progress {
    /// Decided; empty when it was taken.
    Now(Option<Outcome>),
    Later(Pin<Box<dyn Future<Output = Outcome> + Send>>),
}

/// A backend without its type, so that the type goes no higher than here.
trait Engine: Send + Sync {
    fn start(self: Arc<Self>, check: Check, deadline: Duration) -> CheckFuture;
}

impl Limiter {
    /// How long a check may take unless the builder says otherwise: 100 ms.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// Begins a limiter that asks this backend.
    pub fn builder(backend: impl Backend) -> LimiterBuilder {
        LimiterBuilder {
            policies: Vec::new(),
            namespace: None,
            deadline: Self::DEFAULT_DEADLINE,
            engine: Arc::new(backend),
        }
    }

    /// Checks one request of this partition key against all policies, at `cost` quota units each.
    ///
    /// The check is under way at once where the backend answers at once, and otherwise when the future is polled. When
    /// the future is dropped, its charge may stand.
    ///
    /// # Errors
    ///
    /// A [`BackendError`] if there is no decision, within the deadline.
    ///
    /// # Runtime
    ///
    /// A backend that answers at once, as the memory does, needs none. One that answers later needs tokio with its timer
    /// enabled (`enable_time`, as `#[tokio::main]` has it; a tokio without it panics). Outside tokio there is no deadline.
    pub fn check(&self, key: PartitionKey, cost: u32) -> CheckFuture {
        let pairs = self.policies().iter().map(|policy| Pair::new(key.clone(), policy.clone(), cost));
        let pairs: Box<[Pair]> = pairs.collect();
        for pair in &pairs {
            if pair.cost > pair.policy.quota() {
                observe::cost_above_quota(pair);
            }
        }
        let Inner { settings, engine } = &*self.0;
        engine.clone().start(Check::of_limiter(settings.namespace.clone(), pairs), settings.deadline)
    }

    /// The policies, in the order in which they were given.
    pub fn policies(&self) -> &[Policy] {
        &self.0.settings.policies
    }
}

impl LimiterBuilder {
    /// Adds a policy; there may be up to [`MAX_PAIRS`], with different names. Their order changes nothing but the order
    /// in which they are told.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
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
    /// with [`Reason::Timeout`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The limiter.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoPolicies`], [`ConfigError::TooManyPolicies`], [`ConfigError::DuplicatePolicy`],
    /// [`ConfigError::Namespace`] or [`ConfigError::Deadline`].
    pub fn build(self) -> Result<Limiter, ConfigError> {
        let Self { policies, namespace, deadline, engine } = self;
        match policies.len() {
            0 => return Err(ConfigError::NoPolicies { max: MAX_PAIRS }),
            given if given > MAX_PAIRS => return Err(ConfigError::TooManyPolicies { given, max: MAX_PAIRS }),
            _ => {}
        }
        for (i, policy) in policies.iter().enumerate() {
            if policies[..i].iter().any(|other| other.name() == policy.name()) {
                return Err(ConfigError::DuplicatePolicy { name: policy.name().to_owned() });
            }
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&deadline) {
            return Err(ConfigError::Deadline { deadline });
        }
        let namespace = namespace.map_or(Ok(Namespace::default()), |given| Namespace::new(&given))?;
        Ok(Limiter(Arc::new(Inner { settings: Settings { policies, namespace, deadline }, engine })))
    }
}

impl CheckFuture {
    /// The outcome, if it is there already; or else what is still under way.
    pub(crate) fn now(self) -> Result<Outcome, Self> {
        match self.0 {
            Progress::Now(Some(outcome)) => Ok(outcome),
            other => Err(Self(other)),
        }
    }
}

impl Future for CheckFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            Progress::Now(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Progress::Later(check) => {
                let outcome = std::task::ready!(check.as_mut().poll(cx));
                self.0 = Progress::Now(None);
                Poll::Ready(outcome)
            }
        }
    }
}

impl<B: Backend> Engine for B {
    fn start(self: Arc<Self>, check: Check, deadline: Duration) -> CheckFuture {
        CheckFuture(match self.check_now(&check) {
            Some(outcome) => Progress::Now(Some(complete(&check, outcome))),
            None => Progress::Later(Box::pin(within(deadline, async move {
                let outcome = self.check(&check).await;
                complete(&check, outcome)
            }))),
        })
    }
}

/// Refuses a decision that does not speak of every pair: it would admit what it has not looked at.
fn complete(check: &Check, outcome: Outcome) -> Outcome {
    outcome.and_then(|decision| {
        if decision.statuses().len() == check.pairs().len() {
            Ok(decision)
        } else {
            Err(BackendError::new(Reason::BrokenReply))
        }
    })
}

async fn within(deadline: Duration, check: impl Future<Output = Outcome>) -> Outcome {
    // Without a runtime there is no timer, and asking for one would panic.
    if tokio::runtime::Handle::try_current().is_err() {
        return check.await;
    }
    tokio::time::timeout(deadline, check).await.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)))
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.settings, f)
    }
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}

impl fmt::Debug for CheckFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckFuture").finish_non_exhaustive()
    }
}
