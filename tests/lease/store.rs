//! A store that grants leases: the memory backend on a clock that follows the paused clock of tokio.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Decision, MemoryBackend, Status,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    testing::ManualClock,
};

/// A store for several limiters. Each limiter stands for a process, unless the store has a name.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    memory: MemoryBackend,
    clock: ManualClock,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With a name, all limiters on the store are of one process.
    name: Option<String>,
    /// How much faster than tokio's clock the store's clock runs.
    drift_ppm: i64,
    /// By how many microseconds the store's clock was set forward or back.
    shift: i64,
    /// The time of the pairs: it stands still while the store's clock is behind it.
    latest: u64,
    /// How often the store has lost its data.
    losses: usize,
    /// The moments of all decisions, by their instants.
    decided: HashMap<u64, Moment>,
    /// The time of a request and of a reply.
    latency: (Duration, Duration),
    faults: VecDeque<Fault>,
    /// All checks, with the units to lease of the first pair: of a lease ahead, its cost.
    asked: Vec<(Purpose, u32)>,
    refunds: Vec<u32>,
}

/// A moment of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// How often the store had lost its data.
    pub losses: usize,
    /// The time of the pairs, in microseconds.
    pub at: u64,
}

/// What happens to the next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It is not sent.
    Refused,
    /// It runs, and its outcome is an error with this reason.
    Error(Reason),
    /// It runs, and its reply is lost.
    LostReply,
}

impl Store {
    pub fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::new().with_clock(&clock);
        Self(Arc::new(Shared { memory, clock, start: Instant::now(), state: Mutex::default() }))
    }

    pub fn with_latency(self, request: Duration, reply: Duration) -> Self {
        self.state().latency = (request, reply);
        self
    }

    pub fn with_name(self, name: &str) -> Self {
        self.state().name = Some(name.to_owned());
        self
    }

    pub fn with_drift(self, ppm: i64) -> Self {
        self.state().drift_ppm = ppm;
        self
    }

    /// Sets what happens to the next checks.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults = faults.into_iter().collect();
    }

    /// Returns the purposes of all checks since the last call, with the units to lease of the first pair.
    pub fn take_asked(&self) -> Vec<(Purpose, u32)> {
        std::mem::take(&mut self.state().asked)
    }

    /// Returns the units of all refunds since the last call.
    pub fn take_refunds(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().refunds)
    }

    pub fn now_micros(&self) -> u64 {
        self.read_clock();
        self.0.clock.now_micros()
    }

    /// Sets the store's clock forward or back.
    pub fn shift_clock(&self, micros: i64) {
        self.state().shift += micros;
    }

    /// Returns by how much the store's clock was set forward, in microseconds.
    pub fn shift(&self) -> i64 {
        self.state().shift
    }

    /// Loses the record of a pair.
    pub async fn lose(&self, pair: Pair) {
        self.state().losses += 1;
        self.0.memory.reset(&Check::new([pair]).unwrap()).await.unwrap();
    }

    /// Returns the present moment.
    pub fn moment(&self) -> Moment {
        self.read_clock();
        let state = self.state();
        Moment { losses: state.losses, at: state.latest }
    }

    /// Returns the moment of a decision.
    pub fn moment_of(&self, decision: &Decision) -> Moment {
        self.state().decided[&decision.at_micros()]
    }

    fn read_clock(&self) {
        let (elapsed, mut state) = (self.0.start.elapsed().as_micros() as i64, self.state());
        let micros = elapsed + elapsed * state.drift_ppm / 1_000_000 + state.shift;
        let micros = 1_000_000_000_000_000_u64.saturating_add_signed(micros);
        state.latest = state.latest.max(micros);
        self.0.clock.set_micros(micros);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Decides a check, by the contract of [`Purpose::Lease`].
    pub fn decide(&self, check: &Check) -> Result<Decision, BackendError> {
        let moment = self.moment();
        let decision = model(&self.0.memory, check)?;
        self.state().decided.insert(decision.at_micros(), moment);
        Ok(decision)
    }
}

/// The reference model of a lease request: a peek, and then a reservation of the cost and of what else fits.
pub fn model(memory: &MemoryBackend, check: &Check) -> Result<Decision, BackendError> {
    let decide = |check: &Check| memory.check_now(check).expect("the memory answers at once");
    if check.purpose() != Purpose::Lease {
        return decide(check);
    }
    let peek = decide(&check.clone().with_purpose(Purpose::Peek))?;
    if !peek.is_admitted() {
        return Ok(Decision::with_leases(peek.at_micros(), peek.statuses(), [], []));
    }
    let pairs = check.pairs().iter().zip(peek.statuses());
    let leases: Vec<u32> = pairs.map(|(pair, status)| pair.lease.min(status.remaining())).collect();
    let pairs = check.pairs().iter().zip(&leases);
    let pairs: Vec<Pair> = pairs
        .map(|(pair, units)| Pair::new(pair.key.clone(), pair.policy.clone(), pair.cost + units))
        .collect();
    let charged = decide(&Check::new(pairs).unwrap().with_purpose(Purpose::Reserve))?;
    assert!(charged.is_admitted());
    let status = |(pair, status): (&Pair, &Status)| {
        let (remaining, retry_after) = (status.remaining(), status.retry_after());
        Status::new(pair, remaining, retry_after, status.next_after(), status.reset_after())
    };
    let statuses: Vec<Status> = check.pairs().iter().zip(charged.statuses()).map(status).collect();
    Ok(Decision::with_leases(charged.at_micros(), statuses, charged.receipts(), leases))
}

/// Waits. Unlike a sleep, no time is no time.
async fn pass(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

impl Backend for Store {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        let (request, reply) = self.state().latency;
        let fault = self.state().faults.pop_front().unwrap_or(Fault::None);
        let pair = &check.pairs()[0];
        let units = if check.purpose() == Purpose::LeaseAhead { pair.cost } else { pair.lease };
        self.state().asked.push((check.purpose(), units));
        if fault == Fault::Refused {
            return Err(BackendError::new(Reason::Busy));
        }
        pass(request).await;
        let decision = self.decide(check);
        pass(reply).await;
        match fault {
            Fault::LostReply => pending().await,
            Fault::Error(reason) => Err(BackendError::new(reason)),
            Fault::None | Fault::Refused => decision,
        }
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        let request = self.state().latency.0;
        pass(request).await;
        self.read_clock();
        self.state().refunds.extend(refund.pairs().iter().map(|pair| pair.units));
        self.0.memory.refund(refund).await
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let request = self.state().latency.0;
        pass(request).await;
        self.0.memory.reset(pairs).await
    }

    fn denials_hold(&self) -> bool {
        true
    }

    fn grants_leases(&self) -> bool {
        true
    }

    fn store(&self) -> Option<String> {
        self.state().name.clone()
    }
}
