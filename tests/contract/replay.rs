//! Replays: an equivalent form of a history must lead to the same decisions.

use std::collections::HashMap;

use proptest::test_runner::TestCaseError;
use tower_sliding_window::backend::{Backend, Check, Pair, Purpose, Receipt};

use super::{
    history::{Keys, Pairs, TwoKeys},
    invariants::{
        Bench, Event, EventKind, charged_check, failed, has_receipts, refund_unused, require, same_decision,
    },
};

/// Replays a history without denials and peeks. They leave no trace, so all other decisions must be the same.
pub async fn without_denials<B: Backend>(
    bench: &Bench<'_, B>,
    two_keys: &TwoKeys,
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut reservations: Vec<(Check, Vec<Receipt>)> = Vec::new();
    let trace = "a denial leaves no trace";
    for event in events {
        bench.clock.set_micros(event.at);
        let policies = bench.history.policies(event.quota);
        match &event.kind {
            EventKind::Checked { purpose, pairs, decision } => {
                if !decision.is_admitted() || *purpose == Purpose::Peek {
                    continue;
                }
                let check = pairs.check(two_keys, &policies).with_purpose(*purpose);
                let replayed = bench.backend.check(&check).await.map_err(failed)?;
                require(same_decision(&replayed, decision), trace)?;
                if has_receipts(*purpose) {
                    let check = charged_check(&check, &replayed);
                    reservations.push((check, replayed.receipts().to_vec()));
                }
            }
            EventKind::Settled { reservation, used, overage } => {
                let (check, receipts) = &reservations[*reservation];
                refund_unused(bench.backend, event.at, check, receipts, used).await?;
                if let (Some(check), Some(overage)) = (check.overage(used), overage) {
                    let replayed = bench.backend.check(&check).await.map_err(failed)?;
                    require(same_decision(&replayed, overage), trace)?;
                }
            }
            EventKind::Reset { pairs } => {
                bench.backend.reset(&pairs.check(two_keys, &policies)).await.map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Replays a history in which every charge has its settled amount from the start. If the clock never goes back, the final
/// statuses must be the same. The replay charges as an overage, so that it repeats no decision.
pub async fn with_settled_amounts<B: Backend>(
    bench: &Bench<'_, B>,
    (original, two_keys): (&TwoKeys, &TwoKeys),
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut settled: HashMap<usize, &[u32]> = HashMap::new();
    for event in events {
        if let EventKind::Settled { reservation, used, .. } = &event.kind {
            settled.insert(*reservation, used);
        }
    }
    let mut reservations: Vec<Check> = Vec::new();
    for event in events {
        bench.clock.set_micros(event.at);
        let policies = bench.history.policies(event.quota);
        match &event.kind {
            EventKind::Checked { purpose, pairs, decision } => {
                if !decision.is_admitted() || *purpose == Purpose::Peek {
                    continue;
                }
                let check = charged_check(&pairs.check(two_keys, &policies), decision);
                let mut used = None;
                if has_receipts(*purpose) {
                    used = settled.get(&reservations.len()).copied();
                    reservations.push(check.clone());
                }
                // A shadow pair that denied was not charged.
                let is_charged = |i: usize| decision.statuses()[i].retry_after().is_zero();
                charge(bench, &check, |i, pair| match used {
                    _ if !is_charged(i) => 0,
                    None => pair.cost,
                    Some(used) => used[i].min(pair.cost),
                })
                .await?;
            }
            EventKind::Settled { reservation, used, .. } => {
                let check = &reservations[*reservation];
                charge(bench, check, |i, pair| used[i].saturating_sub(pair.cost)).await?;
            }
            EventKind::Reset { pairs } => {
                bench.backend.reset(&pairs.check(two_keys, &policies)).await.map_err(failed)?;
            }
        }
    }
    let Some(last) = events.last() else { return Ok(()) };
    for keys in [Keys::A, Keys::B] {
        let pairs = Pairs { keys, costs: [0, 0], policies: (0, usize::MAX), shadows: 0 };
        let policies = bench.history.policies(last.quota);
        let peek = |two_keys| pairs.check(two_keys, &policies).with_purpose(Purpose::Peek);
        let original_status = bench.backend.check(&peek(original)).await.map_err(failed)?;
        let replayed_status = bench.backend.check(&peek(two_keys)).await.map_err(failed)?;
        require(
            same_decision(&original_status, &replayed_status),
            "a late settlement equals an exact charge",
        )?;
    }
    Ok(())
}

/// Charges these amounts to the pairs of a check as an overage.
async fn charge<B: Backend>(
    bench: &Bench<'_, B>,
    check: &Check,
    amount: impl Fn(usize, &Pair) -> u32,
) -> Result<(), TestCaseError> {
    let pairs = check.pairs().iter().enumerate();
    let pairs = pairs.map(|(i, pair)| Pair::new(pair.key.clone(), pair.policy.clone(), amount(i, pair)));
    let check = Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(Purpose::Overage);
    let decision = bench.backend.check(&check).await.map_err(failed)?;
    require(decision.is_admitted(), "an overage is admitted")
}
