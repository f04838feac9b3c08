//! The deny cache: hits, misses, refreshes and invalidation.

mod configuration;
mod history;
mod hits;
mod invalidation;
mod misses;
mod outages;
mod waits;
mod wire;

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Decision, Limiter, LimiterBuilder, MemoryBackend, PartitionKey, Policy, Wait,
    backend::{Backend, BackendError, Check, Pair, Purpose, Reason, Refund},
    outage::DenyCacheConfig,
    testing::ManualClock,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const ZERO: Duration = Duration::ZERO;
/// The resolution of tokio's timer.
const TICK: Duration = Duration::from_millis(1);
/// The age at which one check refreshes an entry: seven eighths of the default maximum age.
const REFRESH_AGE: Duration = Duration::from_millis(875);

/// A simulated remote store on tokio's clock. It adds latency, injects faults and records its checks.
#[derive(Clone)]
struct Remote {
    memory: MemoryBackend,
    clock: ManualClock,
    began: (Instant, u64),
    settings: Arc<Mutex<Settings>>,
    /// By how much the clock of the store has been stepped, in microseconds.
    stepped: Arc<AtomicI64>,
}

#[derive(Default)]
struct Settings {
    checks: Vec<(Purpose, u32)>,
    /// The latencies of the request and of the reply of a check.
    check_latency: [Duration; 2],
    /// The latencies of the request and of the reply of a refund or reset.
    change_latency: [Duration; 2],
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
        Self { memory, clock, began, settings: Arc::default(), stepped: Arc::default() }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of checks that the store has received, of every purpose.
    fn checks(&self) -> usize {
        self.settings().checks.len()
    }

    fn fail(&self, fault: impl Into<Option<Fault>>) {
        self.settings().fault = fault.into();
    }

    fn set_check_latency(&self, request: Duration, reply: Duration) {
        self.settings().check_latency = [request, reply];
    }

    fn set_change_latency(&self, request: Duration, reply: Duration) {
        self.settings().change_latency = [request, reply];
    }

    /// Returns the store at the current instant.
    fn now(&self) -> &MemoryBackend {
        let (start, micros) = self.began;
        let micros = micros.saturating_add_signed(self.stepped.load(Ordering::Relaxed));
        self.clock.set_micros(micros + start.elapsed().as_micros() as u64);
        &self.memory
    }

    /// Steps the clock of the store forward or back.
    fn step_clock(&self, millis: i64) {
        self.stepped.fetch_add(1_000 * millis, Ordering::Relaxed);
    }

    /// Resets the key of these policies, as another process does.
    async fn reset_by_other_process(&self, policies: &[Policy]) {
        let pairs: Vec<_> = policies.iter().map(|policy| Pair::new(alice(), policy.clone(), 0)).collect();
        self.now().reset(&Check::new(pairs).unwrap()).await.unwrap();
    }

    async fn fault(&self) -> Result<(), BackendError> {
        let fault = self.settings().fault;
        match fault {
            None => Ok(()),
            Some(Fault::Down) => Err(BackendError::new(Reason::Connection)),
            Some(Fault::Hang) => pending().await,
            Some(Fault::Panic) => panic!("an injected fault"),
        }
    }
}

impl Backend for Remote {
    async fn check(&self, check: &Check) -> Result<Decision, BackendError> {
        self.settings().checks.push((check.purpose(), check.pairs()[0].cost));
        let [request, reply] = self.settings().check_latency;
        delay(request).await;
        self.fault().await?;
        let decision = self.now().check(check).await;
        delay(reply).await;
        decision
    }

    fn changes_charges(&self) -> bool {
        true
    }

    async fn refund(&self, refund: &Refund) -> Result<u64, BackendError> {
        let [request, reply] = self.settings().change_latency;
        delay(request).await;
        self.fault().await?;
        let done = self.now().refund(refund).await;
        delay(reply).await;
        done
    }

    async fn reset(&self, pairs: &Check) -> Result<(), BackendError> {
        let [request, reply] = self.settings().change_latency;
        delay(request).await;
        self.fault().await?;
        let done = self.now().reset(pairs).await;
        delay(reply).await;
        done
    }

    fn denials_hold(&self) -> bool {
        true
    }

    fn store(&self) -> Option<String> {
        Some(format!("remote {:p}", Arc::as_ptr(&self.settings)))
    }
}

/// Waits for a latency. A zero latency does not sleep, because a sleep ends at a whole millisecond.
async fn delay(latency: Duration) {
    if !latency.is_zero() {
        sleep(latency).await;
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

/// Returns a limiter of ten units per minute and its store.
fn remote() -> (Remote, Limiter) {
    let remote = Remote::new();
    let limiter = on(remote.clone()).build().unwrap();
    (remote, limiter)
}

/// Returns a limiter with a cached denial: Alice has used all units, and one more check was denied. The store has received two
/// checks.
async fn exhausted() -> (Remote, Limiter) {
    let (remote, limiter) = remote();
    assert!(check(&limiter, 10).await.is_admitted());
    assert!(!check(&limiter, 1).await.is_cached());
    assert_eq!(remote.checks(), 2);
    (remote, limiter)
}

async fn check(limiter: &Limiter, cost: u32) -> Decision {
    limiter.check((alice(), cost)).await.unwrap()
}

fn with_max_age(max_age: Duration) -> DenyCacheConfig {
    DenyCacheConfig::new(max_age, DenyCacheConfig::default().max_entries)
}

fn wait(decision: &Decision) -> Duration {
    match decision.retry_after() {
        Wait::For(wait) => wait,
        _ => Duration::MAX,
    }
}
