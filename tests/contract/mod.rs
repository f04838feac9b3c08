//! What a decision means: one suite, every backend.

mod account;
mod again;
mod cluster;
mod concurrency;
mod edges;
mod history;
mod invariants;
mod ledger;
mod memory;
mod memory_changes;
pub mod model;

use std::cell::{Cell, RefCell};

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;
use tower_sliding_window::{
    MemoryBackend, PartitionKey, RedisBackend, backend::Backend, testing::ManualClock,
};

use self::history::{Couple, History, histories};
use crate::support::server::{Engine, Server};

/// Runs so many generated histories.
fn of_histories(cases: u32, run: impl Fn(History) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let runs = Cell::new(0_u32);
    let ran = TestRunner::new(config).run(&histories(160), |history| {
        runs.set(runs.get() + 1);
        run(history)
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    assert!(runs.get() >= cases);
}

/// Runs so many of them against backends that `backend` makes of a clock, with partition keys of these.
fn invariants_hold<B: Backend>(
    cases: u32,
    runtime: &Runtime,
    couples: impl Iterator<Item = Couple>,
    backend: impl Fn(&ManualClock) -> B,
) {
    let couples = RefCell::new(couples);
    of_histories(cases, |history| {
        // Shrinking runs again, and must not meet what an earlier run has stored.
        let couples = [(); 3].map(|()| couples.borrow_mut().next().expect("keys without end"));
        let clock = ManualClock::new();
        runtime.block_on(invariants::hold(&backend(&clock), &clock, &couples, &history))
    });
}

/// Different partition keys without end, two by two.
fn couples() -> impl Iterator<Item = Couple> {
    (0..).map(|i| ["a", "b"].map(|name| PartitionKey::new("key", format!("{name} {i}"))))
}

#[test]
fn the_invariants_hold_in_memory() {
    let runtime = Runtime::new().unwrap();
    // Clocks go back in these histories, and a key that is idle may be in use again.
    let keep = std::time::Duration::from_secs(10 * 366 * 86_400);
    invariants_hold(10_000, &runtime, couples(), |clock| {
        MemoryBackend::new().with_clock(clock).keep_idle_for(keep)
    });
}

fn the_invariants_hold_on(engine: Engine, cases: u32) {
    let server = Server::start(engine);
    let runtime = Runtime::new().unwrap();
    let backend = runtime.block_on(RedisBackend::connect(&server.url())).unwrap();
    invariants_hold(cases, &runtime, couples(), |clock| backend.clone().with_clock(clock));
}

#[test]
fn the_invariants_hold_on_redis() {
    the_invariants_hold_on(Engine::Redis, 1_000);
}

#[test]
fn the_invariants_hold_on_redis_6() {
    the_invariants_hold_on(Engine::Redis6, 200);
}

#[test]
fn the_invariants_hold_on_valkey() {
    the_invariants_hold_on(Engine::Valkey, 200);
}
