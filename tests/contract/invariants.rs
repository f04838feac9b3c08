//! The invariants of a decision. Every history checks all of them.

use proptest::test_runner::TestCaseError;
use tower_sliding_window::{
    Algorithm, Decision, Status, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Receipt, Refund},
    testing::ManualClock,
};

use super::{
    history::{Action, History, Pairs, Step, TwoKeys, Used},
    ledger::Ledger,
    model::{Handle, Model},
    replay,
};

/// The first instant of a history. It leaves room for a clock that goes back, and is below 2^51.
const START: u64 = 1_900_000_000_000_000;

/// A backend on a controlled clock.
pub struct Bench<'a, B> {
    pub backend: &'a B,
    pub clock: &'a ManualClock,
    pub history: &'a History,
}

/// An event of a history, for the replay.
pub struct Event {
    pub at: u64,
    /// The quota of the first policy.
    pub quota: u32,
    pub kind: EventKind,
}

pub enum EventKind {
    Checked { purpose: Purpose, pairs: Pairs, decision: Decision },
    Settled { reservation: usize, used: Vec<u32>, overage: Option<Decision> },
    Reset { pairs: Pairs },
}

/// An admitted reservation.
struct Reserved {
    check: Check,
    receipts: Vec<Receipt>,
    handles: Vec<Handle>,
}

/// The run of a history.
struct Run<'a, B> {
    bench: &'a Bench<'a, B>,
    two_keys: &'a TwoKeys,
    now: u64,
    quota: u32,
    model: Model,
    ledger: Ledger,
    reservations: Vec<Reserved>,
    /// The indices of the reservations that are not settled.
    open: Vec<usize>,
    events: Vec<Event>,
}

/// Runs a history on a backend, and checks all invariants that a single client can observe. The history and its two replays
/// use different keys.
pub async fn check_history<B: Backend>(
    backend: &B,
    clock: &ManualClock,
    [two_keys, replayed, settled]: &[TwoKeys; 3],
    history: &History,
) -> Result<(), TestCaseError> {
    let bench = &Bench { backend, clock, history };
    let mut run = Run {
        bench,
        two_keys,
        now: START,
        quota: history.policies[0].quota,
        model: Model::default(),
        ledger: Ledger::default(),
        reservations: Vec::new(),
        open: Vec::new(),
        events: Vec::new(),
    };
    for step in &history.steps {
        run.step(step).await?;
    }
    if history.is_constant() && run.model.foreign == 0 {
        run.ledger.close()?;
    }
    replay::without_denials(bench, replayed, &run.events).await?;
    if history.is_forward() && history.settles_in_past() {
        replay::with_settled_amounts(bench, (two_keys, settled), &run.events).await?;
    }
    Ok(())
}

impl<B: Backend> Run<'_, B> {
    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now = step.movement.from(self.now);
        self.quota = step.quota.unwrap_or(self.quota);
        match &step.action {
            Action::Check { purpose, pairs, waits } => self.check_and_wait(*purpose, pairs, *waits).await,
            Action::Settle { which, used } => self.settle(*which, used).await,
            Action::Reset { pairs } => self.reset(pairs).await,
        }
    }

    async fn check_and_wait(
        &mut self,
        purpose: Purpose,
        pairs: &Pairs,
        waits: bool,
    ) -> Result<(), TestCaseError> {
        let check =
            pairs.check(self.two_keys, &self.bench.history.policies(self.quota)).with_purpose(purpose);
        let decision = self.decide(pairs, &check).await?;
        // The status of a peek includes the charge that the peek does not make.
        if waits && purpose != Purpose::Peek && !self.model.sees_foreign(self.now, &check) {
            self.wait_for_next_unit(&check, &decision).await?;
        }
        let wait = decision.retry_after();
        // A record of another clock counts as empty only until the clock comes near it. A wait does not include this.
        let waits = waits && !wait.is_zero() && !self.model.sees_foreign(self.now, &check);
        if let (true, Wait::For(wait)) = (waits, wait) {
            let admitted_at = self.now + wait.as_micros() as u64;
            self.now = admitted_at - 1;
            let early = self.decide(pairs, &check).await?;
            require(!early.is_admitted(), "an exact wait: a check is denied one microsecond before its end")?;
            self.now = admitted_at;
            let decision = self.decide(pairs, &check).await?;
            require(decision.is_admitted(), "an exact wait: a check is admitted after its end")?;
        }
        Ok(())
    }

    /// Peeks at the end of each `next_after` and one microsecond before it, without other charges.
    async fn wait_for_next_unit(&self, check: &Check, decision: &Decision) -> Result<(), TestCaseError> {
        for (pair, status) in check.pairs().iter().zip(decision.statuses()) {
            if status.reset_after().is_zero() {
                // A token bucket has no window. The reference model has the end of a calendar period.
                let is_calendar = matches!(pair.policy.algorithm(), Algorithm::CalendarPeriod { .. });
                let window =
                    if is_calendar { status.next_after() } else { pair.policy.window().unwrap_or_default() };
                require(status.next_after() == window, "`next_after` is the window if nothing is used")?;
                continue;
            }
            let peek = Check::new([Pair::new(pair.key.clone(), pair.policy.clone(), 0)])
                .map_err(|error| TestCaseError::fail(error.to_string()))?
                .with_purpose(Purpose::Peek);
            let next = self.now + status.next_after().as_micros() as u64;
            let mut remaining = [0; 2];
            for (at, remaining) in [next - 1, next].into_iter().zip(&mut remaining) {
                self.bench.clock.set_micros(at);
                let decision = self.bench.backend.check(&peek).await.map_err(failed)?;
                *remaining = decision.statuses()[0].remaining();
            }
            let [before, after] = remaining;
            require(before == status.remaining(), "`remaining` is the same just before `next_after`")?;
            require(after > before, "`remaining` is larger at `next_after`")?;
        }
        Ok(())
    }

    /// Runs a check on the backend and on the reference model, and requires the same decision.
    async fn decide(&mut self, pairs: &Pairs, check: &Check) -> Result<Decision, TestCaseError> {
        let purpose = check.purpose();
        let (decision, handles) = self.run_check(check).await?;
        if let Purpose::TakeUpTo(wanted) = purpose {
            self.require_most_units(check, &decision, wanted).await?;
        }
        let check = &charged_check(check, &decision);
        if decision.is_admitted() && has_receipts(purpose) {
            let receipts = decision.receipts().to_vec();
            require(
                receipts.len() == check.pairs().len(),
                "an admitted reservation has a receipt for every pair",
            )?;
            self.open.push(self.reservations.len());
            self.reservations.push(Reserved { check: check.clone(), receipts, handles });
        } else {
            require(decision.receipts().is_empty(), "only admitted reservations have receipts")?;
        }
        if decision.is_admitted() && purpose != Purpose::Peek && self.model.foreign == 0 {
            let reservation = has_receipts(purpose).then(|| self.reservations.len() - 1);
            self.ledger.charged(self.now, check, &decision, reservation)?;
        }
        let (pairs, copy) = (pairs.clone(), decision.clone());
        self.record(EventKind::Checked { purpose, pairs, decision: copy });
        Ok(decision)
    }

    /// Requires that one unit more is denied at the same instant.
    async fn require_most_units(
        &self,
        check: &Check,
        decision: &Decision,
        wanted: u32,
    ) -> Result<(), TestCaseError> {
        let costs = || check.pairs().iter().zip(decision.statuses());
        let units = costs().find_map(|(pair, status)| status.cost().checked_div(pair.cost));
        let is_in_range = |(pair, status): (&Pair, &Status)| status.cost().checked_add(pair.cost).is_some();
        if units.is_some_and(|units| units < wanted) && costs().all(is_in_range) {
            let one = self.bench.backend.check(&check.clone().with_purpose(Purpose::Peek)).await;
            require(!one.map_err(failed)?.is_admitted(), "one unit more than the taken ones is denied")?;
        }
        Ok(())
    }

    async fn run_check(&mut self, check: &Check) -> Result<(Decision, Vec<Handle>), TestCaseError> {
        self.bench.clock.set_micros(self.now);
        let (expected, handles) = self.model.check(self.now, check);
        let decision = self.bench.backend.check(check).await.map_err(failed)?;
        if same_decision(&decision, &expected) {
            Ok((decision, handles))
        } else {
            Err(TestCaseError::fail(difference(self.now, check, &decision, &expected)))
        }
    }

    async fn settle(&mut self, which: usize, used: &[Used; 2]) -> Result<(), TestCaseError> {
        let Some(last) = self.open.len().checked_sub(1) else { return Ok(()) };
        let index = self.open.remove(if which == usize::MAX { last } else { which % (last + 1) });
        let Reserved { check, receipts, handles } = &self.reservations[index];
        let used = used_of_charged(check, receipts, used);
        self.bench.clock.set_micros(self.now);
        self.model.settle(self.now, check, handles, &used);
        self.ledger.settled(self.now, check, index, &used);
        refund_unused(self.bench.backend, self.now, check, receipts, &used).await?;
        let mut overage = None;
        if let Some(check) = check.overage(&used) {
            let (decision, _) = self.run_check(&check).await?;
            require(decision.is_admitted() && decision.receipts().is_empty(), "an overage is admitted")?;
            if self.model.foreign == 0 {
                self.ledger.charged(self.now, &check, &decision, None)?;
            }
            overage = Some(decision);
        }
        self.record(EventKind::Settled { reservation: index, used, overage });
        Ok(())
    }

    async fn reset(&mut self, pairs: &Pairs) -> Result<(), TestCaseError> {
        let check = pairs.check(self.two_keys, &self.bench.history.policies(self.quota));
        self.bench.clock.set_micros(self.now);
        self.model.reset(&check);
        self.ledger.reset(&check, self.bench.history.is_constant() && self.model.foreign == 0)?;
        self.bench.backend.reset(&check).await.map_err(failed)?;
        self.record(EventKind::Reset { pairs: pairs.clone() });
        Ok(())
    }

    fn record(&mut self, kind: EventKind) {
        self.events.push(Event { at: self.now, quota: self.quota, kind });
    }
}

/// Returns whether an admission has receipts.
pub fn has_receipts(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Reserve | Purpose::TakeUpTo(_) | Purpose::Debit | Purpose::LeaseAhead)
}

/// Returns the check with the costs that were charged, which differ if units were taken.
pub fn charged_check(check: &Check, decision: &Decision) -> Check {
    let pairs = check.pairs().iter().zip(decision.statuses()).map(|(pair, status)| {
        let mut pair = pair.clone();
        pair.cost = status.cost();
        pair
    });
    Check::new(pairs.collect::<Vec<_>>()).unwrap().with_purpose(check.purpose())
}

/// Returns the units that each pair has used. A shadow pair that was not charged has nothing to settle.
pub fn used_of_charged(check: &Check, receipts: &[Receipt], used: &[Used; 2]) -> Vec<u32> {
    let pairs = check.pairs().iter().zip(receipts).zip(used.iter().cycle());
    let of_pair = |((pair, receipt), used): ((&Pair, &Receipt), &Used)| {
        if pair.is_shadow && receipt.generation == 0 && receipt.at_micros == 0 && pair.cost > 0 {
            pair.cost
        } else {
            used.units(pair.cost)
        }
    };
    pairs.map(of_pair).collect()
}

/// Refunds the unused units, and requires the refund to return this instant.
pub async fn refund_unused<B: Backend>(
    backend: &B,
    now: u64,
    check: &Check,
    receipts: &[Receipt],
    used: &[u32],
) -> Result<(), TestCaseError> {
    match Refund::new(check, receipts, used) {
        Some(refund) => {
            let at = backend.refund(&refund).await.map_err(failed)?;
            require(at == now, "a refund returns its instant")
        }
        None => Ok(()),
    }
}

/// Returns whether two decisions are the same, except for their receipts, which depend on the backend.
pub fn same_decision(one: &Decision, other: &Decision) -> bool {
    one.at_micros() == other.at_micros() && one.statuses() == other.statuses()
}

/// Returns a text about the pairs of which a decision and the reference model state something else.
fn difference(now: u64, check: &Check, decision: &Decision, expected: &Decision) -> String {
    let mut text = format!("{:?} of {} pairs at {now}", check.purpose(), check.pairs().len());
    if decision.at_micros() != expected.at_micros() {
        text += &format!(
            "\nthe instant is {}, and the model expects {}",
            decision.at_micros(),
            expected.at_micros()
        );
    }
    let statuses = decision.statuses().iter().zip(expected.statuses());
    for (i, (pair, (status, expected))) in check.pairs().iter().zip(statuses).enumerate() {
        if status != expected {
            let (key, policy, cost, shadow) = (&pair.key, &pair.policy, pair.cost, pair.is_shadow);
            text += &format!("\npair {i}: {key:?}, {policy:?}, cost {cost}, shadow: {shadow}");
            text += &format!("\n  the status is        {status:?}\n  the model expects    {expected:?}");
        }
    }
    text
}

pub fn failed(error: BackendError) -> TestCaseError {
    TestCaseError::fail(format!("{error:?}"))
}

pub fn require(holds: bool, invariant: &str) -> Result<(), TestCaseError> {
    if holds { Ok(()) } else { Err(TestCaseError::fail(format!("broken: {invariant}"))) }
}
