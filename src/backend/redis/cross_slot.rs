//! A check over several slots of a cluster: one call and one clock per slot, all at the same time.
//!
//! A single server decides a check in one call, with any keys. A cluster rejects a call whose keys are in several slots with
//! `CROSSSLOT`, before it runs. Such a check is split by slot. Each slot has a state:
//!
//! | state | meaning |
//! | --- | --- |
//! | asked | no reply yet |
//! | charged | it admits, and has charged its pairs |
//! | denied | it denies, and has charged nothing |
//! | unknown | it has failed, or has not replied by the deadline |
//!
//! The states of all slots give the result of the check, and what happens to the slots that have charged:
//!
//! | states | result | charges |
//! | --- | --- | --- |
//! | all charged | admitted | stay |
//! | one denied, others in any state | denied | rolled back |
//! | one unknown, none denied; to fail open | unavailable | stay, so that a healthy limit still fills |
//! | one unknown, none denied; otherwise, or if the error is of this check alone | unavailable | rolled back |
//! | any; the check was dropped | | rolled back |
//!
//! A slot that was asked and has not replied when the check ends is rolled back when it replies that it has charged. Rollbacks
//! run in the background and survive the check.
//!
//! If the limiter knows that a pair was denied a moment ago, the slots are peeked first and charged only if none denies. So a
//! client over its limit does not charge and roll back the other slots with every request, and does not starve those who share
//! them.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    RedisBackend,
    execute::Patience,
    keys::KeyNames,
    rollback::{Late, Rollback},
    slot,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair, Purpose, Receipt, Refund},
    decision::{Decision, Status},
    key::PartitionKey,
    outage::until,
};

/// Groups the indices of partition keys by slot, in the order of the first key of each slot.
pub(super) fn group_by_slot<'a>(
    names: &KeyNames,
    keys: impl Iterator<Item = &'a PartitionKey>,
) -> Vec<Vec<usize>> {
    let mut slots: Vec<(u16, Vec<usize>)> = Vec::new();
    for (i, key) in keys.enumerate() {
        let slot = slot::of_tag(&names.tag(key));
        match slots.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, pairs)) => pairs.push(i),
            None => slots.push((slot, vec![i])),
        }
    }
    slots.into_iter().map(|(_, pairs)| pairs).collect()
}

/// Decides a check in all its slots; `slots` holds the indices of its pairs.
pub(super) async fn check(
    backend: &RedisBackend,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<Decision, BackendError> {
    match check.purpose() {
        Purpose::Charge | Purpose::Reserve => {}
        Purpose::Peek => {
            let mut peek = Transaction::start(backend, check, slots, Purpose::Peek);
            peek.replies(check.deadline()).await;
            return peek.end(check);
        }
        Purpose::Overage => {
            // An overage is charged in every slot that can be reached.
            let calls = slots.iter().map(|pairs| {
                let part = check.part(pairs, Purpose::Overage);
                async move { backend.check_in_slot(&part, Patience::Caller).await }
            });
            let replies = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            return Ok(decision(check, slots.iter().zip(&replies), true));
        }
    }
    if check.across_slots().peeks_first {
        let mut peek = Transaction::start(backend, check, slots, Purpose::Peek);
        // A slot that does not reply must leave time for the charge, if the others admit.
        let now = Instant::now();
        let half = check.deadline().map(|deadline| now + deadline.saturating_duration_since(now) / 2);
        peek.replies(half).await;
        if !peek.may_admit() {
            peek.replies(check.deadline()).await;
        }
        if !peek.may_admit() {
            return peek.end(check);
        }
    }
    let mut transaction = Transaction::start(backend, check, slots, Purpose::Reserve);
    transaction.replies(check.deadline()).await;
    transaction.end(check)
}

/// Refunds units in all slots at the same time. A slot that fails or hangs does not affect the others. Returns the latest instant.
pub(super) async fn refund(
    backend: &RedisBackend,
    refund: &Refund,
    slots: &[Vec<usize>],
) -> Result<u64, BackendError> {
    let calls = slots.iter().map(|pairs| {
        let part = refund.part(pairs);
        async move { backend.refund_in_slot(&part).await }
    });
    let instants = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(instants.into_iter().max().unwrap_or_default())
}

/// Deletes keys in all slots at the same time. A slot that fails or hangs does not affect the others.
pub(super) async fn reset(
    backend: &RedisBackend,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<(), BackendError> {
    let calls = slots.iter().map(|pairs| {
        let part = check.part(pairs, check.purpose());
        async move { backend.reset_in_slot(&part).await }
    });
    join_all(calls).await.into_iter().collect()
}

/// The state of a slot: the first table above.
enum State {
    Asked(Late),
    /// In a peek: it admits.
    Charged(Decision),
    Denied(Decision),
    Unknown(BackendError),
}

/// The result of a check: the second table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Admitted,
    Denied,
    Unavailable,
}

impl Verdict {
    /// Returns the result of a check whose deadline has passed or whose slots have all replied.
    fn of(slots: &[Slot<'_>]) -> Self {
        let has = |is: fn(&State) -> bool| slots.iter().any(|slot| is(&slot.state));
        if has(|state| matches!(state, State::Denied(_))) {
            Self::Denied
        } else if has(|state| matches!(state, State::Asked(_) | State::Unknown(_))) {
            Self::Unavailable
        } else {
            Self::Admitted
        }
    }

    /// Returns whether the charges stay. `keeps_charges` is set to fail open.
    fn keeps(self, keeps_charges: bool) -> bool {
        match self {
            Self::Admitted => true,
            Self::Denied => false,
            Self::Unavailable => keeps_charges,
        }
    }
}

struct Slot<'a> {
    /// The indices of its pairs.
    pairs: &'a [usize],
    part: Check,
    state: State,
}

/// A check in progress. If it is dropped before its end, its charges are rolled back.
struct Transaction<'a> {
    backend: &'a RedisBackend,
    slots: Vec<Slot<'a>>,
}

impl<'a> Transaction<'a> {
    fn start(backend: &'a RedisBackend, check: &Check, slots: &'a [Vec<usize>], purpose: Purpose) -> Self {
        let slots = slots.iter().map(|pairs| {
            let part = check.part(pairs, purpose);
            let (backend, asked) = (backend.clone(), part.clone());
            let is_pending = Arc::<AtomicBool>::default();
            let flag = is_pending.clone();
            let reply = Box::pin(async move {
                let is_peek = asked.purpose() == Purpose::Peek;
                let patience = if is_peek { Patience::Caller } else { Patience::Late(&flag) };
                backend.check_in_slot(&asked, patience).await
            });
            Slot { pairs, part, state: State::Asked(Late { reply, is_pending }) }
        });
        Self { backend, slots: slots.collect() }
    }

    /// Waits for the replies of all slots until an instant.
    async fn replies(&mut self, end: Option<Instant>) {
        let replies = poll_fn(|cx| self.poll_replies(cx));
        match end {
            // `None` means that the end has come.
            Some(end) => drop(until(end, replies).await),
            None => replies.await,
        }
    }

    /// Returns whether a slot has replied, and none that has replied denies.
    fn may_admit(&self) -> bool {
        Verdict::of(&self.slots) != Verdict::Denied
            && self.slots.iter().any(|slot| matches!(slot.state, State::Charged(_)))
    }

    /// Is ready when all slots have replied.
    fn poll_replies(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut is_complete = true;
        for Slot { state, .. } in &mut self.slots {
            let State::Asked(reply) = state else { continue };
            match reply.reply.as_mut().poll(cx) {
                Poll::Pending => is_complete = false,
                Poll::Ready(Ok(decision)) if decision.is_admitted() => *state = State::Charged(decision),
                Poll::Ready(Ok(decision)) => *state = State::Denied(decision),
                Poll::Ready(Err(error)) => *state = State::Unknown(error),
            }
        }
        if is_complete { Poll::Ready(()) } else { Poll::Pending }
    }

    fn end(mut self, check: &Check) -> Result<Decision, BackendError> {
        let verdict = Verdict::of(&self.slots);
        let result = result(verdict, check, &self.slots);
        // An error of this check alone rejects it, also to fail open.
        let is_rejected = result.as_ref().is_err_and(|error| error.reason().is_of_one_check());
        if !is_rejected && verdict.keeps(check.across_slots().keeps_charges) {
            // Dropping a slot that has not replied counts it as unanswered.
            self.slots.clear();
        }
        result
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        for Slot { part, state, .. } in mem::take(&mut self.slots) {
            match state {
                _ if part.purpose() == Purpose::Peek => {}
                State::Asked(reply) => Rollback::of_late(self.backend, part, reply),
                State::Charged(decision) => Rollback::of_charge(self.backend, part, &decision),
                State::Denied(_) | State::Unknown(_) => {}
            }
        }
    }
}

fn result(verdict: Verdict, check: &Check, slots: &[Slot<'_>]) -> Result<Decision, BackendError> {
    if verdict == Verdict::Unavailable {
        let errors = slots.iter().filter_map(|slot| match &slot.state {
            State::Unknown(error) => Some(error.clone()),
            State::Asked(_) => Some(BackendError::new(Reason::Timeout)),
            State::Charged(_) | State::Denied(_) => None,
        });
        // An error of this check alone comes first: no outage rule may admit the check.
        let mut errors: Vec<BackendError> = errors.collect();
        errors.sort_by_key(|error| !error.reason().is_of_one_check());
        return Err(errors.into_iter().next().unwrap_or_else(|| BackendError::new(Reason::Other)));
    }
    let replies = slots.iter().filter_map(|slot| match &slot.state {
        State::Charged(decision) | State::Denied(decision) => Some((slot.pairs, decision)),
        State::Asked(_) | State::Unknown(_) => None,
    });
    Ok(decision(check, replies, verdict == Verdict::Admitted))
}

/// Returns the decision of a check from the decisions of its slots. Pairs of a slot without a decision have no status.
fn decision<'a, P: AsRef<[usize]>>(
    check: &Check,
    replies: impl Iterator<Item = (P, &'a Decision)>,
    is_charged: bool,
) -> Decision {
    let mut pairs: Vec<Option<(Status, Option<Receipt>)>> = vec![None; check.pairs().len()];
    let mut at_micros = 0;
    for (indices, decision) in replies {
        at_micros = at_micros.max(decision.at_micros());
        for (n, (index, status)) in indices.as_ref().iter().zip(decision.statuses()).enumerate() {
            let (Some(place), Some(pair)) = (pairs.get_mut(*index), check.pairs().get(*index)) else {
                continue;
            };
            // The status of a slot that admits includes the charge, which is rolled back.
            let status = if decision.is_admitted() && !is_charged {
                without_charge(status, pair)
            } else {
                status.clone()
            };
            *place = Some((status, decision.receipts().get(n).copied()));
        }
    }
    let known: Vec<usize> = (0..pairs.len()).filter(|i| pairs[*i].is_some()).collect();
    let (statuses, receipts): (Vec<_>, Vec<_>) = pairs.into_iter().flatten().unzip();
    let is_admitted = statuses.iter().all(|status| status.retry_after().is_zero());
    let receipts: Vec<Receipt> = match check.purpose() {
        Purpose::Reserve if is_admitted => receipts.into_iter().flatten().collect(),
        _ => Vec::new(),
    };
    Decision::divided(at_micros, statuses, receipts, check, known)
}

/// Returns the status of a pair without the charge that it includes. Its `reset_after` is then an upper bound.
fn without_charge(status: &Status, pair: &Pair) -> Status {
    if pair.cost == 0 {
        return status.clone();
    }
    let remaining = status.remaining().saturating_add(pair.cost);
    let (next, reset) = if remaining == pair.policy.quota() {
        (pair.policy.window(), Duration::ZERO)
    } else {
        (status.next_after(), status.reset_after())
    };
    Status::new(pair, remaining, status.retry_after(), next, reset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn keys_are_grouped_in_the_order_of_their_slots() {
        let keys = ["a", "b", "a"].map(|value| PartitionKey::new("user", value));
        assert_eq!(group_by_slot(&KeyNames::default(), keys.iter()), [vec![0, 2], vec![1]]);
    }

    /// The second table above, for all states of three slots.
    #[test]
    fn verdict_follows_from_the_states_of_the_slots() {
        let policy = Policy::new("p", 5, Duration::from_secs(1)).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
        let check = Check::new([pair.clone()]).unwrap();
        let decided = |wait| Decision::new(0, [Status::new(&pair, 0, wait, Duration::ZERO, Duration::ZERO)]);
        let state = |of: usize| match of {
            0 => State::Charged(decided(crate::Wait::ZERO)),
            1 => State::Denied(decided(crate::Wait::Never)),
            2 => State::Unknown(BackendError::new(Reason::Connection)),
            _ => State::Asked(Late { reply: Box::pin(std::future::pending()), is_pending: Arc::default() }),
        };
        for states in (0..64).map(|n| [n % 4, n / 4 % 4, n / 16]) {
            let slots = states.map(|of| Slot { pairs: &[], part: check.clone(), state: state(of) });
            let verdict = Verdict::of(&slots);
            let expected = match states {
                [0, 0, 0] => (Verdict::Admitted, true, true),
                _ if states.contains(&1) => (Verdict::Denied, false, false),
                _ => (Verdict::Unavailable, true, false),
            };
            assert_eq!((verdict, verdict.keeps(true), verdict.keeps(false)), expected, "{states:?}");
        }
    }
}
