//! The edge cases of a decision, one test each, on every backend.

mod bounds;
mod calendar_period;
mod changes;
mod every_algorithm;
mod peers;
mod shadow;
mod sliding_log;
mod token_bucket;

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use tokio::runtime::Runtime;
use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    policy::Rate,
    redis::RedisServers,
    testing::ManualClock,
};

use crate::support::{
    cluster::{Cluster, slot},
    server::Engine,
};

const WINDOW: u64 = 10_000;

/// The receipt of a pair without a charge.
const NO_CHARGE: Receipt = Receipt::new(0, 0, 0);

/// A backend on a controlled clock, with short methods for the tests.
pub struct Bench<B> {
    backend: B,
    clock: ManualClock,
    runtime: Runtime,
    key: fn(&str) -> PartitionKey,
}

impl<B> Bench<B> {
    fn new(backend: B, clock: ManualClock) -> Self {
        let key = |name: &str| PartitionKey::new("key", name);
        Self { backend, clock, runtime: Runtime::new().unwrap(), key }
    }

    fn with<C>(self, backend: C) -> Bench<C> {
        Bench { backend, clock: self.clock, runtime: self.runtime, key: self.key }
    }
}

impl<B: Backend> Bench<B> {
    /// Builds a check of these pairs: key, policy and cost.
    fn build_check(&self, pairs: &[(&str, &Policy, u32)]) -> Check {
        let pair =
            |(key, policy, cost): &(&str, &Policy, u32)| Pair::new((self.key)(key), (*policy).clone(), *cost);
        Check::new(pairs.iter().map(pair).collect::<Vec<_>>()).unwrap()
    }

    #[track_caller]
    fn run_check(&self, check: &Check) -> Decision {
        self.runtime.block_on(self.backend.check(check)).unwrap()
    }

    #[track_caller]
    fn check(&self, pairs: &[(&str, &Policy, u32)]) -> Decision {
        self.run_check(&self.build_check(pairs))
    }

    #[track_caller]
    fn check_as(&self, purpose: Purpose, pairs: &[(&str, &Policy, u32)]) -> Decision {
        self.run_check(&self.build_check(pairs).with_purpose(purpose))
    }

    #[track_caller]
    fn used(&self, key: &str, policy: &Policy) -> u32 {
        policy.quota().unwrap() - self.check(&[(key, policy, 0)]).statuses()[0].remaining()
    }

    /// Reserves one pair, and returns what `settle` needs.
    #[track_caller]
    fn reserve(&self, key: &str, policy: &Policy, cost: u32) -> (Check, Vec<Receipt>) {
        let check = self.build_check(&[(key, policy, cost)]).with_purpose(Purpose::Reserve);
        let decision = self.run_check(&check);
        assert!(decision.is_admitted(), "{decision:?}");
        (check, decision.receipts().to_vec())
    }

    /// Settles a reservation with the used units of each pair.
    #[track_caller]
    fn settle(&self, (check, receipts): &(Check, Vec<Receipt>), used: &[u32]) {
        if let Some(refund) = Refund::new(check, receipts, used) {
            let at = self.runtime.block_on(self.backend.refund(&refund)).unwrap();
            assert_eq!(at, self.clock.now_micros(), "the instant of the refund");
        }
        if let Some(overage) = check.overage(used) {
            assert!(self.run_check(&overage).is_admitted(), "an overage is always admitted");
        }
    }

    #[track_caller]
    fn reset(&self, pairs: &[(&str, &Policy, u32)]) {
        self.runtime.block_on(self.backend.reset(&self.build_check(pairs))).unwrap();
    }

    /// Asserts that a wait is exact: a check is denied one microsecond before its end, and admitted at its end. The clock
    /// stays at the end of the wait.
    #[track_caller]
    fn assert_exact_wait(&self, key: &str, policy: &Policy, cost: u32) -> u64 {
        let Wait::For(wait) = self.check(&[(key, policy, cost)]).retry_after() else {
            panic!("no wait helps")
        };
        self.move_clock(wait.as_micros() as i64 - 1);
        assert!(
            !self.admits(key, policy, cost),
            "{policy:?}: a cost of {cost} is admitted 1 us before the end of its wait of {wait:?}"
        );
        self.move_clock(1);
        assert!(
            self.admits(key, policy, cost),
            "{policy:?}: a cost of {cost} is denied at the end of its wait of {wait:?}"
        );
        wait.as_micros() as u64
    }

    #[track_caller]
    fn admits(&self, key: &str, policy: &Policy, cost: u32) -> bool {
        self.check(&[(key, policy, cost)]).is_admitted()
    }

    /// Moves the clock by this number of microseconds, forward or backward.
    fn move_clock(&self, micros: i64) {
        self.clock.set_micros(self.clock.now_micros().saturating_add_signed(micros));
    }

    /// Moves the clock to the next multiple of a length, and then by `further` microseconds.
    fn move_clock_to_edge(&self, of: u64, further: i64) {
        let edge = (self.clock.now_micros() / of + 1) * of;
        self.clock.set_micros(edge.saturating_add_signed(further));
    }
}

/// Defines tests that run on every backend.
macro_rules! edges {
    ($($name:ident: |$bench:ident| $body:block)*) => {
        $(
            fn $name<B: tower_sliding_window::backend::Backend>($bench: &$crate::contract::edges::Bench<B>) $body
        )*

        mod memory {
            use tower_sliding_window::{MemoryBackend, testing::ManualClock};

            $(
                #[test]
                fn $name() {
                    let clock = ManualClock::new();
                    let keep = std::time::Duration::from_secs(3_600);
                    let backend = MemoryBackend::new().with_clock(&clock).keep_idle_for(keep);
                    super::$name(&$crate::contract::edges::Bench::new(backend, clock));
                }
            )*
        }

        pub mod cluster {
            /// Runs all tests of this file, one after the other.
            pub fn run<B: tower_sliding_window::backend::Backend>(fresh: impl Fn() -> $crate::contract::edges::Bench<B>) {
                $(
                    // The test output shows the name if the test fails.
                    println!(stringify!($name));
                    super::$name(&fresh());
                )*
            }
        }

        mod servers {
            use tower_sliding_window::{RedisBackend, testing::ManualClock};
            use $crate::{contract::edges::Bench, support::server::{Engine, Server}};

            $(
                #[test]
                fn $name() {
                    for engine in Engine::ALL {
                        // The test output shows the engine if the test fails.
                        println!("{engine:?}");
                        let server = Server::start(engine);
                        let clock = ManualClock::new();
                        let bench = Bench::new((), clock.clone());
                        let connected = bench.runtime.block_on(RedisBackend::connect(&server.url()));
                        super::$name(&bench.with(connected.unwrap().with_clock(&clock)));
                    }
                }
            )*
        }
    };
}
use edges;

/// Runs every edge test. `backend` returns an empty backend with this clock.
pub fn run_all<B: Backend>(backend: impl Fn(&Runtime, &ManualClock) -> B) {
    let fresh = || {
        let bench = Bench::new((), ManualClock::new());
        let backend = backend(&bench.runtime, &bench.clock);
        bench.with(backend)
    };
    run_with(fresh);
}

fn run_with<B: Backend>(fresh: impl Fn() -> Bench<B>) {
    bounds::cluster::run(&fresh);
    calendar_period::cluster::run(&fresh);
    changes::cluster::run(&fresh);
    every_algorithm::cluster::run(&fresh);
    peers::cluster::run(&fresh);
    shadow::cluster::run(&fresh);
    sliding_log::cluster::run(&fresh);
    token_bucket::cluster::run(&fresh);
}

/// Runs every edge test with an empty cluster. All keys are in one slot, because across slots a denial may leave a trace.
#[test]
fn cluster_passes_all_edges_in_one_slot() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        let fresh = || {
            cluster.flush();
            let clock = ManualClock::new();
            let bench = Bench { key: in_one_slot, ..Bench::new((), clock.clone()) };
            let connection = bench.runtime.block_on(cluster.connection());
            bench.with(
                RedisBackend::builder(RedisServers::connection(connection))
                    .lazy()
                    .unwrap()
                    .with_clock(&clock),
            )
        };
        println!("{engine:?}");
        run_with(fresh);
    }
}

/// Returns a key that begins with this name, in the common slot of all keys.
fn in_one_slot(name: &str) -> PartitionKey {
    static KEYS: Mutex<BTreeMap<String, PartitionKey>> = Mutex::new(BTreeMap::new());
    let find = || {
        let mut keys = (0..).map(|i| PartitionKey::new("key", format!("{name} {i}")));
        keys.find(|key| slot(key) == 0).expect("the sequence is endless")
    };
    KEYS.lock().unwrap().entry(name.to_owned()).or_insert_with(find).clone()
}

fn policy(name: &str, quota: u32) -> Policy {
    Policy::new(name, quota, micros(WINDOW)).unwrap()
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn wait_of(micros: u64) -> Wait {
    Wait::For(Duration::from_micros(micros))
}

const PRECISION: u64 = 3_000;

/// Returns one policy for every algorithm, all of one window. The window is no multiple of the bucket length.
fn every_policy(name: &str, quota: u32) -> [Policy; 5] {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision: micros(PRECISION) },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        // A full quota returns in one window.
        Algorithm::TokenBucket { rate: Rate::new(quota, micros(WINDOW)) },
    ];
    algorithms.map(|algorithm| policy(name, quota).with_algorithm(algorithm).unwrap())
}
