//! Denials that are known without asking the store.

mod asking;
mod configuration;
mod history;
mod outages;
mod repeating;
mod returning;
mod wire;

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    outage::DenyCache,
    testing::ManualClock,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const NOTHING: Duration = Duration::ZERO;
/// The resolution of tokio's timer.
const TICK: Duration = Duration::from_millis(1);
/// When one check is let through: seven eighths of the default age.
const DUE: Duration = Duration::from_millis(875);

/// A store elsewhere, on tokio's clock: exact, some way off, and it remembers what it was asked.
#[derive(Clone)]
struct Remote {
    memory: MemoryBackend,
    clock: ManualClock,
    began: (Instant, u64),
    settings: Arc<Mutex<Settings>>,
}

#[derive(Default)]
struct Settings {
    asked: Vec<(Purpose, u32)>,
    /// How long a check takes to the store and back, and how long all else does.
    check_trip: [Duration; 2],
    change_trip: [Duration; 2],
    fault: Option<Fault>,
}

#[derive(Clone, Copy)]
enum Fault {
    Down,
    Hang,
    Panic,
}

impl Remote {
    fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::new().with_clock(&clock);
        let began = (Instant::now(), clock.now_micros());
        Self { memory, clock, began, settings: Arc::default() }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many checks it was asked, of whatever purpose.
    fn asked(&self) -> usize {
        self.settings().asked.len()
    }

    fn fail(&self, fault: impl Into<Option<Fault>>) {
        self.settings().fault = fault.into();
    }

    fn check_trip(&self, there: Duration, back: Duration) {
        self.settings().check_trip = [there, back];
    }

    fn change_trip(&self, there: Duration, back: Duration) {
        self.settings().change_trip = [there, back];
    }

    /// The store as it is now.
    fn now(&self) -> &MemoryBackend {
        let (start, micros) = self.began;
        self.clock.set_micros(micros + start.elapsed().as_micros() as u64);
        &self.memory
    }

    /// What another process does: it forgets the key of these policies.
    async fn lose(&self, policies: &[Policy]) {
        let pairs: Vec<_> = policies.iter().map(|policy| Pair::new(alice(), policy.clone(), 0)).collect();
        self.now().reset(&Check::new(pairs).unwrap()).await.unwrap();
    }

    async fn fault(&self) -> Result<(), BackendError> {
        let fault = self.settings().fault;
        match fault {
            None => Ok(()),
            Some(Fault::Down) => Err(BackendError::new(Reason::Connection)),
            Some(Fault::Hang) => pending().await,
            Some(Fault::Panic) => panic!("as the test wants it"),
        }
    }
}

impl Backend for Remote {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.settings().asked.push((check.purpose(), check.pairs()[0].cost));
        let [there, back] = self.settings().check_trip;
        travel(there).await;
        self.fault().await?;
        let decision = self.now().check(check).await;
        travel(back).await;
        decision
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<(), BackendError> {
        let [there, back] = self.settings().change_trip;
        travel(there).await;
        self.fault().await?;
        let done = self.now().refund(refund).await;
        travel(back).await;
        done
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let [there, back] = self.settings().change_trip;
        travel(there).await;
        self.fault().await?;
        let done = self.now().reset(pairs).await;
        travel(back).await;
        done
    }

    fn denials_hold(&self) -> bool {
        true
    }
}

/// Takes so long, and no longer: a sleep ends at a whole millisecond.
async fn travel(trip: Duration) {
    if !trip.is_zero() {
        sleep(trip).await;
    }
}

fn policy(name: &str, quota: u32, window: Duration) -> Policy {
    Policy::new(name, quota, window).unwrap()
}

fn ten() -> Policy {
    policy("ten", 10, MINUTE)
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

fn user(name: impl ToString) -> PartitionKey {
    PartitionKey::new("user", name.to_string())
}

fn on(backend: impl Backend) -> LimiterBuilder {
    Limiter::builder(backend).policy(ten())
}

/// A limiter of ten units in a minute, and the store that it asks.
fn remote() -> (Remote, Limiter) {
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    (remote, limiter)
}

/// The same, with all of Alice's units used and one more denied. It was asked twice by then.
async fn used_up() -> (Remote, Limiter) {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_cached());
    assert_eq!(remote.asked(), 2);
    (remote, limiter)
}

async fn check(limiter: &Limiter, cost: u32) -> Decision {
    limiter.check(alice(), cost).await.unwrap()
}

fn age(max_age: Duration) -> DenyCache {
    DenyCache { max_age, ..DenyCache::default() }
}

fn wait(decision: &Decision) -> Duration {
    match decision.retry_after() {
        Wait::For(wait) => wait,
        Wait::Never => Duration::MAX,
    }
}
