//! Policies in flight against a model: the units that live decisions hold.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_sliding_window::{
    Costs, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Pair, Reason},
    testing::ManualClock,
};

use crate::{
    http::SECOND,
    redis_server::rig::{Random, wait_until},
    support::server::{Engine, Server},
};

const QUOTA: u32 = 5;
const RATE: usize = 8;

/// What a key holds, and what it has used of the rate.
#[derive(Default)]
struct Key {
    live: Vec<(u32, Decision)>,
    charges: Vec<u64>,
}

impl Key {
    fn held(&self) -> u32 {
        self.live.iter().map(|(cost, _)| cost).sum()
    }
}

fn limiter(backend: impl Backend, hold_time: Duration) -> Limiter {
    limiter_of(backend, QUOTA, hold_time)
}

fn limiter_of(backend: impl Backend, quota: u32, hold_time: Duration) -> Limiter {
    let exports = Policy::in_flight("exports", quota).unwrap().hold_time(hold_time).unwrap();
    let policies = Limiter::builder(backend)
        .policy(Policy::new("requests", RATE as u32, SECOND).unwrap())
        .policy(exports)
        .deadline(SECOND);
    policies.deny_cache(None).build().unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("user", "alice")
}

/// Acquires, releases, peeks and resets at random. Every decision is that of the model.
async fn compare(backend: impl Backend, clock: &ManualClock, steps: u64) {
    let (limiter, mut random) = (limiter(backend, 30 * SECOND), Random(7));
    let mut keys = [(); 3].map(|()| Key::default());
    let (mut admitted, mut denied) = (0, 0);
    for step in 0..steps {
        // Less than the hold time in all, because the renewals have a clock of their own.
        clock.set_micros(clock.now_micros() + random.below(20_000_000 / steps));
        let index = random.below(3);
        let (key, now) = (PartitionKey::new("user", index.to_string()), clock.now_micros());
        let model = &mut keys[index as usize];
        match random.below(8) {
            0..3 if !model.live.is_empty() => {
                let ended = random.below(model.live.len() as u64) as usize;
                drop(model.live.swap_remove(ended));
                limiter.drain().await;
            }
            3 => {
                limiter.reset(key).await.unwrap();
                model.charges.clear();
            }
            action => {
                let cost = [0, 1, 1, 2, QUOTA, QUOTA + 1][random.below(6) as usize];
                model.charges.retain(|at| at + 1_000_000 > now);
                let held = model.held();
                let draft = (key, Costs::new().policy("exports", cost).policy("requests", 1));
                let is_peek = action == 4;
                let decision =
                    if is_peek { limiter.peek(draft).await } else { limiter.check(draft).await }.unwrap();
                let has_room = model.charges.len() < RATE;
                let expected = match cost {
                    0 => Wait::ZERO,
                    cost if cost > QUOTA => Wait::Never,
                    cost if held + cost > QUOTA => Wait::Unknown,
                    _ => Wait::ZERO,
                };
                let status = &decision.statuses()[1];
                assert_eq!(status.retry_after(), expected, "step {step}");
                let is_admitted = has_room && expected.is_zero();
                assert_eq!(decision.is_admitted(), is_admitted, "step {step}");
                let after = held + if is_admitted { cost } else { 0 };
                assert_eq!(status.remaining(), QUOTA - after.min(QUOTA), "step {step}");
                assert_eq!([status.next_after(), status.reset_after()], [Duration::ZERO; 2]);
                assert_eq!(decision.hold().is_some(), is_admitted && cost > 0 && !is_peek, "step {step}");
                if expected == Wait::Unknown && has_room {
                    assert_eq!(decision.retry_after(), Wait::For(SECOND));
                }
                if is_admitted && !is_peek {
                    model.charges.push(now);
                    model.live.push((cost, decision));
                }
                if is_admitted { admitted += 1 } else { denied += 1 }
            }
        }
    }
    assert!(admitted > steps / 10 && denied > steps / 10, "{admitted} admitted, {denied} denied");
}

#[test]
fn memory_units_in_flight_equal_model() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock);
    Runtime::new().unwrap().block_on(compare(backend, &clock, 100_000));
}

#[test]
fn redis_units_in_flight_equal_model() {
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
            compare(backend, &clock, 2_000).await;
        });
    }
}

/// Returns how many units of alice remain.
async fn remaining(limiter: &Limiter) -> u32 {
    let draft = (alice(), Costs::new().policy("exports", 1).policy("requests", 0));
    let decision = limiter.peek(draft).await.unwrap();
    let status = &decision.statuses()[1];
    if status.retry_after().is_zero() { status.remaining() + 1 } else { 0 }
}

async fn hold(limiter: &Limiter, units: u32) -> Decision {
    let draft = (alice(), Costs::new().policy("exports", units).policy("requests", 0));
    limiter.check(draft).await.unwrap()
}

async fn assert_edges(backend: impl Backend) {
    let limiter = limiter(backend, 30 * SECOND);
    // A clone holds as long as the first.
    let first = hold(&limiter, 2).await;
    let clone = first.hold().unwrap().clone();
    drop(first);
    limiter.drain().await;
    assert_eq!(remaining(&limiter).await, QUOTA - 2);
    assert!(!clone.was_interrupted());
    // A reset and a settlement leave held units as they are.
    limiter.reset(alice()).await.unwrap();
    let reservation = limiter.reserve((alice(), 1)).await.unwrap();
    reservation.settle(0).await;
    limiter.drain().await;
    assert_eq!(remaining(&limiter).await, QUOTA - 3, "a settled request still runs");
    let error = limiter.reserve((alice(), 1)).await.unwrap().into_token().unwrap_err();
    assert!(error.to_string().contains("exports"), "{error}");
    drop(reservation);
    limiter.drain().await;
    assert_eq!(remaining(&limiter).await, QUOTA - 2);
    // What is used beyond the quota is not held.
    let _ = limiter.debit((alice(), 1)).await.unwrap();
    assert_eq!(remaining(&limiter).await, QUOTA - 2);
    // As many as fit.
    let costs = Costs::new().policy("requests", 0).policy("exports", 1);
    let (units, taken) = limiter.take_up_to((alice(), costs), 9).await.unwrap();
    assert_eq!(units, 3);
    assert_eq!(remaining(&limiter).await, 0);
    drop(taken);
    drop(clone);
    limiter.drain().await;
    assert_eq!(remaining(&limiter).await, QUOTA);
}

#[test]
fn memory_units_in_flight_have_edges() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(assert_edges(MemoryBackend::new()));
}

#[test]
fn redis_units_in_flight_have_edges() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        Runtime::new().unwrap().block_on(async {
            assert_edges(RedisBackend::connect(&server.url()).await.unwrap()).await;
        });
    }
}

/// A shadow pair in flight counts, denies nothing, and holds what it has charged: alone, and beside an enforcing pair.
async fn assert_shadow(backend: impl Backend) {
    let builder = Limiter::builder(backend).without_policies().deadline(SECOND);
    let limiter = builder.deny_cache(None).build().unwrap();
    let requests = Pair::new(alice(), Policy::new("requests", 100, SECOND).unwrap(), 1);
    let exports = Policy::in_flight("exports", 2).unwrap();
    for others in [vec![], vec![requests]] {
        let check = async |units| {
            let shadow = Pair::new(alice(), exports.clone(), units).shadow();
            let pairs: Vec<Pair> = others.iter().cloned().chain([shadow]).collect();
            let decision = limiter.check(pairs).await.unwrap();
            assert!(decision.is_admitted(), "{decision:?}");
            let remaining = decision.statuses().last().unwrap().remaining();
            (remaining, decision.shadow_denied().count(), decision)
        };
        let (remaining, denied, held) = check(2).await;
        assert_eq!((remaining, denied, held.hold().is_some()), (0, 0, true), "{others:?}");
        let (remaining, denied, unheld) = check(1).await;
        assert_eq!((remaining, denied, unheld.hold().is_some()), (0, 1, false), "{others:?}");
        drop(held);
        limiter.drain().await;
        let (remaining, denied, _) = check(0).await;
        assert_eq!((remaining, denied), (2, 0), "{others:?}: all units are released");
    }
}

#[test]
fn memory_shadow_pair_in_flight_holds_its_units() {
    Runtime::new().unwrap().block_on(assert_shadow(MemoryBackend::new()));
}

#[test]
fn redis_shadow_pair_in_flight_holds_its_units() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        Runtime::new().unwrap().block_on(async {
            assert_shadow(RedisBackend::connect(&server.url()).await.unwrap()).await;
        });
    }
}

async fn wait_until_remaining(limiter: &Limiter, units: u32) {
    let end = tokio::time::Instant::now() + 10 * SECOND;
    while remaining(limiter).await != units {
        assert!(tokio::time::Instant::now() < end, "{units} units must remain, and the others be restored");
        tokio::time::sleep(SECOND / 50).await;
    }
}

#[test]
fn flushed_units_are_restored() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap();
            let limiter = limiter(backend.clone(), SECOND);
            let held = hold(&limiter, 3).await;
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            assert_eq!(remaining(&limiter).await, QUOTA);
            let is_restored = || backend.interrupted_units() == 1;
            wait_until("a lost unit must be found within a third of the hold time", is_restored).await;
            wait_until_remaining(&limiter, QUOTA - 3).await;
            assert!(held.hold().unwrap().was_interrupted());
            // It lives longer than a hold time, and not longer than its request.
            tokio::time::sleep(3 * SECOND / 2).await;
            assert_eq!(remaining(&limiter).await, QUOTA - 3);
            drop(held);
            limiter.drain().await;
            assert_eq!(remaining(&limiter).await, QUOTA);
        });
    }
}

/// After a failover to an older replica, the store has units of requests that have ended. The next charge of their process drops them.
#[test]
fn charge_drops_units_of_an_older_replica() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        Runtime::new().unwrap().block_on(async {
            let limiter = limiter(RedisBackend::connect(&server.url()).await.unwrap(), 30 * SECOND);
            let held = hold(&limiter, 3).await;
            let mut connection = server.connection();
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
            let values: Vec<Vec<u8>> = redis::cmd("MGET").arg(&keys).query(&mut connection).unwrap();
            drop(held);
            limiter.drain().await;
            assert_eq!(remaining(&limiter).await, QUOTA);
            for (key, value) in keys.iter().zip(values) {
                redis::cmd("SET").arg(key).arg(value).arg("PX").arg(60_000).exec(&mut connection).unwrap();
            }
            assert_eq!(remaining(&limiter).await, QUOTA - 3);
            let next = hold(&limiter, 1).await;
            assert_eq!(remaining(&limiter).await, QUOTA - 1);
            drop(next);
            limiter.drain().await;
            assert_eq!(remaining(&limiter).await, QUOTA);
        });
    }
}

/// More numbers than a new key has room for; then the key of the numbers is lost alone.
#[test]
fn lost_numbers_are_restored() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap();
            let limiter = limiter_of(backend, 100, 3 * SECOND);
            let mut held = Vec::new();
            for units in 1..=30 {
                held.push(hold(&limiter, 1).await);
                assert_eq!(remaining(&limiter).await, 100 - units);
            }
            let mut connection = server.connection();
            let keys: Vec<String> = redis::cmd("KEYS").arg("*=*").query(&mut connection).unwrap();
            assert_eq!(keys.len(), 1, "{keys:?}");
            redis::cmd("DEL").arg(&keys).exec(&mut connection).unwrap();
            held.push(hold(&limiter, 1).await);
            assert_eq!(remaining(&limiter).await, 99, "what is known to be held");
            wait_until_remaining(&limiter, 69).await;
            drop(held);
            limiter.drain().await;
            assert_eq!(remaining(&limiter).await, 100);
        });
    }
}

/// The clock of the server passes by a hold time while this process does not renew, as if it was stopped.
#[test]
fn units_of_stopped_process_return_and_come_back() {
    let (server, clock) = (Server::start(Engine::Redis), ManualClock::new());
    Runtime::new().unwrap().block_on(async {
        let connect = async || RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
        let (stopped, other) = (connect().await, connect().await);
        let (of_stopped, of_other) = (limiter(stopped.clone(), 3 * SECOND), limiter(other, 3 * SECOND));
        let held = hold(&of_stopped, QUOTA).await;
        clock.set_micros(clock.now_micros() + 2_999_999);
        assert!(!hold(&of_other, 1).await.is_admitted());
        clock.set_micros(clock.now_micros() + 1);
        assert_eq!(remaining(&of_other).await, QUOTA);
        let running = hold(&of_other, 1).await;
        assert!(running.is_admitted());
        wait_until("the renewal finds that its entry has ended", || stopped.interrupted_units() == 1).await;
        wait_until_remaining(&of_other, 0).await;
        assert!(held.hold().unwrap().was_interrupted());
        assert!(!running.hold().unwrap().was_interrupted());
        drop(held);
        of_stopped.drain().await;
        assert_eq!(remaining(&of_other).await, QUOTA - 1);
    });
}

/// A reload shortens the hold time. Until the next renewal or charge, the entry has the time of the earlier one.
#[test]
fn shorter_hold_time_interrupts_no_unit() {
    let server = Server::start(Engine::Redis);
    Runtime::new().unwrap().block_on(async {
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        let limiter = Limiter::builder(backend).without_policies().deadline(SECOND).build().unwrap();
        let check = async |hold_time| {
            let exports = Policy::in_flight("exports", 1).unwrap().hold_time(hold_time).unwrap();
            limiter.check([Pair::new(alice(), exports, 1)]).await.unwrap()
        };
        let held = check(30 * SECOND).await;
        assert!(!check(SECOND).await.is_admitted());
        tokio::time::sleep(SECOND).await;
        assert!(!check(SECOND).await.is_admitted());
        assert!(!held.hold().unwrap().was_interrupted());
    });
}

#[test]
fn dropped_check_releases_its_units() {
    let server = Server::start(Engine::Redis);
    Runtime::new().unwrap().block_on(async {
        let limiter = limiter(RedisBackend::connect(&server.url()).await.unwrap(), 30 * SECOND);
        for _ in 0..50 {
            // It is sent at the first poll, and dropped without a reply.
            let _ = tokio::time::timeout(Duration::ZERO, hold(&limiter, 1)).await;
        }
        limiter.drain().await;
        assert_eq!(remaining(&limiter).await, QUOTA);
    });
}

#[test]
fn backend_without_holds_is_rejected() {
    struct Unlimited;
    impl Backend for Unlimited {
        async fn check(
            &self,
            _: &tower_sliding_window::backend::Check,
        ) -> Result<Decision, tower_sliding_window::backend::BackendError> {
            unreachable!("it holds no units")
        }
    }
    let exports = || Policy::in_flight("exports", 1).unwrap();
    let error = Limiter::builder(Unlimited).policy(exports()).build().unwrap_err();
    assert_eq!(error.to_string(), r#"policy "exports": the backend holds no units of policies in flight"#);
    let limiter = Limiter::builder(Unlimited).without_policies().build().unwrap();
    let pair = Pair::new(alice(), exports(), 1);
    let outcome = Runtime::new().unwrap().block_on(async { limiter.check([pair]).await });
    assert_eq!(outcome.unwrap_err().reason(), Reason::Unsupported);
}
