//! A backend that says what a test tells it to, and remembers what it was asked.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Pair},
    decision::{Decision, Status, Wait},
};

/// A backend for unit tests: it counts nothing, answers as it is told, and remembers what it was asked.
///
/// Clones are the same backend: give one to the layer and keep one.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response, StatusCode};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sliding_window::{FakeBackend, Policy, RateLimitLayer, header};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let backend = FakeBackend::denying(Duration::from_secs(7));
/// let limits = RateLimitLayer::builder(backend.clone())
///     .policy(Policy::new("burst", 1_000, Duration::from_secs(60))?)
///     .key(header("x-api-key")?)
///     .cost(100)
///     .build()?;
/// let mut service = ServiceBuilder::new()
///     .layer(limits)
///     .service(service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(bytes::Bytes::new()))));
///
/// let request = Request::get("/").header("x-api-key", "alice").body(())?;
/// let response = service.ready().await?.call(request).await?;
///
/// assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(response.headers()["retry-after"], "7");
/// assert_eq!(backend.checks()[0].pairs[0].cost, 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub struct FakeBackend(Arc<Mutex<Script>>);

/// What a [`FakeBackend`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub enum Answer {
    /// Admits, with everything but the cost remaining.
    Admit,
    /// Denies by every policy, with nothing remaining.
    Deny(Wait),
    /// An outage.
    Unavailable(Reason),
    /// Never answers: the limiter's deadline has to.
    Hang,
}

/// A check that a [`FakeBackend`] was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub struct RecordedCheck {
    /// The namespace.
    pub namespace: String,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

struct Script {
    /// The last one is said for ever.
    answers: VecDeque<Answer>,
    checks: Vec<RecordedCheck>,
}

impl FakeBackend {
    /// Admits everything.
    pub fn admitting() -> Self {
        Self::scripted([Answer::Admit])
    }

    /// Denies everything, and says to wait so long. A wait of zero would admit; it becomes one microsecond.
    pub fn denying(retry_after: Duration) -> Self {
        Self::scripted([Answer::Deny(Wait::For(retry_after))])
    }

    /// Answers nothing, for this reason.
    pub fn unavailable(reason: Reason) -> Self {
        Self::scripted([Answer::Unavailable(reason)])
    }

    /// Never answers.
    pub fn hanging() -> Self {
        Self::scripted([Answer::Hang])
    }

    /// Gives these answers one after the other, and the last one for ever; admits if there is none.
    pub fn scripted(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        if answers.is_empty() {
            answers.push_back(Answer::Admit);
        }
        Self(Arc::new(Mutex::new(Script { answers, checks: Vec::new() })))
    }

    /// The checks that it was asked, oldest first.
    pub fn checks(&self) -> Vec<RecordedCheck> {
        self.script().checks.clone()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for FakeBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let answer = self.script().next(check);
        match answer.outcome(check) {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// At once but for a hang: so a test needs no runtime with a timer unless it plays one.
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        let mut script = self.script();
        match script.answers.front() {
            Some(Answer::Hang) => None,
            _ => script.next(check).outcome(check),
        }
    }
}

impl Answer {
    /// None if it never comes.
    fn outcome(self, check: &Check) -> Option<Result<Decision, BackendError>> {
        match self {
            Self::Admit => Some(Ok(decision(check, None))),
            Self::Deny(wait) => Some(Ok(decision(check, Some(wait)))),
            Self::Unavailable(reason) => Some(Err(BackendError::new(reason))),
            Self::Hang => None,
        }
    }
}

impl Script {
    fn next(&mut self, check: &Check) -> Answer {
        self.checks
            .push(RecordedCheck { namespace: check.namespace().to_owned(), pairs: check.pairs().to_vec() });
        let last = self.answers.len() == 1;
        let answer = if last { self.answers.front().copied() } else { self.answers.pop_front() };
        answer.unwrap_or(Answer::Admit)
    }
}

fn decision(check: &Check, denied: Option<Wait>) -> Decision {
    let statuses = check.pairs().iter().map(|pair| {
        let window = pair.policy.window();
        match denied {
            None => {
                let remaining = pair.policy.quota().saturating_sub(pair.cost);
                Status::new(pair, remaining, Wait::ZERO, window, window)
            }
            Some(Wait::Never) => Status::new(pair, 0, Wait::Never, window, window),
            Some(Wait::For(wait)) => {
                let wait = wait.max(Duration::from_micros(1));
                Status::new(pair, 0, Wait::For(wait), wait, wait)
            }
        }
    });
    Decision::new(0, statuses.collect::<Vec<_>>())
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("checks", &self.script().checks.len()).finish_non_exhaustive()
    }
}
