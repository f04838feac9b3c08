//! A fake backend for unit tests.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{
        Backend, BackendError, Reason, Tokens,
        tokens::{TokenOutcome, TokenSettlement, TokenStore},
    },
    check::{Check, Pair, Purpose, Receipt, Refund, RefundPair},
    decision::{Decision, Status, Wait},
    hold::Hold,
    lock::Lock,
    now_or_later::NowOrLater,
};

/// A backend for unit tests. It counts nothing, returns scripted answers, and records every call.
///
/// Clones share one script and one record: give one clone to the layer and keep another. The backend supports every operation
/// and answers at once. A peek consumes a scripted answer, like any check. Settlements do not: they succeed unless
/// [`failing_settlements`](Self::failing_settlements) or [`hanging_settlements`](Self::hanging_settlements) is set. A settled
/// [token](crate::Reservation::into_token) is recorded as its refund, or as the check of its overage. It never expires, and only this backend
/// and its clones know it, as with a memory.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response, StatusCode};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sliding_window::{Policy, RateLimitLayer, header, testing::FakeBackend};
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
pub struct FakeBackend(Arc<Lock<FakeScript>>);

/// A scripted answer of a [`FakeBackend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FakeAnswer {
    /// Admits. The remaining quota is the quota less the cost. A check that takes units gets all of them, at most a whole quota.
    Admit,
    /// Denies for every policy, with a remaining quota of 0. A check of [shadow pairs](crate::backend::Pair::shadow) only is
    /// admitted.
    Deny(Wait),
    /// Denies for every [shadow pair](crate::backend::Pair::shadow), and admits for all other policies. So the check is admitted.
    DenyShadow(Wait),
    /// Returns a [`BackendError`] with this reason.
    Unavailable(Reason),
    /// Never answers, so that the deadline of the limiter passes.
    Hang,
}

/// A check that a [`FakeBackend`] has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedCheck {
    /// The namespace.
    pub namespace: String,
    /// The purpose of the check. It has no meaning for a reset.
    pub purpose: Purpose,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// A refund that a [`FakeBackend`] has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedRefund {
    /// The namespace.
    pub namespace: String,
    /// The refund of each pair.
    pub pairs: Vec<RefundPair>,
}

struct FakeScript {
    /// Differs from that of every other backend, also of one that was dropped.
    number: u64,
    /// The last answer repeats.
    answers: VecDeque<FakeAnswer>,
    /// The answer to settlements. `Admit` means success.
    settlements: FakeAnswer,
    checks: Vec<RecordedCheck>,
    refunds: Vec<RecordedRefund>,
    resets: Vec<RecordedCheck>,
    /// The charges of the tokens. `None` for a token that was settled.
    tokens: HashMap<u64, Option<(Check, Vec<Receipt>)>>,
    /// The units in flight that admitted checks hold.
    held: Arc<AtomicU64>,
}

impl FakeBackend {
    /// Creates a backend that admits every check.
    pub fn admitting() -> Self {
        Self::scripted([FakeAnswer::Admit])
    }

    /// Creates a backend that denies every check with this wait. A wait of zero, which would admit, becomes one microsecond.
    pub fn denying(retry_after: Duration) -> Self {
        Self::scripted([FakeAnswer::Deny(Wait::For(retry_after))])
    }

    /// Creates a backend that fails every check for this reason.
    pub fn unavailable(reason: Reason) -> Self {
        Self::scripted([FakeAnswer::Unavailable(reason)])
    }

    /// Creates a backend that never answers.
    pub fn hanging() -> Self {
        Self::scripted([FakeAnswer::Hang])
    }

    /// Creates a backend that returns these answers in order and repeats the last one. Without answers, it admits.
    pub fn scripted(answers: impl IntoIterator<Item = FakeAnswer>) -> Self {
        let mut answers: VecDeque<FakeAnswer> = answers.into_iter().collect();
        if answers.is_empty() {
            answers.push_back(FakeAnswer::Admit);
        }
        let settlements = FakeAnswer::Admit;
        let (checks, refunds, resets) = (Vec::new(), Vec::new(), Vec::new());
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (tokens, held) = Default::default();
        let script = FakeScript { number, answers, settlements, checks, refunds, resets, tokens, held };
        Self(Arc::new(Lock::new(script)))
    }

    /// Makes every settlement fail for this reason.
    pub fn failing_settlements(self, reason: Reason) -> Self {
        self.0.lock().settlements = FakeAnswer::Unavailable(reason);
        self
    }

    /// Makes every settlement hang.
    pub fn hanging_settlements(self) -> Self {
        self.0.lock().settlements = FakeAnswer::Hang;
        self
    }

    /// Returns the recorded checks, oldest first. Their purposes include peeks, reservations, and the overage of settlements.
    pub fn checks(&self) -> Vec<RecordedCheck> {
        self.0.lock().checks.clone()
    }

    /// Returns the recorded refunds, oldest first.
    pub fn refunds(&self) -> Vec<RecordedRefund> {
        self.0.lock().refunds.clone()
    }

    /// Returns the units of policies [in flight](crate::Policy::in_flight) that admitted checks hold now.
    pub fn held_units(&self) -> u64 {
        self.0.lock().held.load(Ordering::SeqCst)
    }

    /// Returns the recorded resets, oldest first.
    pub fn resets(&self) -> Vec<RecordedCheck> {
        self.0.lock().resets.clone()
    }
}

impl Backend for FakeBackend {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let outcome = self.0.lock().next(check);
        let Some(outcome) = outcome else { return std::future::pending().await };
        outcome
    }

    /// Answers at once, except for a hang. A test without a hang needs no runtime with a timer.
    fn check_now(&self, check: &Check) -> Option<Result<Decision, BackendError>> {
        let mut script = self.0.lock();
        match script.upcoming(check) {
            FakeAnswer::Hang => None,
            _ => script.next(check),
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    fn holds_units(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        let outcome = self.0.lock().refund(refund);
        let Some(outcome) = outcome else { return std::future::pending().await };
        outcome
    }

    fn refund_now(&self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        let mut script = self.0.lock();
        match script.settlements {
            FakeAnswer::Hang => None,
            _ => script.refund(refund),
        }
    }

    fn reset_now(&self, pairs: &Check) -> Option<Result<(), BackendError>> {
        self.0.lock().resets.push(RecordedCheck::new(pairs));
        Some(Ok(()))
    }

    fn tokens(&self) -> Option<Tokens> {
        Some(Tokens::new(self.clone()))
    }

    /// Returns a name that clones share.
    fn store(&self) -> Option<String> {
        Some(format!("fake {}", self.0.lock().number))
    }
}

impl TokenStore for FakeBackend {
    fn add_token(&self, check: Check, receipts: Vec<Receipt>, _expires_at: u64) -> Result<u64, BackendError> {
        // No two backends have the same one, and 0 is no token.
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.0.lock().tokens.insert(number, Some((check, receipts)));
        Ok(number)
    }

    fn settle_token(&self, token: TokenSettlement) -> NowOrLater<Result<TokenOutcome, BackendError>> {
        match self.0.lock().settle_token(&token) {
            Some(outcome) => NowOrLater::now(outcome),
            None => NowOrLater::Later(Box::pin(std::future::pending())),
        }
    }
}

impl RecordedCheck {
    fn new(check: &Check) -> Self {
        let (namespace, purpose) = (check.namespace().to_owned(), check.purpose());
        Self { namespace, purpose, pairs: check.pairs().to_vec() }
    }
}

impl FakeScript {
    /// Returns the answer to this check, or `None` if it hangs.
    fn next(&mut self, check: &Check) -> Option<Result<Decision, BackendError>> {
        self.checks.push(RecordedCheck::new(check));
        let answer = self.upcoming(check);
        if !check.purpose().exceeds_quota() && self.answers.len() > 1 {
            self.answers.pop_front();
        }
        let at = self.checks.len() as u64;
        let taken = match check.purpose() {
            Purpose::TakeUpTo(_) if matches!(answer, FakeAnswer::Deny(_)) => Some(check.times(1)),
            Purpose::TakeUpTo(units) => Some(check.times(check.max_units(units))),
            // It counts nothing, so there is no difference to charge.
            Purpose::LeaveAtMost { .. } => Some(check.clone().costing(0)),
            _ => None,
        };
        let check = taken.as_ref().unwrap_or(check);
        match answer {
            FakeAnswer::Admit => Some(Ok(self.holding(check, decision(check, at, |_| None)))),
            FakeAnswer::Deny(wait) => Some(Ok(decision(check, at, |_| Some(wait)))),
            FakeAnswer::DenyShadow(wait) => {
                let decision = decision(check, at, |pair| pair.is_shadow.then_some(wait));
                Some(Ok(self.holding(check, decision)))
            }
            FakeAnswer::Unavailable(reason) => Some(Err(BackendError::new(reason))),
            FakeAnswer::Hang => None,
        }
    }

    /// Returns a decision with the units that its check holds, if there are any.
    fn holding(&self, check: &Check, decision: Decision) -> Decision {
        let units: u64 = decision.held_pairs(check).map(|(.., units)| u64::from(units)).sum();
        if units == 0 {
            return decision;
        }
        let held = self.held.clone();
        held.fetch_add(units, Ordering::SeqCst);
        decision.with_hold(Hold::new(move || {
            held.fetch_sub(units, Ordering::SeqCst);
        }))
    }

    fn upcoming(&self, check: &Check) -> FakeAnswer {
        match check.purpose() {
            purpose if purpose.exceeds_quota() => self.settlements,
            _ => self.answers.front().copied().unwrap_or(FakeAnswer::Admit),
        }
    }

    /// Returns the answer to this refund, or `None` if it hangs. The clock of this backend stands at 0.
    fn refund(&mut self, refund: &Refund) -> Option<Result<u64, BackendError>> {
        let (namespace, pairs) = (refund.namespace().to_owned(), refund.pairs().to_vec());
        self.refunds.push(RecordedRefund { namespace, pairs });
        match self.settlements {
            FakeAnswer::Unavailable(reason) => Some(Err(BackendError::new(reason))),
            FakeAnswer::Hang => None,
            _ => Some(Ok(0)),
        }
    }

    /// Returns the answer to the settlement of a token, or `None` if it hangs.
    fn settle_token(&mut self, token: &TokenSettlement) -> Option<Result<TokenOutcome, BackendError>> {
        let Some(charge) = self.tokens.get(&token.id) else { return Some(Ok(TokenOutcome::OtherMemory)) };
        let Some((check, receipts)) = charge.clone() else { return Some(Ok(TokenOutcome::Already)) };
        match self.settlements {
            FakeAnswer::Unavailable(reason) => return Some(Err(BackendError::new(reason))),
            FakeAnswer::Hang => return None,
            _ => {}
        }
        let used: Vec<u32> = token.pairs.iter().map(|pair| pair.used).collect();
        if let Some(overage) = check.overage(&used) {
            self.checks.push(RecordedCheck::new(&overage));
        }
        if let Some(refund) = Refund::new(&check, &receipts, &used) {
            let _ = self.refund(&refund);
        }
        self.tokens.insert(token.id, None);
        Some(Ok(TokenOutcome::Settled(0)))
    }
}

/// Builds a decision from the wait of each pair that denies. Its receipts contain the number of the check, so that they differ.
fn decision(check: &Check, at: u64, denied: impl Fn(&Pair) -> Option<Wait>) -> Decision {
    let is_denied = check.pairs().iter().any(|pair| !pair.is_shadow && denied(pair).is_some());
    let statuses = check.pairs().iter().map(|pair| {
        let window = Duration::from_micros(pair.policy.window_micros());
        match denied(pair) {
            None => {
                let cost = if is_denied { 0 } else { pair.cost };
                let remaining = pair.policy.quota_units().saturating_sub(cost);
                Status::new(pair, remaining, Wait::ZERO, window, window)
            }
            Some(wait @ (Wait::Unknown | Wait::Never)) => Status::new(pair, 0, wait, window, window),
            Some(Wait::For(wait)) => {
                let wait = wait.max(Duration::from_micros(1));
                Status::new(pair, 0, Wait::For(wait), wait, wait)
            }
        }
    });
    let receipt = |pair: &Pair| match denied(pair) {
        None => Receipt { generation: 1, at_micros: at, ordinal: 0 },
        Some(_) => Receipt::NO_CHARGE,
    };
    let reserved = !is_denied && check.purpose().has_receipts();
    let receipts = check.pairs().iter().filter(|_| reserved).map(receipt);
    Decision::with_receipts(0, statuses.collect::<Vec<_>>(), receipts.collect::<Vec<_>>())
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("checks", &self.0.lock().checks.len()).finish_non_exhaustive()
    }
}
