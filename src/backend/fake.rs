//! A backend that says what a test tells it to, and remembers what it was asked.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, Pair, Purpose, Receipt, Refund, RefundPair},
    decision::{Decision, Status, Wait},
};

/// A backend for unit tests: it counts nothing, answers as it is told, and remembers what it was asked.
///
/// Clones are the same backend: give one to the layer and keep one. It can do all that a backend can, and does it at
/// once. A peek is answered by the script like any check. What a settlement asks is not: it succeeds unless
/// [`failing_settlements`](Self::failing_settlements) or [`hanging_settlements`](Self::hanging_settlements) was said.
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
    /// What the check was for. Of a reset it says nothing.
    pub purpose: Purpose,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// A refund that a [`FakeBackend`] was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub struct RecordedRefund {
    /// The namespace.
    pub namespace: String,
    /// What goes back to each pair.
    pub pairs: Vec<RefundPair>,
}

struct Script {
    /// The last one is said for ever.
    answers: VecDeque<Answer>,
    /// What becomes of settlements: admitted is done.
    settlements: Answer,
    checks: Vec<RecordedCheck>,
    refunds: Vec<RecordedRefund>,
    resets: Vec<RecordedCheck>,
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
        let settlements = Answer::Admit;
        let (checks, refunds, resets) = (Vec::new(), Vec::new(), Vec::new());
        Self(Arc::new(Mutex::new(Script { answers, settlements, checks, refunds, resets })))
    }

    /// This backend, which fails at whatever settles a reservation, for this reason.
    pub fn failing_settlements(self, reason: Reason) -> Self {
        self.script().settlements = Answer::Unavailable(reason);
        self
    }

    /// This backend, which never answers what settles a reservation.
    pub fn hanging_settlements(self) -> Self {
        self.script().settlements = Answer::Hang;
        self
    }

    /// The checks that it was asked, oldest first: also to peek, to reserve, and to charge what was used beyond a reservation,
    /// as their purposes say.
    pub fn checks(&self) -> Vec<RecordedCheck> {
        self.script().checks.clone()
    }

    /// The refunds that it was asked for, oldest first.
    pub fn refunds(&self) -> Vec<RecordedRefund> {
        self.script().refunds.clone()
    }

    /// The pairs that it was asked to forget, oldest first.
    pub fn resets(&self) -> Vec<RecordedCheck> {
        self.script().resets.clone()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for FakeBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let outcome = self.script().next(check);
        match outcome {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// At once but for a hang: so a test needs no runtime with a timer unless it plays one.
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        let mut script = self.script();
        match script.upcoming(check) {
            Answer::Hang => None,
            _ => script.next(check),
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        let outcome = self.script().refund(refund);
        match outcome {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<(), BackendError>> {
        let mut script = self.script();
        match script.settlements {
            Answer::Hang => None,
            _ => script.refund(refund),
        }
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        self.script().resets.push(RecordedCheck::new(pairs));
        Ok(())
    }

    /// Its own, and its clones'.
    fn store(&self) -> Option<String> {
        Some(format!("fake {:p}", Arc::as_ptr(&self.0)))
    }
}

impl RecordedCheck {
    fn new(check: &Check) -> Self {
        let (namespace, purpose) = (check.namespace().to_owned(), check.purpose());
        Self { namespace, purpose, pairs: check.pairs().to_vec() }
    }
}

impl Script {
    /// What comes of this check. None if nothing ever does.
    fn next(&mut self, check: &Check) -> Option<Result<Decision, BackendError>> {
        self.checks.push(RecordedCheck::new(check));
        let answer = self.upcoming(check);
        if check.purpose() != Purpose::Overage && self.answers.len() > 1 {
            self.answers.pop_front();
        }
        let at = self.checks.len() as u64;
        match answer {
            Answer::Admit => Some(Ok(decision(check, at, None))),
            Answer::Deny(wait) => Some(Ok(decision(check, at, Some(wait)))),
            Answer::Unavailable(reason) => Some(Err(BackendError::new(reason))),
            Answer::Hang => None,
        }
    }

    fn upcoming(&self, check: &Check) -> Answer {
        match check.purpose() {
            Purpose::Overage => self.settlements,
            _ => self.answers.front().copied().unwrap_or(Answer::Admit),
        }
    }

    fn refund(&mut self, refund: &Refund) -> Option<Result<(), BackendError>> {
        let (namespace, pairs) = (refund.namespace().to_owned(), refund.pairs().to_vec());
        self.refunds.push(RecordedRefund { namespace, pairs });
        match self.settlements {
            Answer::Unavailable(reason) => Some(Err(BackendError::new(reason))),
            Answer::Hang => None,
            _ => Some(Ok(())),
        }
    }
}

/// The instant is the number of the check, so that receipts differ.
fn decision(check: &Check, at: u64, denied: Option<Wait>) -> Decision {
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
    let receipt = |_: &Pair| Receipt { generation: 1, at_micros: at, ordinal: 0 };
    let reserved = denied.is_none() && check.purpose() == Purpose::Reserve;
    let receipts = check.pairs().iter().filter(|_| reserved).map(receipt);
    Decision::with_receipts(0, statuses.collect::<Vec<_>>(), receipts.collect::<Vec<_>>())
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("checks", &self.script().checks.len()).finish_non_exhaustive()
    }
}
