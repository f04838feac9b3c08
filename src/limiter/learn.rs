//! A limiter that learns from the answers of an API.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::runtime::Handle;

use super::{future::LimiterFuture, inner::Limiter, misconfigured, outcome::Admission};
use crate::{
    check::{Check, Pair, Purpose},
    decision::{Decision, Status},
    error::{BackendError, ConfigError, Reason},
    learn::{Learned, Stated, StatedQuota},
    now_or_later::NowOrLater,
    settle::Reservation,
};

impl Limiter {
    /// Obeys the answer of an API to an admitted request. For the fields of HTTP, see [`Stated::from_http`].
    ///
    /// - **A denial** blocks the [gates](crate::Policy::gate) of the request, as [`block`](Self::block) does, for all processes: for the
    ///   stated wait, or for a random backoff.
    /// - **A remaining quota** that is smaller than that of the decision raises the usage in the store, so that at most this many units
    ///   remain. A newer answer decides: an answer changes nothing if the store knows one to a request that it has admitted at the same
    ///   time or later.
    ///
    /// **Settle first**, if the admission has a [reservation](Admission::reservation): an answer states what remains after the amount used,
    /// and not after the estimate. Learning waits for a settlement that has begun. If a charge is settled later, a refund returns units that the
    /// API does not have, and an overage is charged twice. A layer settles first.
    ///
    /// [The guide](crate::guide::waiting#obey-what-an-api-answers) states which policy a quota belongs to, and which answers change
    /// nothing. [`LimiterBuilder::learn`](crate::LimiterBuilder::learn) has the switches. In place of this method, a layer calls
    /// [`By::learn_by`](crate::protocol::By::learn_by).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{
    ///     Limiter, MemoryBackend, PartitionKey, Policy,
    ///     learn::{Learning, Stated, StatedQuota},
    /// };
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder(MemoryBackend::new())
    ///     .policy(Policy::new("calls", 100, Duration::from_secs(60))?)
    ///     .policy(Policy::gate("api")?)
    ///     .learn(Learning::default())
    ///     .build()?;
    /// let admission = limiter.admit(PartitionKey::new("api", "search")).await?;
    /// // Another program uses the same account.
    /// let learned = limiter.learn(&admission, &Stated::new([StatedQuota::new(69)])).await?;
    /// assert_eq!(learned.charged[0].1, 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`BackendError`] if the store may not have learned all of it. It is
    /// [`Reason::Misconfigured`](crate::backend::Reason::Misconfigured) if the limiter does not learn, if the API denies a request
    /// without a gate, or if the admission is of another limiter: one that does not learn, or that has another store or namespace.
    pub fn learn(
        &self,
        admission: &Admission,
        stated: &Stated,
    ) -> LimiterFuture<Result<Learned, BackendError>> {
        let now = |result| LimiterFuture(NowOrLater::now(result));
        let Some(learner) = &self.0.learner else {
            let error =
                ConfigError::invalid_value("learning", "off", "switched on by `LimiterBuilder::learn`");
            return now(Err(misconfigured(error)));
        };
        // An admission that the store has not made states nothing about it.
        let Some(decision) = admission.decision() else { return now(Ok(Learned::default())) };
        let is_own = |check: &&Arc<Check>| check.scope().is_in_same_store(&self.0.settings.namespace);
        let Some(check) = admission.learning.as_ref().filter(is_own) else {
            let valid = "by this limiter, or by one that learns and has the same store and namespace";
            let error = ConfigError::invalid_value("admission", "by another limiter", valid);
            return now(Err(misconfigured(error)));
        };
        let blocked_for = learner.wait(stated, check, decision.at_micros());
        let backs_off = stated.wait.is_none_or(|wait| wait.is_zero());
        let (mut learned, mut smaller) = (Learned { blocked_for, ..Learned::default() }, Vec::new());
        let reservation = admission.reservation();
        if learner.learning.obeys_quotas {
            (smaller, learned.unmatched) = smaller_quotas(check, decision, stated, reservation.is_some());
        }
        if blocked_for.is_none() && smaller.is_empty() {
            return now(Ok(learned));
        }
        let (limiter, check) = (self.clone(), check.clone());
        let settling = reservation.and_then(Reservation::settling).filter(|_| !smaller.is_empty());
        LimiterFuture(NowOrLater::Later(Box::pin(async move {
            let mut error = None;
            if let Some(wait) = blocked_for {
                match limiter.block_gates(Ok(Some((*check).clone())), wait, |at_micros| at_micros).await {
                    Ok(at_micros) if backs_off => {
                        limiter.0.learner.iter().for_each(|learner| learner.blocked(&check, at_micros, wait));
                    }
                    Ok(_) => {}
                    Err(failed) => error = Some(failed),
                }
            }
            // Otherwise, an overage would count again what the answer has counted, and a refund would return units that the API does not have.
            if let Some(settling) = settling {
                settling.ended().await;
            }
            limiter.charge_differences(smaller, learned, error).await
        })))
    }

    /// Charges what the API has counted and the store has not, unless an outage has ended the learning.
    async fn charge_differences(
        self,
        smaller: Vec<Check>,
        mut learned: Learned,
        mut error: Option<BackendError>,
    ) -> Result<Learned, BackendError> {
        // The store learns each part of the answer that it can. But in an outage, each further check would take a deadline.
        let mut is_outage = error.as_ref().is_some_and(|error| error.reason().is_outage());
        for check in smaller {
            if is_outage {
                break;
            }
            match self.decide(check, false, |_, _, decided| decided).await {
                Ok(decision) => learned.charged.extend(
                    decision.statuses().iter().map(|status| (status.policy().clone(), status.cost())),
                ),
                Err(failed) => {
                    is_outage = failed.reason().is_outage();
                    error = error.or(Some(failed));
                }
            }
        }
        error.map_or(Ok(learned), Err)
    }

    /// Learns from an answer without a delay of the response. Warns if not all of it was learned.
    pub(crate) fn learn_in_background(&self, admission: Admission, stated: &Stated) {
        let (limiter, learning) = (self.clone(), self.learn(&admission, stated));
        // If nothing else settles its reservation, this may refund it.
        drop(admission);
        let task = self.0.learner.as_ref().map(|learner| learner.tasks.subscribe());
        let mut learning = Box::pin(async move {
            let error = match learning.await {
                Ok(learned) => learned.unmatched.first().map(|quota| {
                    let valid = "that of exactly one policy, by its name or by its limit and window";
                    misconfigured(ConfigError::invalid_value("quota of an API", describe(quota), valid))
                }),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                limiter.0.events.not_learned(&error);
            }
            drop(task);
        });
        // A backend that answers at once has learned now.
        let is_done = learning.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if is_done {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(learning);
        } else {
            let why = "learning that waits needs a tokio runtime";
            self.0.events.not_learned(&BackendError::with_source(Reason::Other, why));
        }
    }
}

/// Returns a check for each pair of which the API states a smaller remaining quota than the decision, and the quotas that belong to no
/// pair. A settlement may have returned the whole charge of a reservation since the decision.
fn smaller_quotas(
    check: &Check,
    decision: &Decision,
    stated: &Stated,
    is_reserved: bool,
) -> (Vec<Check>, Vec<StatedQuota>) {
    let index_in = |quota: &&StatedQuota| quota.index_in(check.pairs());
    let unmatched = stated.quotas.iter().filter(|quota| index_in(quota).is_none()).cloned().collect();
    let smaller = decision.indexed_statuses().filter_map(|(i, status)| {
        let of_pair =
            stated.quotas.iter().filter(|quota| index_in(quota) == Some(i) && is_of_period(quota, status));
        let quota = of_pair.min_by_key(|quota| quota.remaining)?;
        // The API knows nothing of a headroom.
        let remaining = quota.remaining.saturating_sub(status.policy().reserve().into());
        let returned = if is_reserved { status.cost() } else { 0 };
        let known = status.remaining().saturating_add(returned);
        let remaining = u32::try_from(remaining).ok().filter(|units| *units < known)?;
        let holds_micros =
            quota.reset.map_or(u64::MAX, |reset| reset.as_micros().min(u64::MAX.into()) as u64);
        let pair = Pair { cost: remaining, is_shadow: false, ..check.pairs().get(i)?.clone() };
        let purpose = Purpose::LeaveAtMost { at_micros: decision.at_micros(), holds_micros };
        Some(check.with_pairs([pair].into()).with_purpose(purpose))
    });
    (smaller.collect(), unmatched)
}

/// Returns whether an answer describes the period of a decision. All units of some types return at the end of a window. If those of the
/// API return long before, its clock is behind, and the answer describes its period before.
fn is_of_period(quota: &StatedQuota, status: &Status) -> bool {
    !status.policy().properties().returns_at_end
        || quota.reset.is_none_or(|reset| reset >= status.next_after() / 2)
}

/// Returns what a quota states of itself: `"requests" of 100 in 60s`.
fn describe(StatedQuota { name, limit, window, .. }: &StatedQuota) -> String {
    let name = name.as_ref().map(|name| format!("{name:?}"));
    let limit = limit.map(|limit| format!("of {limit}"));
    let window = window.map(|window| format!("in {window:?}"));
    let stated: Vec<String> = [name, limit, window].into_iter().flatten().collect();
    if stated.is_empty() { "without a name, a limit and a window".to_owned() } else { stated.join(" ") }
}
