//! What has happened is told a second time, in other words: that must come to the same decisions.

use std::collections::HashMap;

use proptest::test_runner::TestCaseError;
use tower_sliding_window::backend::{Backend, Check, Pair, Purpose, Receipt};

use super::{
    history::{Couple, Keys, Pairs},
    invariants::{Bench, Deed, Event, failed, give_back, require, says_the_same},
};

/// A denial leaves no trace, and neither does a peek: the same history without them comes to the same decisions.
pub async fn without_denials<B: Backend>(
    bench: &Bench<'_, B>,
    couple: &Couple,
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut reservations: Vec<(Check, Vec<Receipt>)> = Vec::new();
    let trace = "a denial leaves no trace";
    for event in events {
        bench.clock.set_micros(event.at);
        let policies = bench.history.policies(event.quota);
        match &event.deed {
            Deed::Asked { purpose, pairs, decision } => {
                if !decision.is_admitted() || *purpose == Purpose::Peek {
                    continue;
                }
                let check = pairs.check(couple, &policies).with_purpose(*purpose);
                let again = bench.backend.check(&check).await.map_err(failed)?;
                require(says_the_same(&again, decision), trace)?;
                if *purpose == Purpose::Reserve {
                    reservations.push((check, again.receipts().to_vec()));
                }
            }
            Deed::Settled { reservation, used, overage } => {
                let (check, receipts) = &reservations[*reservation];
                give_back(bench.backend, check, receipts, used).await?;
                if let (Some(check), Some(overage)) = (check.overage(used), overage) {
                    let again = bench.backend.check(&check).await.map_err(failed)?;
                    require(says_the_same(&again, overage), trace)?;
                }
            }
            Deed::Reset { pairs } => {
                bench.backend.reset(&pairs.check(couple, &policies)).await.map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Settled is settled: a history in which every charge had its amount from the start comes to the same in the end, if
/// the clock never went back. Decisions already made are kept: whatever was charged is charged, without asking.
pub async fn as_settled<B: Backend>(
    bench: &Bench<'_, B>,
    (before, couple): (&Couple, &Couple),
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut settled: HashMap<usize, &[u32]> = HashMap::new();
    for event in events {
        if let Deed::Settled { reservation, used, .. } = &event.deed {
            settled.insert(*reservation, used);
        }
    }
    let mut reservations: Vec<Check> = Vec::new();
    for event in events {
        bench.clock.set_micros(event.at);
        let policies = bench.history.policies(event.quota);
        match &event.deed {
            Deed::Asked { purpose, pairs, decision } => {
                if !decision.is_admitted() || *purpose == Purpose::Peek {
                    continue;
                }
                let check = pairs.check(couple, &policies);
                let mut used = None;
                if *purpose == Purpose::Reserve {
                    used = settled.get(&reservations.len()).copied();
                    reservations.push(check.clone());
                }
                charge(bench, &check, |i, pair| used.map_or(pair.cost, |used| used[i].min(pair.cost)))
                    .await?;
            }
            Deed::Settled { reservation, used, .. } => {
                let check = &reservations[*reservation];
                charge(bench, check, |i, pair| used[i].saturating_sub(pair.cost)).await?;
            }
            Deed::Reset { pairs } => {
                bench.backend.reset(&pairs.check(couple, &policies)).await.map_err(failed)?;
            }
        }
    }
    let Some(last) = events.last() else { return Ok(()) };
    for keys in [Keys::A, Keys::B] {
        let pairs = Pairs { keys, costs: [0, 0], policies: (0, usize::MAX) };
        let policies = bench.history.policies(last.quota);
        let look = |couple| pairs.check(couple, &policies).with_purpose(Purpose::Peek);
        let as_it_was = bench.backend.check(&look(before)).await.map_err(failed)?;
        let as_settled = bench.backend.check(&look(couple)).await.map_err(failed)?;
        require(says_the_same(&as_it_was, &as_settled), "settled is settled")?;
    }
    Ok(())
}

/// Charges these amounts to the pairs of a check, whatever is used.
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
