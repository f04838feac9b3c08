//! The contract of a decision: one test suite for every backend.

mod answers;
mod calendar_boundaries;
mod cluster;
mod concurrency;
mod edges;
mod gate;
mod history;
mod in_flight;
mod invariants;
mod ledger;
mod memory;
mod memory_changes;
mod memory_eviction;
mod merging;
pub mod model;
mod replay;
mod token_bucket;

use std::{
    cell::{Cell, RefCell},
    convert::identity,
    env,
    time::Duration,
};

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;
use tower_sliding_window::{
    MemoryBackend, PartitionKey, RedisBackend, backend::Backend, testing::ManualClock,
};

use self::history::{History, TwoKeys, histories};
use crate::support::server::{Engine, Server};

/// Runs the given number of generated histories. They differ in each run of the tests. `HISTORIES` sets another number.
fn run_histories(usual: u32, run: impl Fn(History) -> Result<(), TestCaseError>) {
    let cases = env::var("HISTORIES").map_or(usual, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let runs = Cell::new(0_u32);
    let outcome = TestRunner::new(config).run(&histories(160), |history| {
        runs.set(runs.get() + 1);
        run(history)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert!(runs.get() >= cases, "all cases run");
}

/// Checks the invariants on generated histories. `backend` creates a backend with the clock of a history.
fn check_invariants<B: Backend>(
    cases: u32,
    runtime: &Runtime,
    keys: impl Iterator<Item = TwoKeys>,
    backend: impl Fn(&ManualClock) -> B,
) {
    check_changed_histories(cases, runtime, keys, identity, backend);
}

/// Checks the invariants on generated histories, each after a `change`. `backend` creates a backend with the clock of a history.
fn check_changed_histories<B: Backend>(
    cases: u32,
    runtime: &Runtime,
    keys: impl Iterator<Item = TwoKeys>,
    change: impl Fn(History) -> History,
    backend: impl Fn(&ManualClock) -> B,
) {
    let keys = RefCell::new(keys);
    run_histories(cases, |history| {
        let history = change(history);
        // Shrinking repeats a run. It must not find records of an earlier run.
        let keys = [(); 3].map(|()| keys.borrow_mut().next().expect("the sequence is endless"));
        let clock = ManualClock::new();
        runtime.block_on(invariants::check_history(&backend(&clock), &clock, &keys, &history))
    });
}

/// Returns an endless sequence of different partition keys, two at a time.
fn distinct_keys() -> impl Iterator<Item = TwoKeys> {
    (0..).map(|i| ["a", "b"].map(|name| PartitionKey::new("key", format!("{name} {i}"))))
}

#[test]
fn memory_backend_upholds_invariants() {
    let runtime = Runtime::new().unwrap();
    // Clocks go back in these histories, so that an idle key may become active again.
    let keep = Duration::from_secs(10 * 366 * 86_400);
    check_invariants(3_000, &runtime, distinct_keys(), |clock| {
        MemoryBackend::new().with_clock(clock).keep_idle_for(keep)
    });
}

/// The backend removes a key as soon as it is idle. On a clock that never goes back, no decision shows this.
#[test]
fn memory_without_idle_keys_upholds_invariants() {
    let runtime = Runtime::new().unwrap();
    check_changed_histories(1_000, &runtime, distinct_keys(), History::into_forward, |clock| {
        MemoryBackend::new().with_clock(clock).keep_idle_for(Duration::ZERO)
    });
}

fn check_invariants_on(engine: Engine, cases: u32) {
    let server = Server::start(engine);
    let runtime = Runtime::new().unwrap();
    let backend = runtime.block_on(RedisBackend::connect(&server.url())).unwrap();
    check_invariants(cases, &runtime, distinct_keys(), |clock| backend.clone().with_clock(clock));
}

#[test]
fn redis_backend_upholds_invariants() {
    check_invariants_on(Engine::Redis, 400);
}

#[test]
fn redis_6_backend_upholds_invariants() {
    check_invariants_on(Engine::Redis6, 200);
}

#[test]
fn redis_8_backend_upholds_invariants() {
    check_invariants_on(Engine::Redis8, 200);
}

#[test]
fn valkey_backend_upholds_invariants() {
    check_invariants_on(Engine::Valkey, 200);
}
