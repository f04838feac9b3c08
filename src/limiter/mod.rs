//! Policies and a backend, and what can be asked of them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{Backend, BackendError, Reason},
    check::{Check, MAX_PAIRS, Namespace, Pair, Purpose},
    cost::Costs,
    decision::Decision,
    deny_cache::{Denials, Inquiry, Look},
    error::ConfigError,
    key::PartitionKey,
    observe,
    outage::{Guard, Local, OutageRule},
    plan::{Against, Draft, Part},
    policies::{distinct, pairs},
    policy::Policy,
    settle::Queue,
};

mod ask;
mod build;
pub(crate) mod engine;

use ask::Admitting;
pub(crate) use ask::Ask;
pub use ask::{AdmitFuture, CheckFuture, ReserveFuture, Reserved, ResetFuture, Verdict};
pub use build::LimiterBuilder;
use engine::{Boxed, Engine, Progress};

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

pub(crate) struct Inner {
    settings: Settings,
    engine: Arc<dyn Engine>,
    queue: Arc<Queue>,
    guard: Arc<Guard>,
    /// None if nothing is remembered.
    denials: Option<Arc<Denials>>,
    local: Local,
    warned_of_name: AtomicBool,
    warned_of_draft: AtomicBool,
}

/// What becomes of a check.
enum Asked {
    /// The outcome is there.
    Now(Result<Decision, BackendError>),
    /// The store has to be asked.
    Later(Option<Inquiry>),
}

#[derive(Clone, Debug)]
struct Settings {
    policies: Vec<Policy>,
    namespace: Namespace,
    deadline: Duration,
    rule: OutageRule,
}

/// Checks one request of a partition key against all policies of the limiter.
///
/// What is asked is under way at once where the backend answers at once, and otherwise, as a reset always, when the future is
/// polled. When
/// the future of a check is dropped, its charge may stand.
///
/// # Errors
///
/// All of these give a [`BackendError`] if there is no decision, within the deadline. The reason is
/// [`Reason::Unsupported`] where the backend can do nothing but charge, and it is not asked then. A limiter that was built
/// [without policies](LimiterBuilder::without_policies) has none to check, which is an error, too.
///
/// # Runtime
///
/// A backend that answers at once, as the memory does, needs none. One that answers later needs tokio with its timer
/// enabled (`enable_time`, as `#[tokio::main]` has it; a tokio without it panics). Outside tokio there is no deadline.
impl Limiter {
    /// How long a check may take unless the builder says otherwise: 100 ms.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// How many settlements may wait unless the builder says otherwise: 1,024.
    pub const DEFAULT_SETTLEMENT_QUEUE: usize = 1_024;

    /// How many checks may be under way at once unless the builder says otherwise: 4,096. A store that takes 10 ms for each
    /// answers 400,000 in a second then, and one that takes a whole deadline 40,000; what waits takes some kilobytes each.
    pub const DEFAULT_MAX_IN_FLIGHT: usize = 4_096;

    /// Begins a limiter that asks this backend.
    pub fn builder(backend: impl Backend) -> LimiterBuilder {
        LimiterBuilder::new(backend)
    }

    /// Charges what the request costs, if every policy has room for it. Of a policy that `cost` does not name, it costs 1
    /// unit.
    pub fn check(&self, key: PartitionKey, cost: impl Into<Costs>) -> CheckFuture {
        CheckFuture(self.decide(self.own(&key, &cost.into()), Purpose::Charge))
    }

    /// Answers as [`check`](Self::check) would, and charges nothing.
    pub fn peek(&self, key: PartitionKey, cost: impl Into<Costs>) -> CheckFuture {
        CheckFuture(self.decide(self.own(&key, &cost.into()), Purpose::Peek))
    }

    /// Charges as [`check`](Self::check) does, and gives a handle by which the charge is later replaced by what was really
    /// used. See [`Reservation`](crate::Reservation).
    pub fn reserve(&self, key: PartitionKey, cost: impl Into<Costs>) -> ReserveFuture {
        match self.own(&key, &cost.into()) {
            Ok(check) => self.reserving(check),
            Err(error) => ReserveFuture { progress: Progress::Now(Some(Err(error))), kept: None },
        }
    }

    /// Charges as [`check`](Self::check) does, and where the store cannot decide, does what the
    /// [outage rule](LimiterBuilder::outage) says: as a layer does it.
    pub fn admit(&self, key: PartitionKey, cost: impl Into<Costs>) -> AdmitFuture {
        AdmitFuture(match self.own(&key, &cost.into()) {
            Ok(check) => match self.ask(check, false, None) {
                Ok(verdict) => Admitting::Now(Some(verdict)),
                Err(ask) => Admitting::Later(ask),
            },
            Err(error) => Admitting::Now(Some(Verdict::Unavailable(error))),
        })
    }

    /// Forgets what this key has used of all policies of the limiter. Reservations of before get nothing back. Policies that a
    /// layer chooses by the request are not the limiter's: for them there is [`reset_pairs`](Self::reset_pairs), with
    /// [`Policies::pairs`](crate::Policies::pairs).
    pub fn reset(&self, key: PartitionKey) -> ResetFuture {
        match self.own(&key, &Costs::from(0)) {
            Ok(check) => self.forget(check),
            Err(error) => ResetFuture(Progress::Now(Some(Err(error)))),
        }
    }

    /// The same as [`check`](Self::check) for these pairs, and not the limiter's policies: for several keys, or for
    /// [`Policies`](crate::Policies) that are chosen for each request.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Pairs`] unless there are 1 to [`MAX_PAIRS`] pairs, and [`ConfigError::DuplicatePair`].
    pub fn check_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<CheckFuture, ConfigError> {
        Ok(CheckFuture(self.decide(Ok(self.of_pairs(pairs)?), Purpose::Charge)))
    }

    /// The same as [`peek`](Self::peek) for these pairs.
    ///
    /// # Errors
    ///
    /// As [`check_pairs`](Self::check_pairs).
    pub fn peek_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<CheckFuture, ConfigError> {
        Ok(CheckFuture(self.decide(Ok(self.of_pairs(pairs)?), Purpose::Peek)))
    }

    /// The same as [`reserve`](Self::reserve) for these pairs.
    ///
    /// # Errors
    ///
    /// As [`check_pairs`](Self::check_pairs).
    pub fn reserve_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<ReserveFuture, ConfigError> {
        Ok(self.reserving(self.of_pairs(pairs)?))
    }

    /// The same as [`reset`](Self::reset) for these pairs, whatever their costs are.
    ///
    /// # Errors
    ///
    /// As [`check_pairs`](Self::check_pairs).
    pub fn reset_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<ResetFuture, ConfigError> {
        Ok(self.forget(self.of_pairs(pairs)?))
    }

    /// The policies, in the order in which they were given.
    pub fn policies(&self) -> &[Policy] {
        &self.0.settings.policies
    }

    /// The namespace, which keeps this limiter apart from others on the same store.
    pub fn namespace(&self) -> &str {
        self.0.settings.namespace.as_str()
    }

    /// How many settlements were lost so far: those that could not wait, for the queue was full or there was no tokio
    /// runtime; those that waited when their runtime ended; and those that the backend did not confirm. Their charges stand,
    /// or may stand, and leave with their windows.
    pub fn lost_settlements(&self) -> u64 {
        self.0.queue.lost()
    }

    /// Waits until no settlement waits or is under way: for the end of a process, after the last request was answered. Each
    /// takes at most two deadlines.
    pub async fn drain(&self) {
        self.0.queue.drain().await;
    }

    /// The check that a draft asks for; None if it lets the request through.
    pub(crate) fn draft(&self, draft: Draft) -> Result<Option<Check>, ConfigError> {
        if draft.others.is_empty()
            && draft.pairs.is_empty()
            && let Some(Part { key, costs, against: Against::Limiter | Against::LimiterAnd(None) }) =
                &draft.first
            && !self.policies().is_empty()
        {
            // What most requests are, and nothing needs to be looked at again.
            return Ok(Some(self.of_limiter(key, costs)));
        }
        let of_parts_only = draft.pairs.is_empty();
        let mut all = draft.pairs;
        for Part { key, costs, against } in draft.first.iter().chain(&draft.others) {
            if *against == Against::Limiter && self.policies().is_empty() {
                return Err(ConfigError::NoPolicies { max: MAX_PAIRS });
            }
            if !matches!(against, Against::Only(_)) {
                all.extend(pairs(key, self.policies(), costs));
            }
            if let Against::LimiterAnd(Some(policies)) | Against::Only(policies) = against {
                all.extend(pairs(key, policies.as_slice(), costs));
            }
        }
        for Part { costs, .. } in draft.first.iter().chain(&draft.others) {
            self.know_names(costs, &all);
        }
        if all.is_empty() {
            return Ok(None);
        }
        if of_parts_only {
            distinct(&all.iter().map(|pair| pair.policy.clone()).collect::<Vec<_>>())?;
        }
        self.of_pairs(all).map(Some)
    }

    /// Asks for a decision, and for a reservation if it is an admission, and does what this rule says if there is none; or else
    /// the limiter's own.
    pub(crate) fn ask(&self, check: Check, reserves: bool, rule: Option<OutageRule>) -> Result<Verdict, Ask> {
        let rule = rule.unwrap_or(self.0.settings.rule);
        let is_kept = reserves || matches!(rule, OutageRule::Local(_));
        let check = check.with_purpose(if reserves { Purpose::Reserve } else { Purpose::Charge });
        match self.decide_now(&check) {
            Asked::Now(outcome) => {
                let kept = is_kept.then(|| (self.clone(), check));
                Ok(Verdict::new(outcome, rule, reserves, kept))
            }
            Asked::Later(inquiry) => {
                let kept = is_kept.then(|| (self.clone(), check.clone()));
                Err(Ask { asked: self.decide_later(check, inquiry), rule, reserves, kept })
            }
        }
    }

    pub(crate) fn local(&self) -> &Local {
        &self.0.local
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.0.queue
    }

    /// Warns, once, that a request asks for what cannot be a check.
    pub(crate) fn tell_misconfigured(&self, error: &ConfigError) {
        if !self.0.warned_of_draft.swap(true, Ordering::Relaxed) {
            observe::misconfigured(error);
        }
    }

    /// Warns, once, of a name that is no policy's.
    pub(crate) fn know_names(&self, costs: &Costs, pairs: &[Pair]) {
        for name in costs.names() {
            let known = pairs.iter().any(|pair| pair.policy.name() == name);
            if !known && !self.0.warned_of_name.swap(true, Ordering::Relaxed) {
                observe::unknown_policy(name);
            }
        }
    }

    fn of_limiter(&self, key: &PartitionKey, costs: &Costs) -> Check {
        let pairs: Box<[Pair]> = pairs(key, self.policies(), costs).collect();
        self.know_names(costs, &pairs);
        Check::of_limiter(self.0.settings.namespace.clone(), pairs)
    }

    /// The check of this key against all policies of the limiter.
    fn own(&self, key: &PartitionKey, costs: &Costs) -> Result<Check, BackendError> {
        if self.policies().is_empty() {
            let none = ConfigError::NoPolicies { max: MAX_PAIRS };
            return Err(BackendError::with_source(Reason::Other, none));
        }
        Ok(self.of_limiter(key, costs))
    }

    fn of_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<Check, ConfigError> {
        Ok(Check::new(pairs)?.in_namespace(self.0.settings.namespace.clone()))
    }

    fn decide(&self, check: Result<Check, BackendError>, purpose: Purpose) -> Progress<Decision> {
        let check = match check {
            Ok(check) => check.with_purpose(purpose),
            Err(error) => return Progress::Now(Some(Err(error))),
        };
        match self.decide_now(&check) {
            Asked::Now(outcome) => Progress::Now(Some(outcome)),
            Asked::Later(inquiry) => Progress::Later(self.decide_later(check, inquiry)),
        }
    }

    /// The decision, if there is no need to wait for it.
    fn decide_now(&self, check: &Check) -> Asked {
        let engine = &self.0.engine;
        if check.purpose() != Purpose::Charge && !engine.can_change() {
            return Asked::Now(Err(BackendError::new(Reason::Unsupported)));
        }
        if check.purpose() != Purpose::Peek {
            for pair in check.pairs() {
                if pair.cost > pair.policy.quota() {
                    observe::cost_above_quota(pair);
                }
            }
        }
        if let Some(outcome) = engine.ask_now(check) {
            return Asked::Now(outcome);
        }
        match self.0.denials.as_ref().map(|denials| denials.look(check)) {
            Some(Look::Denied(decision)) => Asked::Now(Ok(decision)),
            Some(Look::Ask(inquiry)) => Asked::Later(Some(inquiry)),
            Some(Look::Pass) | None => Asked::Later(None),
        }
    }

    fn decide_later(&self, check: Check, inquiry: Option<Inquiry>) -> Boxed<Decision> {
        self.0.engine.clone().ask(check, self.0.guard.clone(), inquiry)
    }

    fn reserving(&self, check: Check) -> ReserveFuture {
        let kept = Some((self.clone(), check.clone()));
        ReserveFuture { progress: self.decide(Ok(check), Purpose::Reserve), kept }
    }

    fn forget(&self, check: Check) -> ResetFuture {
        let Inner { settings, engine, denials, .. } = &*self.0;
        ResetFuture(if engine.can_change() {
            engine.clone().forget(check, settings.deadline, denials.clone())
        } else {
            Progress::error(Reason::Unsupported)
        })
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.settings, f)
    }
}
