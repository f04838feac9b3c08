//! The limiter: policies and a backend.

use std::{error::Error, time::Duration};

use tokio::time::Instant;

use self::{
    inner::{LimiterInner, LimiterSettings},
    outage_rule::Terms,
};
use crate::{
    check::{Check, Invalidation, Purpose},
    cost::IntoCosts,
    decision::Decision,
    error::{BackendError, ConfigError, Reason},
    guard::{before, until},
    key::{KeyError, PartitionKey},
    lease::RevokeGuard,
    now_or_later::NowOrLater,
    observe::{Counted, DeniedKey, ServerBreaker, Stats},
    outage::{OutageRule, Readiness},
    policy::{BLOCK_UNIT, Properties},
    settle::{Charged, Reservation, Settled, TokenError, Unsettled},
};

mod build;
mod check_for_draft;
mod draft;
mod future;
mod inner;
mod learn;
mod outage_rule;
mod outcome;
mod pipeline;
mod rejection;
mod wait;
mod waiters;

pub use build::LimiterBuilder;
use draft::UsualPart;
pub(crate) use draft::{Against, Reserve};
pub use draft::{Draft, IntoDraft};
pub(crate) use future::Admitting;
pub use future::LimiterFuture;
pub use inner::Limiter;
pub use outcome::Admission;
pub(crate) use outcome::{AdmitResult, Basis, request_outcome};
pub use rejection::Rejection;

/// # What to check
///
/// The methods that check, wait, reserve, reset or block take one parameter, which is anything that is an [`IntoDraft`]:
///
/// | value | pairs |
/// | --- | --- |
/// | `key` or `&key` | this [`PartitionKey`](crate::PartitionKey) and each policy of the limiter, at 1 unit |
/// | `(key, 10)` or `(&key, costs)` | the same at this cost, or at these [`Costs`](crate::Costs) |
/// | `[pair, ..]`, `Vec<Pair>` | these [pairs](crate::backend::Pair) of a key and a policy, for several keys |
/// | [`Draft`] | policies chosen for this request, several keys, an outage rule of its own |
///
/// # Errors
///
/// If the backend makes no decision within the deadline, [`check`](Self::check), [`peek`](Self::peek) and [`reset`](Self::reset) return
/// a [`BackendError`]. They return [`Reason::Misconfigured`] without asking the backend, if the pairs cannot be a check.
/// [`admit`](Self::admit), [`wait`](Self::wait), [`reserve`](Self::reserve) and [`take_up_to`](Self::take_up_to) apply the outage rule, and
/// return a [`Rejection`].
///
/// If the backend can only charge, then peek, reserve and reset return [`Reason::Unsupported`] without asking it.
///
/// # When a check begins
///
/// If the backend answers at once, a check, a reset and a change of a gate are complete when the method returns. Otherwise, they
/// begin when the future is polled, and so do [`wait`](Self::wait) and [`settle_token`](Self::settle_token) with any backend. A check that
/// [leased](crate::Policy::leased) units answer is complete when the method returns, too. If the future is dropped before it is complete, the
/// charge may stand.
///
/// Outside an async function, [`LimiterFuture::now`](crate::future::LimiterFuture::now) returns a decision that was made at once.
///
/// # Runtime
///
/// A backend that answers at once, such as the memory, needs no runtime. Any other backend needs tokio with its timer enabled, and
/// Redis with its sockets too (`enable_all`, as in `#[tokio::main]`; tokio panics where they are missing). Outside tokio there is no
/// deadline. To [wait](Self::wait), every backend needs tokio with its timer enabled.
impl Limiter {
    /// Charges the cost, if every policy has room for it. A policy costs 1 unit if the cost does not name it.
    ///
    /// A denial is no error: read [`Decision::is_admitted`](crate::Decision::is_admitted), or use [`admit`](Self::admit). An exempt draft
    /// is admitted without a status. If the draft [reserves](Draft::reserve), the check is a plain charge: use [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] if the backend makes no decision within the deadline. It is [`Reason::Misconfigured`] if the pairs cannot
    /// be a check.
    #[inline]
    pub fn check(&self, draft: impl IntoDraft) -> LimiterFuture<Result<Decision, BackendError>> {
        let Some(key) = draft.as_key() else {
            return self.decide_draft(draft.into_draft(), Purpose::Charge);
        };
        match self.decide_part_now(UsualPart { key, costs: None, is_shadow: false }, Purpose::Charge) {
            Some(decision) => LimiterFuture(NowOrLater::now(Ok(decision))),
            None => self.decide_any_draft(draft.into_draft(), Purpose::Charge),
        }
    }

    /// Returns the decision that [`check`](Self::check) would return, and charges nothing. At a cost of 0, `(key, 0)`,
    /// [`remaining`](crate::Status::remaining) is what is left. At 1 unit, it is what a request of this cost would leave.
    ///
    /// With a key, peeks at the policies of the limiter, and returns [`Reason::Misconfigured`] if it has none. For the policies of a further
    /// limit of a layer, and those that a layer chooses by the request, give [`Draft::check_against`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check`](Self::check), and [`Reason::Unsupported`] if the backend can only charge.
    pub fn peek(&self, draft: impl IntoDraft) -> LimiterFuture<Result<Decision, BackendError>> {
        self.decide_draft(draft.into_draft(), Purpose::Peek)
    }

    /// Charges as [`admit`](Self::admit) does, and returns a handle that later replaces the charge by the amount actually
    /// used. See [`Reservation`](crate::Reservation), [`LimiterBuilder::unsettled`] and [`LimiterBuilder::clamp_estimates`].
    ///
    /// A request that the outage rule admits without a charge, and an exempt one, have a reservation with nothing to settle.
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if the request must not go on.
    pub fn reserve(&self, draft: impl IntoDraft) -> LimiterFuture<Result<Reservation, Rejection>> {
        LimiterFuture(self.reserve_units(draft.into_draft(), None, |reservation| reservation))
    }

    /// Charges the costs times the largest number of units that every policy has room for, at most `units`. Returns this number, and
    /// the handle of the charge. It is one decision: at its instant, one unit more does not fit.
    ///
    /// The draft states what one unit costs. If not even one unit fits, this is a denial, with the wait of one unit. The deny cache
    /// learns of it. Zero units are always admitted.
    ///
    /// - **In an outage**, the rule decides as for [`reserve`](Self::reserve). To fail open returns as many of `units` as a whole
    ///   quota admits, without a charge. The local fallback takes what its share has room for.
    /// - **[Shadow policies](crate::Policy::shadow)** do not lower the number.
    /// - **[Leased units](crate::Policy::leased)** of any process count as used: the store takes only what is left of its quota.
    /// - **The costs** that are charged are at most 2^32-1 units of each policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("mails", 100, Duration::from_secs(60))?)
    ///     .build()?;
    /// let provider = PartitionKey::new("provider", "mailer");
    /// let (first, _) = limiter.take_up_to(provider.clone(), 80).await?;
    /// let (second, rest) = limiter.take_up_to(provider, 80).await?;
    /// assert_eq!((first, second), (80, 20));
    /// // Only 15 mails were left to send.
    /// rest.settle(15).await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if nothing was taken. If the keys are in several slots of a cluster, it is
    /// [`Rejection::Unavailable`] with [`Reason::CrossSlot`], regardless of the outage rule, and nothing was charged.
    pub fn take_up_to(
        &self,
        draft: impl IntoDraft,
        units: u32,
    ) -> LimiterFuture<Result<(u32, Reservation), Rejection>> {
        LimiterFuture(self.reserve_units(draft.into_draft(), Some(units), move |reservation| {
            (reservation.taken_units().unwrap_or(units), reservation)
        }))
    }

    /// Charges the cost, even beyond the quota: units that were used already, such as those of a job that has run elsewhere. Returns
    /// the handle of the charge, which can be settled. If it is dropped, the charge stands.
    ///
    /// It decides nothing. So it applies no outage rule, and [`stats`](Self::stats) do not count it. It charges
    /// [shadow policies](crate::Policy::shadow) as well. What is beyond the quota denies later checks until it has left the window. A token
    /// bucket counts at most twice its capacity as used; a debit that reaches this bound receives no refund.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("tokens", 1_000, Duration::from_secs(60))?)
    ///     .build()?;
    /// let alice = PartitionKey::new("user", "alice");
    /// let _receipt = limiter.debit((&alice, 1_500)).await?;
    /// assert!(!limiter.check(alice).await?.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] if the units may not have been charged. If the keys are in several slots of a cluster, those of the
    /// other slots may be charged.
    pub fn debit(&self, draft: impl IntoDraft) -> LimiterFuture<Result<Reservation, BackendError>> {
        LimiterFuture(match self.check_to_decide(draft.into_draft()) {
            Ok(Some(check)) => {
                self.decide(check.with_purpose(Purpose::Debit), false, |limiter, check, decided| {
                    let (queue, decision) = (limiter.0.queue.clone(), decided?);
                    Ok(Reservation::new(queue, check, decision, Charged::Store(None), Unsettled::Keep))
                })
            }
            Ok(None) => NowOrLater::now(Ok(self.uncharged(self.empty_check()))),
            Err(error) => NowOrLater::now(Err(error)),
        })
    }

    /// Charges as [`check`](Self::check) does, and applies the [outage rule](LimiterBuilder::outage) if the backend makes no
    /// decision, as a layer does.
    ///
    /// # Errors
    ///
    /// Returns a [`Rejection`] if the request must not go on.
    pub fn admit(&self, draft: impl IntoDraft) -> LimiterFuture<Result<Admission, Rejection>> {
        LimiterFuture(self.start(draft.into_draft(), None).unwrap_or_else(exempt))
    }

    /// Charges as [`admit`](Self::admit) does. If the request is denied, sleeps until the instant at which it fits, at most
    /// `at_most`, and then charges it.
    ///
    /// Requests of one key form a queue in this process, which clones of the limiter share: they are admitted in the order in
    /// which their futures are first polled. Only the first one asks the store. If no other process or method takes the units
    /// that it waits for, and none are returned, each request asks at most twice. [The guide](crate::guide::waiting) states the details.
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
    ///     let _admission = limiter.wait(PartitionKey::new("api", "search"), Duration::from_secs(2)).await?;
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
    pub fn wait(
        &self,
        draft: impl IntoDraft,
        at_most: Duration,
    ) -> LimiterFuture<Result<Admission, Rejection>> {
        LimiterFuture(self.start(draft.into_draft(), Some(at_most)).unwrap_or_else(exempt))
    }

    /// Returns the number of requests that [wait](Self::wait), with the first of each queue, for which the limiter asks the store.
    pub fn waiting(&self) -> usize {
        self.0.waiters.count()
    }

    /// Blocks the [gates](crate::Policy::gate) of these pairs from now on for a duration, rounded up to 10 ms, at most 366 days: each request of
    /// their keys is denied until then. A gate that blocks longer already stays as it is. The costs have no effect. Other policies
    /// stay as they are, but this process asks the store again about their cached denials, whose waits may be shorter than the block.
    /// After the deadline, the store changes nothing.
    ///
    /// With a key, blocks all gates of the limiter. The policies that a layer chooses by the request do not belong to the limiter: for these,
    /// give [`Draft::check_against`]. While a store is unreachable, the outage rule decides, and a fallback in this process
    /// knows of no block; only a denial that this process has seen stays until its wait has passed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check`](Self::check), and [`Reason::Misconfigured`] if none of the policies is a gate.
    pub fn block(
        &self,
        draft: impl IntoDraft,
        duration: Duration,
    ) -> LimiterFuture<Result<(), BackendError>> {
        self.block_gates(self.check_to_decide(draft.into_draft()), duration, |_| ())
    }

    /// Blocks gates as [`block`](Self::block) does. `done` converts the instant of the store.
    fn block_gates<T: Send + 'static>(
        &self,
        check: Result<Option<Check>, BackendError>,
        duration: Duration,
        done: fn(u64) -> T,
    ) -> LimiterFuture<Result<T, BackendError>> {
        let units = duration.as_micros().div_ceil(u128::from(BLOCK_UNIT)).min(u128::from(u32::MAX)) as u32;
        self.change(check, |check| Ok(Some(gates(check)?.charging_overage(units))), done)
    }

    /// Ends the block of the [gates](crate::Policy::gate) of these pairs, as [`block`](Self::block) chooses them. Requests of this process that
    /// [wait](Self::wait) for them ask again at once. Other processes may repeat a
    /// denial for the [maximum age](crate::outage::DenyCacheConfig) of their deny caches.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check`](Self::check), and [`Reason::Misconfigured`] if none of the policies is a gate.
    pub fn unblock(&self, draft: impl IntoDraft) -> LimiterFuture<Result<(), BackendError>> {
        self.change(self.check_to_decide(draft.into_draft()), |check| gates(check).map(Some), |_| ())
    }

    /// Clears the usage of these pairs. [Gates](crate::Policy::gate) stay as they are. The costs have no effect. Earlier reservations receive no refund. Requests of this process
    /// that [wait](Self::wait) for these pairs ask again at once. After the deadline, the store clears nothing.
    ///
    /// With a key, clears its usage for all policies of the limiter. The policies that a layer chooses by the request, and those of its
    /// further limits, do not belong to the limiter: for these, give [`Draft::check_against`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`check`](Self::check), and [`Reason::Unsupported`] if the backend can only charge.
    pub fn reset(&self, draft: impl IntoDraft) -> LimiterFuture<Result<(), BackendError>> {
        let check = self.check_to_decide(draft.into_draft());
        self.change(check, |check| Ok(check.of_policies(Properties::is_settled)), |_| ())
    }

    /// Changes the pairs that `part` selects from a check. Blocks their gates if they charge an overage, and resets them otherwise. `done`
    /// converts the instant of a block, or 0.
    fn change<T: Send + 'static>(
        &self,
        check: Result<Option<Check>, BackendError>,
        part: impl FnOnce(&Check) -> Result<Option<Check>, BackendError>,
        done: fn(u64) -> T,
    ) -> LimiterFuture<Result<T, BackendError>> {
        let LimiterInner { backend, settings, .. } = &*self.0;
        let now = |result| LimiterFuture(NowOrLater::now(result));
        let parts = |all: Check| Ok(part(&all)?.map(|part| (all, part)));
        let (all, check) = match check.and_then(|check| check.map_or(Ok(None), parts)) {
            _ if !backend.changes_charges() => return now(Err(BackendError::unsupported())),
            Ok(Some(parts)) => parts,
            Ok(None) => return now(Ok(done(0))),
            Err(error) => return now(Err(error)),
        };
        let at_micros = |decision: Decision| decision.at_micros();
        let blocks = check.purpose() == Purpose::Overage;
        let changed_now = if blocks {
            backend.check_now(&check).map(|decided| decided.map(at_micros))
        } else {
            backend.reset_now(&check).map(|reset| reset.map(|()| 0))
        };
        if let Some(changed) = changed_now {
            drop(forget(&all, &check, blocks));
            return now(changed.map(done));
        }
        let (backend, deadline) = (backend.clone(), settings.deadline);
        LimiterFuture(NowOrLater::Later(Box::pin(async move {
            let _forgotten = forget(&all, &check, blocks);
            let deadline = Instant::now() + deadline;
            let check = check.with_deadline(deadline);
            let changed = async {
                if blocks {
                    backend.check(&check).await.map(at_micros)
                } else {
                    backend.reset(&check).await.map(|()| 0)
                }
            };
            before(deadline, changed).await.map(done)
        })))
    }

    /// Settles the reservation of a [token](Reservation::into_token), as [`Reservation::settle`] does: replaces its charge by the amount
    /// used. Each token is settled once, whatever process does it, so a queue may deliver a job twice.
    ///
    /// The store remembers a settled token in the same call that changes the charges, until the window of its last charge has passed.
    /// In Redis, this takes a key of about 100 bytes for each partition key of the token (`MEMORY USAGE`). A call changes at most four pairs:
    /// of more policies, each four remember their part. A memory remembers as many tokens as it may have keys.
    ///
    /// The limiter needs the namespace, the backend with the hash secret, and the policies of the limiter that has reserved. Their
    /// quotas may differ, except the capacity and the rate of a token bucket. Policies that were chosen by a request must be those of this limiter. The settlement may take 5 s.
    ///
    /// | result | meaning |
    /// | --- | --- |
    /// | [`Settled::Done`] | the amount has replaced the charge, as far as it still counts. After a [reset](Self::reset), nothing is refunded |
    /// | [`Settled::Already`] | the token was settled before, and this call has changed nothing |
    /// | [`Settled::Expired`] | all windows of the charge have passed, and this call has changed nothing |
    /// | [`Settled::Uncharged`] | the store has not charged the reservation |
    ///
    /// If one partition key of a token fails, the others may be settled. Settle the token again: each key makes its changes once. If the
    /// store fails between the changes of one key, it makes none of them again. A store that loses its data may settle a token again.
    ///
    /// A denial in the deny cache of this process stays until its wait or its maximum age has passed, and no request that
    /// [waits](Self::wait) asks earlier, because a token does not contain the key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy, settle::Settled};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("pages", 100, Duration::from_secs(60))?)
    ///     .build()?;
    /// let token = limiter.reserve((PartitionKey::new("user", "alice"), 40)).await?.into_token()?;
    /// // The worker has printed 12 pages, and the queue delivers the job twice.
    /// assert!(matches!(limiter.settle_token(&token, 12).await?, Settled::Done { .. }));
    /// assert!(matches!(limiter.settle_token(&token, 12).await?, Settled::Already));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`TokenError`]. After [`TokenError::Backend`], it is safe to settle the token again.
    pub fn settle_token(
        &self,
        token: &str,
        used: impl IntoCosts,
    ) -> LimiterFuture<Result<Settled, TokenError>> {
        let (limiter, token, used) = (self.clone(), token.to_owned(), used.into_costs());
        LimiterFuture(NowOrLater::Later(Box::pin(async move {
            let LimiterInner { queue, settings, .. } = &*limiter.0;
            queue.settle_token(&token, &settings.namespace, &settings.policies, &used).await
        })))
    }

    /// Returns the number of lost settlements. A settlement is lost if the queue is full, or if the backend does not confirm it
    /// within 5 s. It is also lost if there is no tokio runtime, or the runtime ends first. Then either the estimate or the amount used
    /// counts, until the window of the charge has passed.
    pub fn lost_settlements(&self) -> u64 {
        self.0.events.counters.counted(Counted::SettlementLost)
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
    ///     let _ = limiter.check(PartitionKey::new("user", "alice")).await?;
    /// }
    /// let stats = limiter.stats();
    /// assert_eq!((stats.admitted, stats.denied, stats.unavailable), (2, 3, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.0.events.counters.stats(self.breakers())
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
        Readiness::from_breakers(&self.breakers())
    }

    fn breakers(&self) -> Vec<ServerBreaker> {
        let LimiterInner { backend, guard, .. } = &*self.0;
        let of_servers = backend.breakers().into_iter();
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
    ///     let _ = limiter.check(PartitionKey::new("user", "alice")).await?;
    /// }
    /// let [alice] = &limiter.most_denied(10)[..] else { panic!("one key was denied") };
    /// assert_eq!((alice.denials, alice.excess), (3, 0));
    /// assert_eq!(alice.key.parts().next(), Some(("user", &b"alice"[..])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn most_denied(&self, max: usize) -> Vec<DeniedKey> {
        self.0.events.most_denied(false, max)
    }

    /// Returns the partition keys that [shadow policies](crate::Policy::shadow) would have denied most in this process, as
    /// [`most_denied`](Self::most_denied) returns those that were denied: who would be limited if the policies were enforced.
    /// `denials` is then the number of admitted checks that a shadow policy would have denied. If several would have denied a check,
    /// the key of the policy with the longest wait counts.
    ///
    /// It is a list of its own, with the same bound. A check that an enforced policy denies does not count: it charges no shadow policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Limiter, MemoryBackend, PartitionKey, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("mails", 2, Duration::from_secs(60))?.shadow();
    /// let limiter = Limiter::builder(MemoryBackend::new()).policy(policy).build()?;
    /// for _ in 0..5 {
    ///     assert!(limiter.check(PartitionKey::new("user", "alice")).await?.is_admitted());
    /// }
    /// let [alice] = &limiter.most_shadow_denied(10)[..] else { panic!("one key would be denied") };
    /// assert_eq!((alice.denials, limiter.most_denied(10).len()), (3, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn most_shadow_denied(&self, max: usize) -> Vec<DeniedKey> {
        self.0.events.most_denied(true, max)
    }

    /// Returns the pseudonym of a partition key, which is in the `debug` events about this key and in the lists of
    /// [`most_denied`](Self::most_denied) and [`most_shadow_denied`](Self::most_shadow_denied). `None` unless the limiter has [a secret
    /// for pseudonyms](LimiterBuilder::pseudonyms). The limiter adds its [region](LimiterBuilder::region) to the key, as for a check.
    /// An entry of these lists has its pseudonym already.
    pub fn pseudonym(&self, key: &PartitionKey) -> Option<String> {
        let with_region = self.0.settings.region.as_ref().map(|region| region.and(key));
        self.0.events.pseudonym(with_region.as_ref().unwrap_or(key))
    }

    /// Waits until no settlement is queued or in progress, and until the backend has finished its rollbacks. Call it at the end
    /// of a process, after the last response. Each settlement takes at most 5 s, and each rollback at most a deadline and six
    /// seconds. If its runtime does not run, a settlement that waits or a rollback is then lost, and counted.
    ///
    /// Ends all [leases](crate::Policy::leased) and returns their units first. Lease requests in flight take at most a deadline. Also waits
    /// until the answers of an API that a layer has [received](crate::protocol::By::learn_by) are learned: at most two deadlines,
    /// and a second. In Redis, also waits until the units [in flight](crate::Policy::in_flight) of ended requests are released:
    /// at most the [hold time](crate::Policy::hold_time).
    pub async fn drain(&self) {
        if let Some(leases) = &self.0.leases {
            leases.drain(self.0.settings.deadline).await;
        }
        self.0.queue.drain().await;
        if let Some(learner) = &self.0.learner {
            // If their runtime does not run, they never end.
            let end = Instant::now() + 2 * self.0.settings.deadline + Duration::from_secs(1);
            let _ = until(end, learner.tasks.closed()).await;
        }
        self.0.backend.drain().await;
    }

    fn decide_draft(
        &self,
        draft: Result<Draft, KeyError>,
        purpose: Purpose,
    ) -> LimiterFuture<Result<Decision, BackendError>> {
        if let Ok(draft) = &draft
            && let Some(part) = draft.usual_part()
            && let Some(decision) = self.decide_part_now(part, purpose)
        {
            return LimiterFuture(NowOrLater::now(Ok(decision)));
        }
        self.decide_any_draft(draft, purpose)
    }

    /// Decides a draft that [`decide_part_now`](Self::decide_part_now) does not decide. As a part of its caller, it would slow the others.
    #[inline(never)]
    fn decide_any_draft(
        &self,
        draft: Result<Draft, KeyError>,
        purpose: Purpose,
    ) -> LimiterFuture<Result<Decision, BackendError>> {
        // A client may cause any other error of a key.
        let is_mistake = matches!(&draft, Ok(_) | Err(KeyError::Misconfigured { .. }));
        LimiterFuture(match self.check_to_decide(draft) {
            Ok(Some(check)) => self.decide(check.with_purpose(purpose), false, |_, _, decided| decided),
            Ok(None) => NowOrLater::now(Ok(Decision::new(0, []))),
            Err(error) => {
                if is_mistake && purpose.is_counted() {
                    self.0.events.undecided(&[], &error);
                }
                NowOrLater::now(Err(error))
            }
        })
    }

    /// Returns the check of a draft, or `None` if the draft is exempt.
    fn check_to_decide(&self, draft: Result<Draft, KeyError>) -> Result<Option<Check>, BackendError> {
        draft.map_err(misconfigured).and_then(|draft| self.check_for_draft(draft).map_err(misconfigured))
    }

    fn empty_check(&self) -> Check {
        Check::from_valid_pairs(self.0.settings.namespace.clone(), Default::default())
    }

    /// Reserves a draft, or as many of these units of it as fit. `finish` makes the result from the reservation.
    fn reserve_units<T: 'static>(
        &self,
        draft: Result<Draft, KeyError>,
        units: Option<u32>,
        finish: impl FnOnce(Reservation) -> T + Send + 'static,
    ) -> NowOrLater<Result<T, Rejection>> {
        let (mut check, terms) = match self.prepare(draft.map(Draft::reserve)) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return NowOrLater::now(Ok(finish(self.uncharged(self.empty_check())))),
            Err(rejection) => return NowOrLater::now(Err(rejection)),
        };
        // Such a backend is asked for no reservation, whatever the outage rule is.
        if !self.can_settle() {
            let error = BackendError::unsupported();
            self.0.events.undecided(check.pairs(), &error);
            return NowOrLater::now(Err(Rejection::Unavailable(error)));
        }
        if let Some(units) = units {
            check.purpose = Purpose::TakeUpTo(check.max_units(units));
        }
        match self.admit_check(check, terms) {
            NowOrLater::Now(outcome) => NowOrLater::Now(outcome.map(|outcome| reserved(outcome).map(finish))),
            NowOrLater::Later(outcome) => {
                NowOrLater::Later(Box::pin(async move { reserved(outcome.await).map(finish) }))
            }
        }
    }

    /// Starts the check of a draft, and applies the outage rule. Lets a denied request wait for `at_most`. Returns `None` if the draft
    /// is exempt.
    #[inline]
    pub(crate) fn start(
        &self,
        draft: Result<Draft, KeyError>,
        at_most: Option<Duration>,
    ) -> Option<Admitting> {
        if at_most.is_none()
            && let Ok(draft) = &draft
            && !draft.reserves
            && let Some(part) = draft.usual_part()
            && let Some(decision) = self.decide_part_now(part, Purpose::Charge)
        {
            return Some(NowOrLater::now(if decision.is_admitted() {
                Ok(Admission::from_decision(decision, &self.0.settings.namespace))
            } else {
                Err(Rejection::Denied(decision))
            }));
        }
        self.start_any(draft, at_most)
    }

    /// Starts what [`decide_part_now`](Self::decide_part_now) does not decide. As a part of its caller, it would slow the others.
    #[inline(never)]
    fn start_any(&self, draft: Result<Draft, KeyError>, at_most: Option<Duration>) -> Option<Admitting> {
        match self.prepare(draft) {
            Ok(None) => None,
            Ok(Some((check, terms))) => Some(match at_most {
                None => self.admit_check(check, terms),
                Some(at_most) => NowOrLater::Later(Box::pin(wait::wait(self.clone(), check, terms, at_most))),
            }),
            Err(rejection) => Some(NowOrLater::now(Err(rejection))),
        }
    }

    /// Returns the check of a draft, and its terms. Returns `None` if the draft is exempt.
    fn prepare(&self, draft: Result<Draft, KeyError>) -> Result<Option<(Check, Terms)>, Rejection> {
        let draft = draft.map_err(|error| self.reject_key(error))?;
        let LimiterSettings { rule, reserve, .. } = self.0.settings;
        let (rule, reserve) = (draft.outage.unwrap_or(rule), draft.reserve_terms(reserve));
        let Some(mut check) = self.check_to_admit(draft)? else { return Ok(None) };
        if let Some(reserve) = reserve {
            check.purpose = Purpose::Reserve;
            if reserve.clamps {
                check.clamp();
            }
        }
        let rule = if check.is_shadow() { OutageRule::FailOpen } else { rule };
        Ok(Some((check, Terms { rule, reserve })))
    }

    /// Rejects a request without a key that can be read.
    fn reject_key(&self, error: KeyError) -> Rejection {
        if let KeyError::Misconfigured { .. } = error {
            self.0.events.misconfigured(&error);
        }
        Rejection::Key(error)
    }
}

fn reserved(outcome: Result<Admission, Rejection>) -> Result<Reservation, Rejection> {
    // An admitted reservation always has a handle.
    outcome?.reservation.ok_or_else(|| Rejection::Unavailable(BackendError::new(Reason::Other)))
}

fn exempt() -> Admitting {
    NowOrLater::now(Ok(Admission::new(Basis::Exempt, None)))
}

/// Returns the check of the gates of a check, or an error if it has none.
fn gates(check: &Check) -> Result<Check, BackendError> {
    let no_gate = || {
        let names: Vec<_> = check.pairs().iter().map(|pair| pair.policy.name()).collect();
        ConfigError::invalid_value("policies to block", format!("{names:?}"), "at least one gate")
    };
    check.of_policies(|properties| !properties.has_quota).ok_or_else(|| misconfigured(no_gate()))
}

/// Ends the leases of changed pairs and invalidates their known denials: now, and when the guards are dropped. After a block, which
/// returns no units, a known denial still holds if the store makes no decision. But its wait may be shorter than the block, so a block
/// invalidates those of all pairs. The gates come first: the reply to a check that is sent meanwhile must not enter the other denials alone.
fn forget(all: &Check, changed: &Check, blocks: bool) -> (RevokeGuard, Invalidation) {
    let others = all.pairs().iter().filter(|pair| blocks && pair.policy.properties().has_quota);
    let pairs = changed.pairs().iter().chain(others).map(|pair| (&pair.key, &pair.policy));
    (RevokeGuard::new(changed.clone()), Invalidation::begin(all.scope(), pairs, !blocks))
}

fn misconfigured(error: impl Error + Send + Sync + 'static) -> BackendError {
    BackendError::with_source(Reason::Misconfigured, error).not_sent("misconfigured")
}

#[cfg(test)]
mod tests {
    use std::{mem, sync::Arc};

    use super::*;
    use crate::{
        backend::Pair,
        check::{KnownDenials, PairKey},
        key::PartitionKey,
        lock::Lock,
        policy::Policy,
    };

    /// The names of the policies whose denials were invalidated.
    #[derive(Default)]
    struct InvalidatedNames(Lock<Vec<String>>);

    impl KnownDenials for InvalidatedNames {
        fn invalidate(&self, pair: &PairKey, _: bool) {
            self.0.lock().push(pair.policy().name().to_owned());
        }
    }

    #[test]
    fn block_invalidates_denials_of_gates_first() {
        let requests = Policy::new("requests", 5, Duration::from_secs(60)).unwrap();
        let pair = |policy| Pair::new(PartitionKey::new("user", "alice"), policy, 1);
        let all = Check::new([requests, Policy::gate("blocked").unwrap()].map(pair)).unwrap();
        let names = Arc::new(InvalidatedNames::default());
        all.scope().add_known_denials(Arc::<InvalidatedNames>::downgrade(&names));
        let changed = gates(&all).unwrap();
        for (blocks, expected) in [(true, &["blocked", "requests"][..]), (false, &["blocked"])] {
            let forgotten = forget(&all, &changed, blocks);
            assert_eq!(mem::take(&mut *names.0.lock()), expected);
            drop(forgotten);
            assert_eq!(mem::take(&mut *names.0.lock()), expected, "again when the change ends");
        }
    }
}
