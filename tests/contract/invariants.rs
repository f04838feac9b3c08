//! The invariants of a decision, each checked on the same histories.

use proptest::test_runner::TestCaseError;
use tower_sliding_window::{
    Decision, Wait,
    backend::{Backend, BackendError, Check, Purpose, Receipt, Refund},
    testing::ManualClock,
};

use super::{
    again,
    history::{Act, Couple, History, Pairs, Step, Used},
    ledger::Ledger,
    model::{Handle, Model},
};

/// The first instant of a history. Far enough from zero for clocks that go back, and below 2^51.
const START: u64 = 1_900_000_000_000_000;

/// One backend on a clock of our own.
pub struct Bench<'a, B> {
    pub backend: &'a B,
    pub clock: &'a ManualClock,
    pub history: &'a History,
}

/// What has happened, for telling it again.
pub struct Event {
    pub at: u64,
    /// The first policy's quota.
    pub quota: u32,
    pub deed: Deed,
}

pub enum Deed {
    Asked { purpose: Purpose, pairs: Pairs, decision: Decision },
    Settled { reservation: usize, used: Vec<u32>, overage: Option<Decision> },
    Reset { pairs: Pairs },
}

/// An admitted reservation.
struct Reserved {
    check: Check,
    receipts: Vec<Receipt>,
    handles: Vec<Handle>,
}

/// A history as it runs.
struct Run<'a, B> {
    bench: &'a Bench<'a, B>,
    couple: &'a Couple,
    now: u64,
    quota: u32,
    model: Model,
    ledger: Ledger,
    reservations: Vec<Reserved>,
    /// Which of them are not settled yet.
    open: Vec<usize>,
    events: Vec<Event>,
}

/// Runs one history against a backend, and checks all invariants that a single client can see. It is told three times, each
/// time with other keys.
pub async fn hold<B: Backend>(
    backend: &B,
    clock: &ManualClock,
    [couple, again, settled]: &[Couple; 3],
    history: &History,
) -> Result<(), TestCaseError> {
    let bench = &Bench { backend, clock, history };
    let mut run = Run {
        bench,
        couple,
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
    again::without_denials(bench, again, &run.events).await?;
    if history.is_forward() {
        again::as_settled(bench, (couple, settled), &run.events).await?;
    }
    Ok(())
}

impl<B: Backend> Run<'_, B> {
    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now = step.moves.from(self.now);
        self.quota = step.quota.unwrap_or(self.quota);
        match &step.act {
            Act::Ask { purpose, pairs, waits } => self.ask(*purpose, pairs, *waits).await,
            Act::Settle { which, used } => self.settle(*which, used).await,
            Act::Reset { pairs } => self.reset(pairs).await,
        }
    }

    async fn ask(&mut self, purpose: Purpose, pairs: &Pairs, waits: bool) -> Result<(), TestCaseError> {
        let check = pairs.check(self.couple, &self.bench.history.policies(self.quota)).with_purpose(purpose);
        let wait = self.decide(pairs, &check).await?.retry_after();
        // A record of another clock counts as empty only until the clock comes near it; waits do not foresee that.
        let waits = waits && !wait.is_zero() && !self.model.sees_foreign(self.now, &check);
        if let (true, Wait::For(wait)) = (waits, wait) {
            let admitted_at = self.now + wait.as_micros() as u64;
            self.now = admitted_at - 1;
            let early = self.decide(pairs, &check).await?;
            require(!early.is_admitted(), "an honest wait: denied one microsecond before it")?;
            self.now = admitted_at;
            let decision = self.decide(pairs, &check).await?;
            require(decision.is_admitted(), "an honest wait: admitted after it")?;
        }
        Ok(())
    }

    /// Asks backend and model: never too few, and one answer.
    async fn decide(&mut self, pairs: &Pairs, check: &Check) -> Result<Decision, TestCaseError> {
        let purpose = check.purpose();
        let (decision, handles) = self.answer(check).await?;
        if decision.is_admitted() && purpose == Purpose::Reserve {
            let receipts = decision.receipts().to_vec();
            require(receipts.len() == check.pairs().len(), "a receipt for every pair")?;
            self.open.push(self.reservations.len());
            self.reservations.push(Reserved { check: check.clone(), receipts, handles });
        } else {
            require(decision.receipts().is_empty(), "receipts are of admitted reservations")?;
        }
        if decision.is_admitted() && purpose != Purpose::Peek && self.model.foreign == 0 {
            let reservation = (purpose == Purpose::Reserve).then(|| self.reservations.len() - 1);
            self.ledger.charged(self.now, check, reservation)?;
        }
        let (pairs, told) = (pairs.clone(), decision.clone());
        self.tell(Deed::Asked { purpose, pairs, decision: told });
        Ok(decision)
    }

    async fn answer(&mut self, check: &Check) -> Result<(Decision, Vec<Handle>), TestCaseError> {
        self.bench.clock.set_micros(self.now);
        let (expected, handles) = self.model.check(self.now, check);
        let decision = self.bench.backend.check(check).await.map_err(failed)?;
        if says_the_same(&decision, &expected) {
            Ok((decision, handles))
        } else {
            let text = format!("{check:#?}\nanswered {decision:#?}\nthe model {expected:#?}");
            Err(TestCaseError::fail(format!("at {}: {text}", self.now)))
        }
    }

    async fn settle(&mut self, which: usize, used: &[Used; 2]) -> Result<(), TestCaseError> {
        let Some(last) = self.open.len().checked_sub(1) else { return Ok(()) };
        let index = self.open.remove(if which == usize::MAX { last } else { which % (last + 1) });
        let Reserved { check, receipts, handles } = &self.reservations[index];
        if self.model.is_ambiguous(check, handles) {
            return Ok(());
        }
        let used: Vec<u32> =
            check.pairs().iter().zip(used.iter().cycle()).map(|(pair, used)| used.of(pair.cost)).collect();
        self.bench.clock.set_micros(self.now);
        self.model.settle(self.now, check, handles, &used);
        self.ledger.settled(self.now, check, index, &used);
        give_back(self.bench.backend, check, receipts, &used).await?;
        let mut overage = None;
        if let Some(check) = check.overage(&used) {
            let (decision, _) = self.answer(&check).await?;
            require(decision.is_admitted() && decision.receipts().is_empty(), "an overage is admitted")?;
            if self.model.foreign == 0 {
                self.ledger.charged(self.now, &check, None)?;
            }
            overage = Some(decision);
        }
        self.tell(Deed::Settled { reservation: index, used, overage });
        Ok(())
    }

    async fn reset(&mut self, pairs: &Pairs) -> Result<(), TestCaseError> {
        let check = pairs.check(self.couple, &self.bench.history.policies(self.quota));
        self.bench.clock.set_micros(self.now);
        self.model.reset(&check);
        self.ledger.reset(&check, self.bench.history.is_constant() && self.model.foreign == 0)?;
        self.bench.backend.reset(&check).await.map_err(failed)?;
        self.tell(Deed::Reset { pairs: pairs.clone() });
        Ok(())
    }

    fn tell(&mut self, deed: Deed) {
        self.events.push(Event { at: self.now, quota: self.quota, deed });
    }
}

/// Gives back what was not used.
pub async fn give_back<B: Backend>(
    backend: &B,
    check: &Check,
    receipts: &[Receipt],
    used: &[u32],
) -> Result<(), TestCaseError> {
    match Refund::of(check, receipts, used) {
        Some(refund) => backend.refund(&refund).await.map_err(failed),
        None => Ok(()),
    }
}

/// Whether two decisions are the same. Receipts are in the terms of a backend.
pub fn says_the_same(one: &Decision, other: &Decision) -> bool {
    one.at_micros() == other.at_micros() && one.statuses() == other.statuses()
}

pub fn failed(error: BackendError) -> TestCaseError {
    TestCaseError::fail(format!("{error:?}"))
}

pub fn require(holds: bool, invariant: &str) -> Result<(), TestCaseError> {
    if holds { Ok(()) } else { Err(TestCaseError::fail(format!("broken: {invariant}"))) }
}
