//! Checks whose keys live in several slots of a cluster: one call and one clock for each slot.
//!
//! A server that is no cluster decides everything in one call, whatever its keys are. A cluster says `CROSSSLOT` when the keys
//! of a call do not belong together, before it has run anything; from then on a check is divided, slot by slot. The slots
//! are charged in order. When one denies, or cannot answer, those before it get their units back, and those after it are
//! only peeked at. So it is never too many; in the instant between, somebody else may be denied because of a charge that
//! is given back.

use std::{mem, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use super::{Link, RedisBackend, names::Names};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair, Purpose, Receipt, Refund},
    decision::{Decision, Status},
    key::PartitionKey,
};

/// How many slots a cluster has (Redis cluster specification, "Key distribution model").
pub(super) const SLOTS: u16 = 16_384;

/// How long giving back may take. No request waits for it.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The indices of the pairs of these keys, slot by slot, in the order in which the slots are first named.
pub(super) fn by_slot<'a>(names: &Names, keys: impl Iterator<Item = &'a PartitionKey>) -> Vec<Vec<usize>> {
    let mut slots: Vec<(u16, Vec<usize>)> = Vec::new();
    for (i, key) in keys.enumerate() {
        let slot = slot(&names.tag(key));
        match slots.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, pairs)) => pairs.push(i),
            None => slots.push((slot, vec![i])),
        }
    }
    slots.into_iter().map(|(_, pairs)| pairs).collect()
}

/// The slot of a key with this tag between its braces (Redis cluster specification, "Hash tags").
pub(super) fn slot(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Gives units back slot by slot. What one slot cannot do does not keep the others from it.
pub(super) async fn give_back<L: Link>(
    backend: &RedisBackend<L>,
    refund: &Refund,
    slots: &[Vec<usize>],
) -> Result<(), BackendError> {
    let mut outcome = Ok(());
    for pairs in slots {
        outcome = outcome.and(backend.give_back(&refund.part(pairs)).await);
    }
    outcome
}

/// Forgets keys slot by slot, likewise.
pub(super) async fn forget<L: Link>(
    backend: &RedisBackend<L>,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<(), BackendError> {
    let mut outcome = Ok(());
    for pairs in slots {
        outcome = outcome.and(backend.forget(&check.part(pairs, check.purpose())).await);
    }
    outcome
}

/// Decides a check slot by slot; `slots` are the indices of its pairs.
pub(super) async fn decide<L: Link>(
    backend: &RedisBackend<L>,
    check: &Check,
    slots: &[Vec<usize>],
) -> Result<Decision, BackendError> {
    let mut charged = Charged { backend, parts: Vec::new() };
    let mut statuses: Vec<Option<(Status, Option<Receipt>)>> = vec![None; check.pairs().len()];
    let (mut at_micros, mut admitted, mut failed) = (0, true, None);
    // The pairs of slots that admit.
    let mut admitting: Vec<usize> = Vec::new();
    for pairs in slots {
        let purpose = match check.purpose() {
            Purpose::Charge | Purpose::Reserve if admitted => Purpose::Reserve,
            Purpose::Charge | Purpose::Reserve | Purpose::Peek => Purpose::Peek,
            Purpose::Overage => Purpose::Overage,
        };
        let part = check.part(pairs, purpose);
        let decision = match backend.decide(&part).await {
            Ok(decision) => decision,
            // What was used already is charged where it can be.
            Err(error) if purpose == Purpose::Overage => {
                failed = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        at_micros = at_micros.max(decision.at_micros());
        admitted &= decision.is_admitted();
        for (n, (pair, status)) in pairs.iter().zip(decision.statuses()).enumerate() {
            statuses[*pair] = Some((status.clone(), decision.receipts().get(n).copied()));
        }
        if decision.is_admitted() {
            admitting.extend(pairs);
            if purpose == Purpose::Reserve {
                charged.parts.push((part, decision));
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !admitted {
        // What was charged goes back, and what was only looked at is not charged. Both were told as they would be afterwards.
        for pair in admitting {
            if let Some((status, _)) = &mut statuses[pair] {
                *status = uncharged(status, &check.pairs()[pair]);
            }
        }
    }
    if admitted {
        charged.stands();
    }
    let (statuses, receipts): (Vec<_>, Vec<_>) = statuses.into_iter().flatten().unzip();
    let receipts: Vec<Receipt> = match check.purpose() {
        Purpose::Reserve if admitted => receipts.into_iter().flatten().collect(),
        _ => Vec::new(),
    };
    Ok(Decision::divided(at_micros, statuses, receipts))
}

/// The status of a pair without the charge that it tells of. When everything will have left is then known only as "no
/// later than".
fn uncharged(status: &Status, pair: &Pair) -> Status {
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

/// The slots that were charged. Unless all are, they get their units back, by a task of its own: the check may be dropped
/// in the middle.
struct Charged<'a, L: Link> {
    backend: &'a RedisBackend<L>,
    parts: Vec<(Check, Decision)>,
}

impl<L: Link> Charged<'_, L> {
    fn stands(&mut self) {
        self.parts.clear();
    }
}

impl<L: Link> Drop for Charged<'_, L> {
    fn drop(&mut self) {
        let parts = mem::take(&mut self.parts).into_iter();
        let refunds: Vec<Refund> = parts
            .filter_map(|(part, decision)| {
                Refund::of(&part, decision.receipts(), &vec![0; part.pairs().len()])
            })
            .collect();
        if refunds.is_empty() {
            return;
        }
        let give_backs = GiveBacks { backend: self.backend.clone(), refunds };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(give_backs.send());
        }
    }
}

/// What has to go back, and has not yet. Dropped before that, as when the runtime ends, it is lost, and counted.
struct GiveBacks<L: Link> {
    backend: RedisBackend<L>,
    refunds: Vec<Refund>,
}

impl<L: Link> GiveBacks<L> {
    async fn send(mut self) {
        while let Some(refund) = self.refunds.last() {
            let given = timeout(GIVE_BACK_TIMEOUT, self.backend.give_back(refund)).await;
            let given = given.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
            self.refunds.pop();
            if let Err(error) = given {
                self.backend.lose_give_backs(1, &error);
            }
        }
    }
}

impl<L: Link> Drop for GiveBacks<L> {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.backend.lose_give_backs(self.refunds.len(), &BackendError::new(Reason::Other));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        // The check value of CRC16 XMODEM in the specification, 0x31C3, and what `CLUSTER KEYSLOT` answers.
        assert_eq!(slot("123456789"), 12_739);
        let keys = ["a", "b", "a"].map(|value| PartitionKey::new("user", value));
        assert_eq!(by_slot(&Names::default(), keys.iter()), [vec![0, 2], vec![1]]);
    }
}
