//! The limiter: policies and a backend.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{Backend, BackendError, Reason, memory::MemoryBackend},
    check::{Check, Namespace, OnRollback, Pair, Purpose},
    cost::{Costs, IntoCosts},
    deny_cache::Denials,
    engine::Engine,
    error::ConfigError,
    key::{KeyError, PartitionKey},
    lease::{Ending, Leases},
    now_or_later::NowOrLater,
    observe::{DeniedKey, Lifetime, LimiterEvents, Stats},
    outage::{Guard, Local, OutageRule, Readiness, ServerBreaker},
    policy::Policy,
    settle::Queue,
};

mod build;
mod checks;
mod decide;
mod draft;
mod future;
mod outcome;
mod wait;
mod waiters;

pub use build::LimiterBuilder;
pub(crate) use draft::Against;
pub use draft::{Draft, IntoDraft};
use draft::{Part, Reserve};
pub(crate) use future::Asking;
pub use future::{AdmitFuture, CheckFuture, ReserveFuture, ResetFuture};
pub(crate) use outcome::Basis;
pub use outcome::{Admission, Rejection};
pub use wait::WaitFuture;
use waiters::Waiters;

/// A limiter: policies and a backend. It needs no HTTP and no tower service, and suits jobs and outgoing calls.
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
    /// The backend, if it is a memory backend.
    memory: Option<MemoryBackend>,
    queue: Arc<Queue>,
    /// `None` if the backend protects its servers itself.
    guard: Option<Arc<Guard>>,
    /// `None` if the backend grants no leases.
    leases: Option<Arc<Leases>>,
    /// `None` if the denials of the backend do not hold.
    denials: Option<Arc<Denials>>,
    /// `None` if the denials of the backend do not hold.
    on_rollback: Option<OnRollback>,
    local: Local,
    waiters: Arc<Waiters>,
    events: Arc<LimiterEvents>,
    /// `None` if the store has no name.
    _lifetime: Option<Lifetime>,
}

#[derive(Clone, Debug)]
struct Settings {
    policies: Vec<Policy>,
    namespace: Namespace,
    /// The first part of every key.
    region: Option<PartitionKey>,
    deadline: Duration,
    rule: OutageRule,
    reserve: Reserve,
}

/// # Errors
///
/// All checks return a [`BackendError`] if the backend makes no decision within the deadline. If the backend can only charge,
/// then peek, reserve and reset return [`Reason::Unsupported`] without asking it. If a limiter was built
/// [without policies](LimiterBuilder::without_policies), the methods that take a key return an error: use those that take pairs.
///
/// # When a check begins
///
/// If the backend answers at once, a check is complete when the method returns. Otherwise, and always for a reset, it begins
/// when the future is polled. If the future is dropped before it is complete, the charge may stand.
///
/// # Runtime
///
/// A backend that answers at once, such as the memory, needs no runtime. Any other backend needs tokio with its timer enabled
/// (`enable_time`, as in `#[tokio::main]`; a runtime without a timer panics). Outside tokio there is no deadline. To
/// [wait](Self::wait), every backend needs tokio with its timer enabled.
impl Limiter {
    /// The default deadline of a check: 100 ms.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// The default bound of the settlement queue: 1,024.
    pub const DEFAULT_SETTLEMENT_QUEUE: usize = 1_024;

    /// The default bound of checks in flight: 4,096. If each check takes 10 ms, this bound permits 400,000 checks per second. If
    /// each check takes the whole deadline, it permits 40,000. Each waiting check needs a few kilobytes of memory.
    pub const DEFAULT_MAX_IN_FLIGHT: usize = 4_096;

    /// The default bound of waiting requests: 4,096. Each of them needs a few kilobytes of memory.
    pub const DEFAULT_MAX_WAITING: usize = 4_096;

    /// The default bound of waiting requests of one key: 1,024. It is a quarter of the default for all keys, so that requests of one
    /// key leave room to wait for those of other keys.
    pub const DEFAULT_MAX_WAITING_PER_KEY: usize = 1_024;

    /// The default fraction of a quota that counts as [near the limit](LimiterBuilder::near_limit): 0.8.
    pub const DEFAULT_NEAR_LIMIT: f64 = 0.8;

    /// Returns a builder for a limiter over this backend.
    pub fn builder(backend: impl Backend) -> LimiterBuilder {
        LimiterBuilder::new(backend)
    }

    /// Charges the cost, if every policy has room for it. A policy costs 1 unit if `cost` does not name it.
    ///
    /// A denial is no error: read [`Decision::is_admitted`](crate::Decision::is_admitted), or use [`admit`](Self::admit).
    pub fn check(&self, key: PartitionKey, cost: impl IntoCosts) -> CheckFuture {
        self.decide_own(key, &cost.into_costs(), Purpose::Charge)
    }

    /// Returns the decision that [`check`](Self::check) would return, and charges nothing.
    pub fn peek(&self, key: PartitionKey, cost: impl IntoCosts) -> CheckFuture {
        self.decide_own(key, &cost.into_costs(), Purpose::Peek)
    }

    /// Charges as [`check`](Self::check) does, and returns a handle that later replaces the charge by the amount actually
    /// used. See [`Reservation`](crate::Reservation), [`LimiterBuilder::unsettled`] and [`LimiterBuilder::clamp_estimates`].
    ///
    /// # Errors
    ///
    /// Returns [`Rejection::Denied`] if a policy has no room, and [`Rejection::Unavailable`] if there is no decision. The
    /// outage rule does not apply.
    pub fn reserve(&self, key: PartitionKey, cost: impl IntoCosts) -> ReserveFuture {
        ReserveFuture(match self.own(key, &cost.into_costs()) {
            Ok(check) => self.ask(check, Some(self.0.settings.reserve), Some(OutageRule::FailClosed)),
            Err(error) => NowOrLater::now(Err(Rejection::Unavailable(error))),
        })
    }

    /// Charges as [`check`](Self::check) does, and applies the [outage rule](LimiterBuilder::outage) if the backend makes no
    /// decision, as a layer does.
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if the request must not go on.
    pub fn admit(&self, key: PartitionKey, cost: impl IntoCosts) -> AdmitFuture {
        let costs = cost.into_costs();
        if let Some(outcome) = self.admit_in_memory(&key, &costs, false) {
            return AdmitFuture(NowOrLater::now(outcome));
        }
        AdmitFuture(match self.own(key, &costs) {
            Ok(check) => self.ask(check, None, None),
            Err(error) => NowOrLater::now(Err(Rejection::Unavailable(error))),
        })
    }

    /// Charges as [`admit`](Self::admit) does. If the request is denied, sleeps until the instant at which it fits, at most
    /// `at_most`, and then charges it.
    ///
    /// Requests of one key form a queue in this process, which clones of the limiter share: they are admitted in the order in
    /// which their futures are first polled. Only the first one asks the store. If no other process or method takes the units
    /// that it waits for, each request asks at most twice. [The guide](crate::guide::waiting) states the details.
    ///
    /// To wait in front of a client, use [`WaitLayer`](crate::wait::WaitLayer).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("calls", 5, Duration::from_millis(20))?)
    ///     .build()?;
    /// for _ in 0..12 {
    ///     let _admission = limiter.wait(PartitionKey::new("api", "search"), 1, Duration::from_secs(2)).await?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns at once:
    ///
    /// - [`Rejection::Denied`] with the wait, if no wait helps, or if the store states a wait that ends after `at_most`; also if
    ///   [too many](LimiterBuilder::max_waiting) requests wait already, in the queues of other keys. Outside tokio, every denial is
    ///   returned.
    /// - [`Rejection::WaitTooLong`], if the units that the requests ahead need show that the wait ends after `at_most`.
    /// - [`Rejection::TooManyWaiting`], if others of the key are ahead, and too many requests [wait](LimiterBuilder::max_waiting), or
    ///   too many [of this key](LimiterBuilder::max_waiting_per_key).
    /// - The other rejections of [`admit`](Self::admit), if the backend makes no decision and the outage rule rejects the request.
    ///
    /// If the turn of the request has not come when `at_most` ends, returns [`Rejection::WaitTooLong`] then. A check that has begun is
    /// completed.
    pub fn wait(&self, key: PartitionKey, cost: impl IntoCosts, at_most: Duration) -> WaitFuture {
        match self.own(key, &cost.into_costs()) {
            Ok(check) => WaitFuture::of(self.clone(), check, None, None, at_most),
            Err(error) => WaitFuture::rejected(Rejection::Unavailable(error)),
        }
    }

    /// Returns how many requests [wait](Self::wait) now, or are asked for in the queue of their key.
    pub fn waiting(&self) -> usize {
        self.0.waiters.count()
    }

    /// Clears the usage of this key for all policies of the limiter. Earlier reservations receive no refund. After the deadline, the
    /// store clears nothing.
    ///
    /// The policies that a layer chooses by the request, and those of its further limits, do not belong to the limiter. For these
    /// policies, use [`reset_pairs`](Self::reset_pairs) with [`Policies::pairs`](crate::Policies::pairs).
    pub fn reset(&self, key: PartitionKey) -> ResetFuture {
        match self.own(key, &Costs::from(0)) {
            Ok(check) => self.clear(check),
            Err(error) => ResetFuture(NowOrLater::now(Err(error))),
        }
    }

    /// Checks these pairs instead of the limiter's policies: for several keys, or for [`Policies`](crate::Policies) that are
    /// chosen for each request.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Pairs`] unless there are 1 to [`MAX_PAIRS`](crate::backend::MAX_PAIRS) pairs, and [`ConfigError::DuplicatePair`].
    pub fn check_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<CheckFuture, ConfigError> {
        Ok(CheckFuture(self.decide(self.of_pairs(pairs)?, Purpose::Charge)))
    }

    /// Returns the decision that [`check_pairs`](Self::check_pairs) would return, and charges nothing.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check_pairs`](Self::check_pairs).
    pub fn peek_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<CheckFuture, ConfigError> {
        Ok(CheckFuture(self.decide(self.of_pairs(pairs)?, Purpose::Peek)))
    }

    /// Reserves these pairs; see [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check_pairs`](Self::check_pairs).
    pub fn reserve_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<ReserveFuture, ConfigError> {
        let reserve = Some(self.0.settings.reserve);
        Ok(ReserveFuture(self.ask(self.of_pairs(pairs)?, reserve, Some(OutageRule::FailClosed))))
    }

    /// Clears the usage of these pairs; see [`reset`](Self::reset). Their costs have no effect.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check_pairs`](Self::check_pairs).
    pub fn reset_pairs(&self, pairs: impl Into<Box<[Pair]>>) -> Result<ResetFuture, ConfigError> {
        Ok(self.clear(self.of_pairs(pairs)?))
    }

    /// Returns the policies in the order in which they were added.
    pub fn policies(&self) -> &[Policy] {
        &self.0.settings.policies
    }

    /// Returns the namespace, which separates this limiter from others on the same store.
    pub fn namespace(&self) -> &str {
        self.0.settings.namespace.as_str()
    }

    /// Returns the number of lost settlements. A settlement is lost if the queue is full, or if the backend does not confirm it
    /// within 5 s. It is also lost if there is no tokio runtime, or the runtime ends first. Then either the estimate or the amount used
    /// counts, until the window of the charge has passed.
    pub fn lost_settlements(&self) -> u64 {
        self.0.queue.lost()
    }

    /// Returns the counters of this limiter and its clones, for a health page.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("mails", 2, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// for _ in 0..5 {
    ///     let _ = limiter.check(PartitionKey::new("user", "alice"), 1).await?;
    /// }
    /// let stats = limiter.stats();
    /// assert_eq!((stats.admitted, stats.denied, stats.unavailable), (2, 3, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.0.events.counters().stats(self.lost_settlements(), self.breakers())
    }

    /// Returns whether the store decides the checks of this limiter now, or the [`OutageRule`] applies. Use it in a readiness probe.
    ///
    /// It reads the circuit breaker of each server, and sends nothing. So it returns at once, and its result shows no more than the
    /// last checks. A limiter that has made no check, or that has [no breaker](LimiterBuilder::breaker), is ready. While a server
    /// fails and checks go on, it is unavailable. 5 s after the last failed check, it counts as available: the next check asks it.
    /// [`stats`](Self::stats) names each server.
    ///
    /// To find mistakes in the configuration of Redis when a service starts, use `connect` or `verify` of `RedisBackend`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, Policy, outage::Readiness};
    ///
    /// let policy = Policy::new("mails", 2, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?; // or RedisBackend
    /// assert_eq!(limiter.readiness(), Readiness::Ready);
    /// assert!(limiter.readiness().can_decide());
    /// # Ok::<(), tower_sliding_window::ConfigError>(())
    /// ```
    pub fn readiness(&self) -> Readiness {
        Readiness::of(&self.breakers())
    }

    fn breakers(&self) -> Vec<ServerBreaker> {
        let Inner { engine, guard, .. } = &*self.0;
        let of_servers = engine.breakers().into_iter();
        of_servers.chain(guard.as_ref().and_then(|guard| guard.breaker())).collect()
    }

    /// Returns the partition keys that this process has denied most, since the limiter was built: at most `max` and at most 128,
    /// the most denied first. If several policies deny a check, the key of the policy with the longest wait counts.
    ///
    /// The memory is bounded: the limiter keeps 128 keys, of at most 256 bytes each. A key with more than 1/128 of all denials is
    /// always among them. Values of keys may identify people, so do not log them without need.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("mails", 2, Duration::from_secs(60))?;
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// for _ in 0..5 {
    ///     let _ = limiter.check(PartitionKey::new("user", "alice"), 1).await?;
    /// }
    /// let [alice] = &limiter.most_denied(10)[..] else { panic!("one key was denied") };
    /// assert_eq!((alice.denials, alice.excess), (3, 0));
    /// assert_eq!(alice.key.parts().next(), Some(("user", &b"alice"[..])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn most_denied(&self, max: usize) -> Vec<DeniedKey> {
        self.0.events.counters().most_denied(max)
    }

    /// Waits until no settlement is queued or in progress, and until the backend has finished its rollbacks. Call it at the end
    /// of a process, after the last response. Each settlement takes at most 5 s, and each rollback at most a deadline and six
    /// seconds. A rollback whose runtime does not run is then counted as lost.
    ///
    /// Ends all [leases](crate::Policy::leased) and returns their units first. Lease requests in flight take at most a deadline.
    pub async fn drain(&self) {
        if let Some(leases) = &self.0.leases {
            leases.drain(self.0.settings.deadline).await;
        }
        self.0.queue.drain().await;
        self.0.engine.clone().finish().await;
    }

    /// Starts the check of a draft. Returns `None` if the draft is exempt.
    #[inline]
    pub(crate) fn start(&self, draft: Draft) -> Option<Asking> {
        // The usual check.
        if let Draft { first: Some(part), rest: None, reserves: false, .. } = &draft
            && matches!(part.against, Against::Limiter | Against::LimiterAnd(None))
            && let Some(outcome) = self.admit_in_memory(&part.key, &part.costs, part.is_shadow)
        {
            return Some(NowOrLater::now(outcome));
        }
        let (rule, reserve) = (draft.outage, self.reserve_of(&draft));
        Some(match draft {
            // The builder has validated these policies.
            Draft {
                first:
                    Some(Part { key, costs, is_shadow, against: Against::Limiter | Against::LimiterAnd(None) }),
                rest: None,
                ..
            } if !self.policies().is_empty() => {
                self.ask(self.of_limiter(key, &costs, is_shadow), reserve, rule)
            }
            draft => match self.counted(draft)? {
                Ok(check) => self.ask(check, reserve, rule),
                Err(rejection) => NowOrLater::now(Err(rejection)),
            },
        })
    }

    /// Waits until the check of a draft is admitted. Returns `None` if the draft is exempt.
    pub(crate) fn start_waiting(&self, draft: Draft, at_most: Duration) -> Option<WaitFuture> {
        let (rule, reserve) = (draft.outage, self.reserve_of(&draft));
        Some(match self.counted(draft)? {
            Ok(check) => WaitFuture::of(self.clone(), check, reserve, rule, at_most),
            Err(rejection) => WaitFuture::rejected(rejection),
        })
    }

    /// Rejects a request without a key that can be read.
    pub(crate) fn reject_key(&self, error: KeyError) -> Rejection {
        if let KeyError::Misconfigured { .. } = error {
            self.0.events.misconfigured(&error);
        }
        Rejection::Key(error)
    }

    /// Counts the outcome of a request of a layer. `None` is an exempt request. `route` returns its matched route.
    pub(crate) fn responded<'a>(
        &self,
        outcome: Option<&Result<Admission, Rejection>>,
        route: impl FnOnce() -> Option<&'a str>,
    ) {
        self.0.events.responded(outcome::of_request(outcome), route);
    }

    /// Returns whether charges can be settled.
    pub(crate) fn can_settle(&self) -> bool {
        self.0.engine.can_change()
    }

    fn waiters(&self) -> &Arc<Waiters> {
        &self.0.waiters
    }

    /// Returns whether estimates above a quota are clamped.
    pub(crate) fn clamps_estimates(&self) -> bool {
        self.0.settings.reserve.clamps
    }

    fn local(&self) -> &Local {
        &self.0.local
    }

    pub(crate) fn events(&self) -> &LimiterEvents {
        &self.0.events
    }

    fn queue(&self) -> &Arc<Queue> {
        &self.0.queue
    }

    fn clear(&self, check: Check) -> ResetFuture {
        let Inner { settings, engine, denials, .. } = &*self.0;
        ResetFuture(if engine.can_change() {
            let forgotten = engine.clone().forget(check.clone(), settings.deadline, denials.clone());
            NowOrLater::Later(Box::pin(async move {
                let _ending = Ending::of(check);
                forgotten.await
            }))
        } else {
            NowOrLater::now(Err(BackendError::new(Reason::Unsupported)))
        })
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.settings, f)
    }
}
