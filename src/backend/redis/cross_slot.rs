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
//! | one unknown, none denied; otherwise, or if the error is of this check alone or an overload | unavailable | rolled back |
//! | any; the check was dropped | | rolled back |
//!
//! A slot that was asked and has not replied when the check ends is rolled back when it replies that it has charged. Rollbacks
//! run in the background and survive the check.
//!
//! A slot of shadow pairs only is left out of the second table: it never denies, and its failure has no effect. Its charge follows the
//! result: it stays if those of the other slots stay. A check does not wait for such a slot for longer than half of its time. If all
//! slots have shadow pairs only, the check is admitted if one of them replies.
//!
//! If the limiter knows that a pair was denied a moment ago, the slots are peeked first and charged only if none denies: first the
//! slot of that pair, and then the others, with the slots of shadow pairs only. If a cost is above its quota, they are only peeked. So a
//! client over its limit does not charge and roll back the other slots with every request, and does not starve those who share them.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    RedisBackend,
    patience::{Late, Patience},
    rollback::{Rollback, RollbackState},
    script::REFUND_PAIRS,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair, Purpose, Receipt, Refund},
    decision::{Decision, PartialSource, Status},
    guard::until,
    hold::Hold,
};

/// The timeout of the rollback of one slot. No request waits for it. After it, the script changes nothing.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long after the deadline of its check a late reply may come.
const LATE_REPLY: Duration = Duration::from_secs(1);

impl RedisBackend {
    /// Decides a check in all its slots; `slots` holds the indices of its pairs.
    pub(super) async fn check_in_slots(
        &self,
        check: &Check,
        slots: &[Vec<usize>],
    ) -> Result<Decision, BackendError> {
        let purpose = match check.purpose() {
            Purpose::Charge | Purpose::Reserve | Purpose::Lease if check.is_never_admitted() => Purpose::Peek,
            // A lease has one partition key, and so one slot.
            Purpose::Charge | Purpose::Reserve | Purpose::Lease => Purpose::Reserve,
            Purpose::Peek => Purpose::Peek,
            // An answer and a lease of the next bucket have one pair, and so one slot.
            Purpose::TakeUpTo(_) | Purpose::LeaseAhead | Purpose::LeaveAtMost { .. } => {
                return Err(BackendError::new(Reason::CrossSlot));
            }
            purpose @ (Purpose::Overage | Purpose::Debit) => {
                // An overage is charged in every slot that can be reached.
                let calls = slots.iter().map(async |pairs| {
                    self.check_in_slot(&check.part(pairs, purpose), Patience::Caller).await
                });
                let replies = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
                return Ok(decision(check, slots.iter().zip(&replies), true));
            }
        };
        let (shadows, enforced): (Vec<&Vec<usize>>, Vec<_>) =
            slots.iter().partition(|pairs| check.part(pairs, check.purpose()).is_shadow());
        let is_charge = purpose == Purpose::Reserve;
        let may_be_denied = check.hints.recently_denied.is_none_or(|denied| denied.contains(&true));
        if is_charge && may_be_denied && !enforced.is_empty() {
            // A shadow slot denies nothing.
            let mut peek = Transaction::start(self, check, enforced, Purpose::Peek);
            // A slot that does not reply must leave time for the charge, if the others admit.
            peek.replies(half_until(check.deadline())).await;
            if !peek.may_admit() {
                peek.replies(check.deadline()).await;
            }
            if peek.may_admit() {
                peek.charge_in_two_steps(check, &shadows).await;
            }
            return peek.end(check);
        }
        let mut transaction = Transaction::start(self, check, slots, purpose);
        transaction.replies(check.deadline()).await;
        transaction.end(check)
    }

    /// Refunds units in all slots at the same time. A slot that fails or hangs does not affect the others. Returns the latest instant.
    pub(super) async fn refund_in_slots(
        &self,
        refund: &Refund,
        slots: &[Vec<usize>],
    ) -> Result<u64, BackendError> {
        let calls = slots.iter().flat_map(|pairs| pairs.chunks(REFUND_PAIRS));
        let calls = calls.map(async |pairs| self.refund_in_slot(&refund.part(pairs)).await);
        let instants = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(instants.into_iter().max().unwrap_or_default())
    }

    /// Deletes keys in all slots at the same time. A slot that fails or hangs does not affect the others.
    pub(super) async fn reset_in_slots(
        &self,
        check: &Check,
        slots: &[Vec<usize>],
    ) -> Result<(), BackendError> {
        let calls =
            slots.iter().map(async |pairs| self.reset_in_slot(&check.part(pairs, check.purpose())).await);
        join_all(calls).await.into_iter().collect()
    }

    /// Rolls back a charge.
    fn roll_back(&self, check: Check, decision: &Decision) {
        // A charge of nothing but zeros has no refund.
        let Some(refund) = refund(&check, decision) else { return };
        let state = RollbackState { end: Instant::now() + ROLLBACK_TIMEOUT, is_charged: true };
        if let Some(rollback) = Rollback::start(&self.rollbacks, check, state) {
            tokio::spawn(self.clone().run_rollback(rollback, refund));
        }
    }

    /// Rolls back a charge if a late reply says that there is one. A reply that never comes is an unanswered check, and no lost
    /// rollback.
    fn roll_back_late(&self, check: Check, late: Late) {
        if !late.is_pending.load(Ordering::Relaxed) {
            // Nothing was sent.
            return;
        }
        let now = Instant::now();
        let end = check.deadline().map_or(now, |deadline| deadline.max(now)) + LATE_REPLY;
        let state = RollbackState { end, is_charged: false };
        let Some(rollback) = Rollback::start(&self.rollbacks, check, state) else { return };
        let backend = self.clone();
        tokio::spawn(async move {
            if let Ok(Ok(decision)) = timeout_at(end, late.reply).await
                && let Some(refund) = refund(&rollback.check, &decision)
            {
                rollback.rollbacks.in_progress.lock().charge(rollback.id, Instant::now() + ROLLBACK_TIMEOUT);
                backend.run_rollback(rollback, refund).await;
            }
        });
    }

    async fn run_rollback(self, mut rollback: Rollback, refund: Refund) {
        let end = Instant::now() + ROLLBACK_TIMEOUT;
        let refund = refund.with_deadline(end);
        let pairs: Vec<usize> = (0..refund.pairs().len()).collect();
        let parts: Vec<Refund> = pairs.chunks(REFUND_PAIRS).map(|pairs| refund.part(pairs)).collect();
        let refunds = parts.iter().map(async |part| {
            let refunded = timeout_at(end, self.refund_in_slot(part)).await;
            refunded.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout))).map(drop)
        });
        let outcomes = join_all(refunds).await;
        for (part, _) in parts.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            rollback.made(part);
        }
        let outcome: Result<Vec<()>, _> = outcomes.into_iter().collect();
        let state = rollback.rollbacks.in_progress.lock().remove(rollback.id);
        // A rollback that was written off is lost already.
        if let (Some(_), Err(error)) = (state, outcome) {
            rollback.rollbacks.lose(&error);
        }
    }
}

/// The state of a slot: the first table above.
enum SlotState {
    Asked(Late),
    /// In a peek: it admits.
    Charged(Decision),
    Denied(Decision),
    Unknown(BackendError),
}

/// The result of a check: the second table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrossSlotVerdict {
    Admitted,
    Denied,
    Unavailable,
}

impl CrossSlotVerdict {
    /// Returns the result of a check whose deadline has passed or whose slots have all replied.
    fn from_slots(slots: &[Slot<'_>]) -> Self {
        if slots.iter().all(|slot| slot.part.is_shadow()) {
            let has_replied = slots.iter().any(|slot| matches!(slot.state, SlotState::Charged(_)));
            return if has_replied { Self::Admitted } else { Self::Unavailable };
        }
        let has =
            |is: fn(&SlotState) -> bool| slots.iter().any(|slot| !slot.part.is_shadow() && is(&slot.state));
        if has(|state| matches!(state, SlotState::Denied(_))) {
            Self::Denied
        } else if has(|state| matches!(state, SlotState::Asked(_) | SlotState::Unknown(_))) {
            Self::Unavailable
        } else {
            Self::Admitted
        }
    }

    /// Returns whether the charges stay.
    fn keeps(self, fails_open: bool) -> bool {
        match self {
            Self::Admitted => true,
            Self::Denied => false,
            Self::Unavailable => fails_open,
        }
    }
}

struct Slot<'a> {
    /// The indices of its pairs.
    pairs: &'a [usize],
    part: Check,
    state: SlotState,
}

impl<'a> Slot<'a> {
    /// Starts to ask a slot.
    fn ask(backend: &RedisBackend, check: &Check, pairs: &'a [usize], purpose: Purpose) -> Self {
        let part = check.part(pairs, purpose);
        let (backend, asked) = (backend.clone(), part.clone());
        let is_pending = Arc::<AtomicBool>::default();
        let flag = is_pending.clone();
        let reply = Box::pin(async move {
            let is_peek = asked.purpose() == Purpose::Peek;
            let patience = if is_peek { Patience::Caller } else { Patience::Late(&flag) };
            backend.check_in_slot(&asked, patience).await
        });
        Self { pairs, part, state: SlotState::Asked(Late { reply, is_pending }) }
    }
}

/// A check in progress. If it is dropped before its end, its charges are rolled back.
struct Transaction<'a> {
    backend: &'a RedisBackend,
    slots: Vec<Slot<'a>>,
}

impl<'a> Transaction<'a> {
    fn start(
        backend: &'a RedisBackend,
        check: &Check,
        slots: impl IntoIterator<Item = &'a Vec<usize>>,
        purpose: Purpose,
    ) -> Self {
        let slots = slots.into_iter().map(|pairs| Slot::ask(backend, check, pairs, purpose));
        Self { backend, slots: slots.collect() }
    }

    /// Charges the slots after a peek: first those with a pair that was denied a moment ago, and then the others, with the shadow
    /// slots. So if the peek admits many checks at the same time, only those charge the other slots that have had room in the first.
    async fn charge_in_two_steps(&mut self, check: &Check, shadows: &[&'a Vec<usize>]) {
        for slot in &mut self.slots {
            if let SlotState::Asked(_) = slot.state {
                slot.state = SlotState::Unknown(BackendError::new(Reason::Timeout));
            }
        }
        let denied = check.hints.recently_denied.unwrap_or_default();
        let was_denied = |slot: &Slot<'_>| slot.pairs.iter().any(|pair| denied.get(*pair) == Some(&true));
        self.charge(check, was_denied).await;
        if CrossSlotVerdict::from_slots(&self.slots) != CrossSlotVerdict::Denied {
            let asked = shadows.iter().map(|pairs| Slot::ask(self.backend, check, pairs, Purpose::Reserve));
            self.slots.extend(asked);
            self.charge(check, |slot| slot.part.purpose() == Purpose::Peek).await;
        }
    }

    /// Charges some of the slots that were peeked at.
    async fn charge(&mut self, check: &Check, is_chosen: impl Fn(&Slot<'_>) -> bool) {
        for slot in self.slots.iter_mut().filter(|slot| is_chosen(slot)) {
            *slot = Slot::ask(self.backend, check, slot.pairs, Purpose::Reserve);
        }
        self.replies(check.deadline()).await;
    }

    /// Waits for the replies of all slots until an instant. For those of shadow slots, waits until half of the time has passed, if
    /// there are other slots.
    async fn replies(&mut self, end: Option<Instant>) {
        let shadows = self.slots.iter().filter(|slot| slot.part.is_shadow()).count();
        if (1..self.slots.len()).contains(&shadows) {
            self.replies_of(|_| true, half_until(end)).await;
            self.replies_of(|slot| !slot.part.is_shadow(), end).await;
        } else {
            self.replies_of(|_| true, end).await;
        }
    }

    async fn replies_of(&mut self, waits_for: fn(&Slot<'_>) -> bool, end: Option<Instant>) {
        let replies = poll_fn(|cx| self.poll_replies(cx, waits_for));
        // `None` means that the end has come.
        until(end, replies).await.unwrap_or_default()
    }

    /// Returns whether a slot has replied, and none that has replied denies.
    fn may_admit(&self) -> bool {
        CrossSlotVerdict::from_slots(&self.slots) != CrossSlotVerdict::Denied
            && self.slots.iter().any(|slot| matches!(slot.state, SlotState::Charged(_)))
    }

    /// Is ready when all slots have replied for which the check waits.
    fn poll_replies(&mut self, cx: &mut Context<'_>, waits_for: fn(&Slot<'_>) -> bool) -> Poll<()> {
        let mut is_complete = true;
        for slot in &mut self.slots {
            let waits = waits_for(slot);
            let state = &mut slot.state;
            let SlotState::Asked(reply) = state else { continue };
            match reply.reply.as_mut().poll(cx) {
                Poll::Pending if !waits => {}
                Poll::Pending => is_complete = false,
                Poll::Ready(Ok(decision)) if decision.is_admitted() => *state = SlotState::Charged(decision),
                Poll::Ready(Ok(decision)) => *state = SlotState::Denied(decision),
                Poll::Ready(Err(error)) => *state = SlotState::Unknown(error),
            }
        }
        if is_complete { Poll::Ready(()) } else { Poll::Pending }
    }

    fn end(mut self, check: &Check) -> Result<Decision, BackendError> {
        let verdict = CrossSlotVerdict::from_slots(&self.slots);
        let result = result(self.backend, verdict, check, &self.slots);
        // An error that is no outage rejects the check, also to fail open.
        let is_rejected = result.as_ref().is_err_and(|error| !error.reason().is_outage());
        if !is_rejected && verdict.keeps(check.hints.fails_open) {
            for slot in self.slots.drain(..) {
                // Dropping a slot that has not replied counts it as unanswered.
                let is_shadow = slot.part.is_shadow();
                if let (true, SlotState::Asked(late)) = (is_shadow, slot.state)
                    && let (Some(deadline), Ok(runtime)) = (check.deadline(), Handle::try_current())
                {
                    // The circuit breaker learns of a server that hangs.
                    runtime.spawn(until(deadline, late.reply));
                }
            }
        }
        result
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        for Slot { part, state, .. } in mem::take(&mut self.slots) {
            match state {
                _ if part.purpose() == Purpose::Peek => {}
                SlotState::Asked(reply) => self.backend.roll_back_late(part, reply),
                SlotState::Charged(decision) => self.backend.roll_back(part, &decision),
                SlotState::Denied(_) | SlotState::Unknown(_) => {}
            }
        }
    }
}

fn result(
    backend: &RedisBackend,
    verdict: CrossSlotVerdict,
    check: &Check,
    slots: &[Slot<'_>],
) -> Result<Decision, BackendError> {
    if verdict == CrossSlotVerdict::Unavailable {
        let are_shadows = slots.iter().all(|slot| slot.part.is_shadow());
        let needed = slots.iter().filter(|slot| are_shadows || !slot.part.is_shadow());
        let errors = needed.filter_map(|slot| match &slot.state {
            SlotState::Unknown(error) => Some(error.clone()),
            SlotState::Asked(_) => Some(backend.timeout(&slot.part)),
            SlotState::Charged(_) | SlotState::Denied(_) => None,
        });
        // An overload comes first, and then an error of this check alone: no outage rule, or not every one, may admit the check.
        let mut errors: Vec<BackendError> = errors.collect();
        errors.sort_by_key(|error| match error.reason() {
            Reason::Overloaded => 0,
            reason => 1 + u8::from(!reason.is_of_one_check()),
        });
        return Err(errors.into_iter().next().unwrap_or_else(|| BackendError::new(Reason::Other)));
    }
    let replies = slots.iter().filter_map(|slot| match &slot.state {
        SlotState::Charged(decision) | SlotState::Denied(decision) => Some((slot.pairs, decision)),
        SlotState::Asked(_) | SlotState::Unknown(_) => None,
    });
    Ok(decision(check, replies, verdict == CrossSlotVerdict::Admitted))
}

/// Only a slot that has charged has receipts.
fn refund(check: &Check, decision: &Decision) -> Option<Refund> {
    Refund::new(check, decision.receipts(), &vec![0; check.pairs().len()])
}

/// Returns the instant in the middle between now and an instant.
fn half_until(end: Option<Instant>) -> Option<Instant> {
    let now = Instant::now();
    end.map(|end| now + end.saturating_duration_since(now) / 2)
}

/// Returns the decision of a check from the decisions of its slots. Pairs of a slot without a decision have no status.
fn decision<'a, P: AsRef<[usize]>>(
    check: &Check,
    replies: impl Iterator<Item = (P, &'a Decision)>,
    is_charged: bool,
) -> Decision {
    let mut pairs: BTreeMap<usize, (Status, Receipt)> = BTreeMap::new();
    let (mut at_micros, mut holds) = (0, Vec::new());
    for (indices, decision) in replies {
        holds.extend(decision.hold().filter(|_| is_charged).cloned());
        at_micros = at_micros.max(decision.at_micros());
        for (n, status) in decision.indexed_statuses() {
            let Some(index) = indices.as_ref().get(n) else { continue };
            let Some(pair) = check.pairs().get(*index) else { continue };
            // The status of a slot that admits includes the charge, which is rolled back. A shadow pair that denies has none.
            let status = if decision.is_admitted() && !is_charged && status.retry_after().is_zero() {
                without_charge(status, pair)
            } else {
                status.clone()
            };
            let receipt = decision.receipts().get(n).copied().unwrap_or(Receipt::NO_CHARGE);
            pairs.insert(*index, (status, receipt));
        }
    }
    // A shadow pair without a status has no receipt that is known.
    let receipt = |index| pairs.get(&index).map_or(Receipt::NO_CHARGE, |(_, receipt)| *receipt);
    let receipts: Vec<Receipt> = match check.purpose() {
        Purpose::Reserve | Purpose::Debit if is_charged => (0..check.pairs().len()).map(receipt).collect(),
        _ => Vec::new(),
    };
    let statuses = (0..check.pairs().len()).map(|index| pairs.remove(&index).map(|(status, _)| status));
    let decision = Decision::partial(PartialSource::Slots, at_micros, statuses, receipts, check);
    if holds.is_empty() {
        return decision;
    }
    decision.with_hold(Hold::of_all(holds))
}

/// Returns the status of a pair without the charge that it includes. Its `reset_after` is then an upper bound.
fn without_charge(status: &Status, pair: &Pair) -> Status {
    if pair.cost == 0 {
        return status.clone();
    }
    let remaining = status.remaining().saturating_add(pair.cost);
    let (next, reset) = if remaining == pair.policy.quota_units() {
        let next = pair.policy.next_of_unused().map_or(status.next_after(), Duration::from_micros);
        (next, Duration::ZERO)
    } else {
        (status.next_after(), status.reset_after())
    };
    Status::new(pair, remaining, status.retry_after(), next, reset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::PartitionKey, policy::Policy};

    /// The second table above, for all states of three slots, of which any may be shadow slots.
    #[test]
    fn verdict_follows_from_the_states_of_the_slots() {
        let policy = Policy::new("p", 5, Duration::from_secs(1)).unwrap();
        let pair = Pair::new(PartitionKey::new("user", "a"), policy, 1);
        let check = Check::new([pair.clone()]).unwrap();
        let decided = |wait| Decision::new(0, [Status::new(&pair, 0, wait, Duration::ZERO, Duration::ZERO)]);
        let state = |of: usize| match of {
            0 => SlotState::Charged(decided(crate::Wait::ZERO)),
            1 => SlotState::Denied(decided(crate::Wait::Never)),
            2 => SlotState::Unknown(BackendError::new(Reason::Connection)),
            _ => {
                SlotState::Asked(Late { reply: Box::pin(std::future::pending()), is_pending: Arc::default() })
            }
        };
        let shadow = check.with_pairs([pair.clone().shadow()].into());
        let all = (0..64).flat_map(|n| (0..8).map(move |shadows| ([n % 4, n / 4 % 4, n / 16], shadows)));
        for (states, shadows) in all {
            let is_shadow = |slot: usize| shadows >> slot & 1 == 1;
            // A shadow slot never denies.
            if (0..3).any(|slot| is_shadow(slot) && states[slot] == 1) {
                continue;
            }
            let part = |slot| if is_shadow(slot) { shadow.clone() } else { check.clone() };
            let slots =
                [0, 1, 2].map(|slot| Slot { pairs: &[], part: part(slot), state: state(states[slot]) });
            let verdict = CrossSlotVerdict::from_slots(&slots);
            let enforced: Vec<usize> =
                (0..3).filter(|slot| !is_shadow(*slot)).map(|slot| states[slot]).collect();
            let expected = match &enforced[..] {
                [] if states.contains(&0) => (CrossSlotVerdict::Admitted, true, true),
                [first, ..] if *first == 0 && enforced.iter().all(|state| *state == 0) => {
                    (CrossSlotVerdict::Admitted, true, true)
                }
                _ if enforced.contains(&1) => (CrossSlotVerdict::Denied, false, false),
                _ => (CrossSlotVerdict::Unavailable, true, false),
            };
            let decided = (verdict, verdict.keeps(true), verdict.keeps(false));
            assert_eq!(decided, expected, "{states:?}, shadows {shadows:03b}");
        }
    }
}
