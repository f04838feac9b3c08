//! What a decision means: one suite, every backend.

mod account;
mod again;
mod concurrency;
mod edges;
mod history;
mod invariants;
mod ledger;
mod memory;
mod memory_changes;
pub mod model;

use std::cell::Cell;

use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use tower_sliding_window::{Backend, ManualClock, MemoryBackend, RedisBackend};

use self::history::histories;
use crate::support::server::{Engine, Server};

/// Runs so many generated histories against backends that `backend` makes of a clock.
fn invariants_hold<B: Backend>(cases: u32, runtime: &Runtime, backend: impl Fn(&ManualClock) -> B) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let runs = Cell::new(0_u32);
    let ran = TestRunner::new(config).run(&histories(160), |history| {
        // Shrinking runs again, and must not meet what an earlier run has stored.
        runs.set(runs.get() + 1);
        let clock = ManualClock::new();
        runtime.block_on(invariants::hold(&backend(&clock), &clock, &format!("{}", runs.get()), &history))
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    assert!(runs.get() >= cases);
}

#[test]
fn the_invariants_hold_in_memory() {
    let runtime = Runtime::new().unwrap();
    // Clocks go back in these histories, and a key that is idle may be in use again.
    let keep = std::time::Duration::from_secs(10 * 366 * 86_400);
    invariants_hold(10_000, &runtime, |clock| MemoryBackend::new().with_clock(clock).keep_idle_for(keep));
}

fn the_invariants_hold_on(engine: Engine, cases: u32) {
    let server = Server::start(engine);
    let runtime = Runtime::new().unwrap();
    let backend = runtime.block_on(RedisBackend::connect(&server.url())).unwrap();
    invariants_hold(cases, &runtime, |clock| backend.clone().with_clock(clock));
}

#[test]
fn the_invariants_hold_on_redis() {
    the_invariants_hold_on(Engine::Redis, 1_000);
}

#[test]
fn the_invariants_hold_on_valkey() {
    the_invariants_hold_on(Engine::Valkey, 200);
}
