//! The invariants of a decision, each checked on the same histories.

use std::collections::HashMap;

use proptest::test_runner::TestCaseError;
use tower_sliding_window::{Backend, Check, Decision, ManualClock, PartitionKey, Wait};

use super::{
    history::{History, Step},
    model::Model,
};

/// The first instant of a history. Far enough from zero for clocks that go back, and below 2^51.
const START: u64 = 1_900_000_000_000_000;

/// One check and what became of it.
struct Event {
    at: u64,
    step: Step,
    check: Check,
    decision: Decision,
}

/// Runs one history against a backend, and checks all invariants that a single client can see.
pub async fn hold<B: Backend>(
    backend: &B,
    clock: &ManualClock,
    salt: &str,
    history: &History,
) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut events = Vec::new();
    let mut now = START;
    let mut quota = history.policies[0].0;
    for step in &history.steps {
        now = now.saturating_add_signed(step.moves);
        quota = step.quota.unwrap_or(quota);
        let check = step.check(salt, &history.policies(quota));
        let decision = decide(backend, clock, &mut model, now, &check).await?;
        let wait = decision.retry_after();
        events.push(Event { at: now, step: step.clone(), check: check.clone(), decision });

        // A record of another clock counts as empty only until the clock comes near it; waits do not foresee that.
        let waits = step.waits && !wait.is_zero() && !model.sees_foreign(now, &check);
        if let (true, Wait::For(wait)) = (waits, wait) {
            let admitted_at = now + wait.as_micros() as u64;
            let early = decide(backend, clock, &mut model, admitted_at - 1, &check).await?;
            require(!early.is_admitted(), "an honest wait: denied one microsecond before it")?;
            let decision = decide(backend, clock, &mut model, admitted_at, &check).await?;
            require(decision.is_admitted(), "an honest wait: admitted after it")?;
            now = admitted_at;
            events.push(Event { at: now, step: step.clone(), check, decision });
        }
    }
    never_too_many(history, &model, &events)?;
    a_denial_leaves_no_trace(backend, clock, salt, history, &events).await
}

/// Asks backend and model: never too few, and one answer.
async fn decide<B: Backend>(
    backend: &B,
    clock: &ManualClock,
    model: &mut Model,
    now: u64,
    check: &Check,
) -> Result<Decision, TestCaseError> {
    clock.set_micros(now);
    let expected = model.check(now, check);
    let decision = backend.check(check).await.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    if decision == expected {
        Ok(decision)
    } else {
        Err(TestCaseError::fail(format!(
            "at {now}: {check:#?}\nanswered {decision:#?}\nthe model {expected:#?}"
        )))
    }
}

/// No half-open interval of a window's length holds more than the quota.
fn never_too_many(history: &History, model: &Model, events: &[Event]) -> Result<(), TestCaseError> {
    if !history.is_constant() || model.foreign > 0 {
        return Ok(());
    }
    let mut charges: HashMap<(PartitionKey, String), Vec<(u64, u64)>> = HashMap::new();
    for event in events.iter().filter(|event| event.decision.is_admitted()) {
        for pair in event.check.pairs().iter().filter(|pair| pair.cost > 0) {
            let charges = charges.entry((pair.key.clone(), pair.policy.name().to_owned())).or_default();
            // While the clock is behind, time stands still.
            let at = charges.last().map_or(event.at, |(last, _)| event.at.max(*last));
            charges.push((at, u64::from(pair.cost)));
            let window = pair.policy.window().as_micros() as u64;
            let within: u64 =
                charges.iter().filter(|(other, _)| at < *other + window).map(|(_, cost)| cost).sum();
            require(within <= u64::from(pair.policy.quota()), "never too many")?;
        }
    }
    Ok(())
}

/// The same history without the checks that were denied comes to the same decisions.
async fn a_denial_leaves_no_trace<B: Backend>(
    backend: &B,
    clock: &ManualClock,
    salt: &str,
    history: &History,
    events: &[Event],
) -> Result<(), TestCaseError> {
    let mut quota = history.policies[0].0;
    for event in events {
        quota = event.step.quota.unwrap_or(quota);
        if event.decision.is_admitted() {
            clock.set_micros(event.at);
            let check = event.step.check(&format!("{salt} again"), &history.policies(quota));
            let decision =
                backend.check(&check).await.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            require(decision == event.decision, "a denial leaves no trace")?;
        }
    }
    Ok(())
}

fn require(holds: bool, invariant: &str) -> Result<(), TestCaseError> {
    if holds { Ok(()) } else { Err(TestCaseError::fail(format!("broken: {invariant}"))) }
}
