//! The gate against a model: the latest instant until which a key is blocked.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_sliding_window::{
    Costs, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Pair, Reason},
    testing::ManualClock,
};

use crate::{
    http::SECOND,
    redis_server::rig::{HOUR, Random},
    support::server::{Engine, Server},
};

const QUOTA: usize = 5;
const UNIT: u64 = 10_000;
const LONGEST: u64 = 366 * 86_400 * 1_000_000;

/// What a key has used, and until when it is blocked, in microseconds.
#[derive(Default)]
struct Key {
    charges: Vec<u64>,
    until: u64,
}

impl Key {
    /// Returns the waits of the quota and of the gate.
    fn waits(&mut self, now: u64, gate_cost: u32) -> [Duration; 2] {
        self.charges.retain(|at| at + 1_000_000 > now);
        let quota = self.charges.len().checked_sub(QUOTA).map_or(0, |i| self.charges[i] + 1_000_000 - now);
        let gate = if gate_cost > 0 { self.until.saturating_sub(now) } else { 0 };
        [quota, gate].map(Duration::from_micros)
    }
}

fn limiter(backend: impl Backend) -> Limiter {
    let policies = Limiter::builder(backend)
        .policy(Policy::new("requests", QUOTA as u32, SECOND).unwrap())
        .policy(Policy::gate("stopped").unwrap());
    // A busy machine exceeds the default deadline of 100 ms.
    policies.deny_cache(None).deadline(20 * SECOND).build().unwrap()
}

async fn compare(backend: impl Backend, clock: &ManualClock, steps: u64) {
    let (limiter, mut random) = (limiter(backend), Random(7));
    let mut keys = [(); 3].map(|()| Key::default());
    let mut seen = [0; 4];
    for step in 0..steps {
        clock.set_micros(clock.now_micros() + random.below(100_000));
        let (index, now) = (random.below(3), clock.now_micros());
        let (key, model) = (PartitionKey::new("user", index.to_string()), &mut keys[index as usize]);
        match random.below(12) {
            0 => {
                let longest = [1, 3_000_000, 2 * LONGEST][random.below(3).min(2) as usize];
                let asked = random.below(longest) + 1;
                limiter.block(key, Duration::from_micros(asked)).await.unwrap();
                model.until = model.until.max(now + asked.next_multiple_of(UNIT).min(LONGEST));
            }
            1 => {
                limiter.unblock(key).await.unwrap();
                model.until = 0;
            }
            2 => {
                // A reset of the usage leaves the gate as it is.
                limiter.reset(key).await.unwrap();
                model.charges.clear();
            }
            other => {
                let gate_cost = [0, 1, 7][random.below(3) as usize];
                let draft = (key, Costs::new().policy("stopped", gate_cost));
                let waits = model.waits(now, gate_cost);
                let is_peek = other == 3;
                let decision =
                    if is_peek { limiter.peek(draft).await } else { limiter.check(draft).await }.unwrap();
                let stated: Vec<_> = decision.statuses().iter().map(|status| status.retry_after()).collect();
                assert_eq!(stated, waits.map(Wait::For), "step {step}");
                let blocked = Duration::from_micros(model.until.saturating_sub(now));
                let gate = &decision.statuses()[1];
                assert_eq!([gate.next_after(), gate.reset_after()], [blocked; 2], "step {step}");
                assert_eq!(gate.quota(), None);
                let is_admitted = waits == [Duration::ZERO; 2];
                seen[usize::from(!waits[0].is_zero()) + 2 * usize::from(!waits[1].is_zero())] += 1;
                if is_admitted && !is_peek {
                    model.charges.push(now);
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "each combination of waits is seen: {seen:?}");
}

#[test]
fn memory_gate_equals_model() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    Runtime::new().unwrap().block_on(compare(backend, &clock, 50_000));
}

#[test]
fn redis_gate_equals_model() {
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
            compare(backend, &clock, 3_000).await;
        });
    }
}

async fn assert_edges(backend: impl Backend, clock: &ManualClock) {
    let limiter = limiter(backend);
    let alice = || PartitionKey::new("user", "alice");
    let gate_wait = async || limiter.peek(alice()).await.unwrap().statuses()[1].retry_after();

    // A reservation neither charges a gate nor refunds to it.
    let reservation = limiter.reserve((alice(), 2)).await.unwrap();
    reservation.settle(0).await;
    let reservation = limiter.reserve((alice(), 2)).await.unwrap();
    reservation.settle(4).await;
    assert_eq!(gate_wait().await, Wait::ZERO);
    assert_eq!(limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining(), 1);

    // A shadow gate blocks no request, and states that it would.
    limiter.block(alice(), SECOND).await.unwrap();
    let pairs = || {
        let enforced = Pair::new(alice(), Policy::new("requests", 5, SECOND).unwrap(), 0);
        vec![enforced, Pair::new(alice(), Policy::gate("stopped").unwrap(), 1).shadow()]
    };
    let decision = limiter.check(pairs()).await.unwrap();
    assert!(decision.is_admitted());
    assert_eq!(decision.statuses()[1].retry_after(), Wait::For(SECOND));

    // A clock that is behind does not lengthen a block beyond its instant. One that is far behind knows of none.
    clock.set_micros(clock.now_micros() - 1_000_000);
    assert_eq!(gate_wait().await, Wait::For(2 * SECOND));
    clock.set_micros(clock.now_micros() + 1_999_999);
    assert_eq!(gate_wait().await, Wait::For(Duration::from_micros(1)));
    clock.set_micros(clock.now_micros() + 1);
    assert_eq!(gate_wait().await, Wait::ZERO);
    limiter.block(alice(), Duration::MAX).await.unwrap();
    assert_eq!(gate_wait().await, Wait::For(Duration::from_micros(LONGEST)));
    clock.set_micros(clock.now_micros() - LONGEST);
    assert_eq!(gate_wait().await, Wait::For(Duration::from_micros(2 * LONGEST)));
    clock.set_micros(clock.now_micros() - 1);
    assert_eq!(gate_wait().await, Wait::ZERO);

    let error = limiter.block(vec![pairs().swap_remove(0)], SECOND).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Misconfigured);
    assert!(format!("{error:?}").contains(r#"["requests"]: it must be at least one gate"#), "{error:?}");
}

#[test]
fn gate_has_stated_edges() {
    let runtime = Runtime::new().unwrap();
    let clock = ManualClock::new();
    runtime.block_on(assert_edges(MemoryBackend::new().with_clock(&clock), &clock));
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        runtime.block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
            assert_edges(backend, &clock).await;
        });
    }
}

/// A block of one process reaches the requests of another one, and the end of a block that of its own.
#[tokio::test]
async fn block_reaches_other_process() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiters = [(); 2].map(|()| {
            let backend = RedisBackend::lazy(&server.url()).unwrap();
            let builder = Limiter::builder(backend).policy(Policy::gate("stopped").unwrap());
            builder.deadline(20 * SECOND).build().unwrap()
        });
        let [operator, service] = &limiters;
        let alice = || PartitionKey::new("user", "alice");
        assert!(service.check(alice()).await.unwrap().is_admitted());
        operator.block(alice(), HOUR).await.unwrap();
        assert!(!service.check(alice()).await.unwrap().is_admitted());
        assert!(!operator.check(alice()).await.unwrap().is_admitted());
        let bob = service.check(PartitionKey::new("user", "bob")).await.unwrap();
        assert!(bob.is_admitted(), "{bob:?}");
        service.unblock(alice()).await.unwrap();
        assert!(service.check(alice()).await.unwrap().is_admitted(), "no denial is cached");
    }
}
