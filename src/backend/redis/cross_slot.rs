//! A check over several slots of a cluster: one call and one clock per slot.
//!
//! A single server decides a check in one call, with any keys. A cluster rejects a call whose keys are in several slots with
//! `CROSSSLOT`, before it runs. From then on a check is split by slot. The slots are called in order, by these rules:
//!
//! | check | slots before | call | if it denies | if it fails |
//! | --- | --- | --- | --- | --- |
//! | charge, reserve | all admit | reserve | roll back the slots before, peek at the slots after | roll back, return the error |
//! | charge, reserve | one denies | peek | | return the error |
//! | peek | any | peek | | return the error |
//! | overage | any | overage | never | charge the slots after, then return the error |
//!
//! So a check never admits too much. Between a charge and its rollback, another client may be denied because of it.

use std::{mem, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use super::{RedisBackend, keys::KeyNames, slot};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair, Purpose, Receipt, Refund},
    decision::{Decision, Status},
    key::PartitionKey,
};

/// The timeout of the rollback of one slot. No request waits for it.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Decides a check slot by slot; `slots` holds the indices of its pairs.
pub(super) async fn check(
    backend: &RedisBackend,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<Decision, BackendError> {
    let mut transaction = Transaction { backend, state: State::Admitted, replies: Vec::new() };
    let mut overage_error = None;
    for pairs in slots {
        let part = check.part(pairs, transaction.state.purpose(check.purpose()));
        match backend.check_in_slot(&part).await {
            Ok(decision) => transaction.add(Reply { pairs, part, decision }),
            Err(error) if part.purpose() == Purpose::Overage => overage_error = Some(error),
            Err(error) => return Err(error),
        }
    }
    match overage_error {
        Some(error) => Err(error),
        None => Ok(transaction.finish(check)),
    }
}

/// Refunds units slot by slot. An error in one slot does not stop the others. Returns the latest instant.
pub(super) async fn refund(
    backend: &RedisBackend,
    refund: &Refund,
    slots: &[Vec<usize>],
) -> Result<u64, BackendError> {
    let mut outcome = Ok(0);
    for pairs in slots {
        let refunded = backend.refund_in_slot(&refund.part(pairs)).await;
        outcome = outcome.and_then(|latest: u64| Ok(latest.max(refunded?)));
    }
    outcome
}

/// Deletes keys slot by slot. An error in one slot does not stop the others.
pub(super) async fn reset(
    backend: &RedisBackend,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<(), BackendError> {
    let mut outcome = Ok(());
    for pairs in slots {
        outcome = outcome.and(backend.reset_in_slot(&check.part(pairs, check.purpose())).await);
    }
    outcome
}

/// Whether the slots so far have admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// All have.
    Admitted,
    /// One has not.
    Denied,
}

impl State {
    /// Returns the purpose of the next call: the table above.
    fn purpose(self, check: Purpose) -> Purpose {
        match (check, self) {
            (Purpose::Charge | Purpose::Reserve, Self::Admitted) => Purpose::Reserve,
            (Purpose::Charge | Purpose::Reserve, Self::Denied) | (Purpose::Peek, _) => Purpose::Peek,
            (Purpose::Overage, _) => Purpose::Overage,
        }
    }
}

/// A check in progress. Unless it ends in the state `Admitted`, dropping it rolls back its charges, in a task of its own: the
/// check may be dropped at any point.
struct Transaction<'a> {
    backend: &'a RedisBackend,
    state: State,
    replies: Vec<Reply<'a>>,
}

/// The decision of one slot.
struct Reply<'a> {
    /// The indices of its pairs.
    pairs: &'a [usize],
    part: Check,
    decision: Decision,
}

impl<'a> Transaction<'a> {
    fn add(&mut self, reply: Reply<'a>) {
        if !reply.decision.is_admitted() {
            self.state = State::Denied;
        }
        self.replies.push(reply);
    }

    fn finish(mut self, check: &Check) -> Decision {
        let is_admitted = self.state == State::Admitted;
        let mut pairs: Vec<Option<(Status, Option<Receipt>)>> = vec![None; check.pairs().len()];
        for Reply { pairs: indices, decision, .. } in &self.replies {
            for (n, (index, status)) in indices.iter().zip(decision.statuses()).enumerate() {
                // The status of a slot that admits includes the charge, which is rolled back or was never made.
                let status = if decision.is_admitted() && !is_admitted {
                    without_charge(status, &check.pairs()[*index])
                } else {
                    status.clone()
                };
                pairs[*index] = Some((status, decision.receipts().get(n).copied()));
            }
        }
        let at_micros = self.replies.iter().map(|reply| reply.decision.at_micros()).max().unwrap_or(0);
        if is_admitted {
            // The charges stay.
            self.replies.clear();
        }
        let (statuses, receipts): (Vec<_>, Vec<_>) = pairs.into_iter().flatten().unzip();
        let receipts: Vec<Receipt> = match check.purpose() {
            Purpose::Reserve if is_admitted => receipts.into_iter().flatten().collect(),
            _ => Vec::new(),
        };
        Decision::divided(at_micros, statuses, receipts)
    }
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

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let replies = mem::take(&mut self.replies).into_iter();
        // Only a slot that has reserved has receipts.
        let refunds: Vec<Refund> = replies
            .filter_map(|Reply { part, decision, .. }| {
                Refund::of(&part, decision.receipts(), &vec![0; part.pairs().len()])
            })
            .collect();
        if refunds.is_empty() {
            return;
        }
        let rollback = Rollback { backend: self.backend.clone(), refunds };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(rollback.run());
        }
    }
}

/// Refunds that have not run yet. If it is dropped, as at the end of the runtime, the rest is counted as lost.
struct Rollback {
    backend: RedisBackend,
    refunds: Vec<Refund>,
}

impl Rollback {
    async fn run(mut self) {
        while let Some(refund) = self.refunds.last() {
            let outcome = timeout(ROLLBACK_TIMEOUT, self.backend.refund_in_slot(refund)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
            self.refunds.pop();
            if let Err(error) = outcome {
                self.backend.count_lost_rollbacks(1, &error);
            }
        }
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.backend.count_lost_rollbacks(self.refunds.len(), &BackendError::new(Reason::Other));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_grouped_in_the_order_of_their_slots() {
        let keys = ["a", "b", "a"].map(|value| PartitionKey::new("user", value));
        assert_eq!(group_by_slot(&KeyNames::default(), keys.iter()), [vec![0, 2], vec![1]]);
    }
}
