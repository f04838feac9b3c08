//! Answers of an API: the purpose `LeaveAtMost` against the reference model, and the readers of one answer.

use std::{collections::HashMap, slice, time::Duration};

use tokio::runtime::Runtime;
use tower_sliding_window::{
    Admission, Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend, Wait,
    backend::{Backend, Check, Pair, Purpose, Refund},
    learn::{Learned, Learning, Stated, StatedQuota},
    policy::{Period, Rate, Zone},
    testing::ManualClock,
};

use super::model::{Handle, Model, Name, name};
use crate::{
    http::SECOND,
    redis_server::{
        admin::Admin,
        rig::{HOUR, Random, alice, check, every_type, every_type_with_window},
    },
    support::server::{Engine, Server},
};

const QUOTA: u32 = 100;
/// Also how long the tokens of a full bucket take to return.
const WINDOW: Duration = Duration::from_secs(10);
/// The number of processes that read one answer.
const READERS: usize = 8;

/// The reference model, with the newest answer of each pair.
#[derive(Default)]
struct WithAnswers {
    model: Model,
    newest: HashMap<Name, u64>,
    applied: usize,
    ignored: usize,
}

impl WithAnswers {
    fn answer(&mut self, now: u64, pair: &Pair, at: u64, holds: u64) -> Decision {
        // That of a calendar period is the longest year.
        let window = if pair.policy.name() == "period" { (366 * 24 + 1) * HOUR } else { WINDOW };
        let (name, window) = (name(&pair.key, &pair.policy), window.as_micros() as u64);
        let of_pair = |cost, purpose| {
            let pair = Pair::new(pair.key.clone(), pair.policy.clone(), cost);
            Check::new([pair]).unwrap().with_purpose(purpose)
        };
        let peek = self.model.peek(now, &of_pair(0, Purpose::Peek));
        let newest = self.newest.get(&name).copied().filter(|newest| *newest <= now + window);
        let age = now.checked_sub(at);
        let applies = age.is_some_and(|age| age < holds && age < window);
        if !applies || newest.is_some_and(|newest| newest >= at) {
            self.ignored += 1;
            return peek;
        }
        self.applied += 1;
        self.newest.insert(name, at);
        let cost = peek.statuses()[0].remaining().saturating_sub(pair.cost);
        self.model.check(now, &of_pair(cost, Purpose::Overage)).0
    }
}

/// Compares random checks, settlements, resets and answers, while the clock moves in both directions.
async fn compare(backend: impl Backend, clock: &ManualClock, steps: u64, prefix: &str) {
    let (mut random, mut model) = (Random(11), WithAnswers::default());
    let keys = [0, 1].map(|i| PartitionKey::new("account", format!("{prefix} {i}")));
    let policies = every_type(QUOTA, WINDOW);
    let mut reserved: Vec<(Check, Vec<Handle>, Decision)> = Vec::new();
    for step in 0..steps {
        let passed = random.below(2_000_000) * random.below(2);
        let back = if random.below(40) == 0 { random.below(25_000_000) } else { 0 };
        let now = clock.now_micros() + passed - back;
        clock.set_micros(now);
        let (key, policy) = (&keys[random.below(2) as usize], &policies[random.below(6) as usize]);
        let of = |cost: u64, purpose| {
            let pair = Pair::new(key.clone(), policy.clone(), cost as u32);
            Check::new([pair]).unwrap().with_purpose(purpose)
        };
        let cost = random.below(20);
        let (decision, expected) = match random.below(8) {
            0..=2 => {
                let at_micros = now + 200_000 - random.below(14) * random.below(1_000_000).min(now / 20);
                let holds_micros = [u64::MAX, 0, 3_000_000][random.below(6).min(2) as usize];
                let asked = of(random.below(120), Purpose::leave_at_most(at_micros, holds_micros));
                let expected = model.answer(now, &asked.pairs()[0], at_micros, holds_micros);
                (backend.check(&asked).await.unwrap(), expected)
            }
            3 if !reserved.is_empty() => {
                let (check, handles, decision) =
                    reserved.swap_remove(random.below(reserved.len() as u64) as usize);
                let used = random.below(u64::from(check.pairs()[0].cost) + 1) as u32;
                if let Some(refund) = Refund::new(&check, decision.receipts(), &[used]) {
                    backend.refund(&refund).await.unwrap();
                    model.model.settle(now, &check, &handles, &[used]);
                }
                continue;
            }
            4 if random.below(10) == 0 => {
                backend.reset(&of(0, Purpose::Charge)).await.unwrap();
                model.model.reset(&of(0, Purpose::Charge));
                reserved
                    .retain(|(check, ..)| check.pairs()[0].key != *key || check.pairs()[0].policy != *policy);
                continue;
            }
            _ => {
                let check = of(cost, Purpose::Reserve);
                let decision = backend.check(&check).await.unwrap();
                let (expected, handles) = model.model.check(now, &check);
                // A refund to a token bucket has effects of its own.
                if decision.is_admitted() && cost > 0 && policy.name() != "tokens" {
                    reserved.push((check, handles, decision.clone()));
                }
                (decision, expected)
            }
        };
        assert_eq!(decision.statuses(), expected.statuses(), "step {step}, {}", policy.name());
    }
    let seen = [model.applied, model.ignored, model.model.foreign];
    assert!(seen.iter().all(|count| *count as u64 > steps / 1_000), "{seen:?}");
}

#[test]
fn memory_leaves_at_most_what_model_leaves() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new().with_clock(&clock).keep_idle_for(240 * HOUR);
    Runtime::new().unwrap().block_on(compare(backend, &clock, 30_000, "memory"));
}

#[test]
fn redis_leaves_at_most_what_model_leaves() {
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        Runtime::new().unwrap().block_on(async {
            let backend = RedisBackend::connect(&server.url()).await.unwrap().with_clock(&clock);
            compare(backend, &clock, 3_000, "redis").await;
        });
    }
}

/// Runs a test with eight backends that share a store: clones of a memory, and connections to each server.
fn with_eight_backends<F: Future<Output = ()>>(test: impl Fn(Vec<AnyBackend>, ManualClock) -> F) {
    let runtime = Runtime::new().unwrap();
    let clock = ManualClock::new();
    let memory = MemoryBackend::new().with_clock(&clock);
    runtime.block_on(test(vec![AnyBackend::Memory(memory); READERS], clock));
    for engine in Engine::ALL {
        let (server, clock) = (Server::start(engine), ManualClock::new());
        runtime.block_on(async {
            let backend = || AnyBackend::Redis(RedisBackend::lazy(&server.url()).unwrap().with_clock(&clock));
            test((0..READERS).map(|_| backend()).collect(), clock.clone()).await;
        });
    }
}

#[derive(Clone)]
enum AnyBackend {
    Memory(MemoryBackend),
    Redis(RedisBackend),
}

impl AnyBackend {
    fn learning(&self, policy: &Policy) -> Limiter {
        let builder = match self {
            Self::Memory(memory) => Limiter::builder(memory.clone()),
            Self::Redis(redis) => Limiter::builder(redis.clone()),
        };
        let builder = builder.policy(policy.clone()).policy(Policy::gate("api").unwrap());
        builder.learn(Learning::default()).deny_cache(None).deadline(20 * SECOND).build().unwrap()
    }
}

fn charged(learned: &[Learned]) -> u32 {
    learned.iter().flat_map(|learned| &learned.charged).map(|(_, units)| units).sum()
}

async fn remaining(limiter: &Limiter) -> u32 {
    limiter.peek((alice(), 0)).await.unwrap().statuses()[0].remaining()
}

fn remain(units: u32) -> Stated {
    Stated::new([StatedQuota::new(units.into())])
}

/// All processes learn these answers at the same time, each answer of the request of another process.
async fn learn_all(limiters: &[Limiter], answers: Vec<(Admission, Stated)>) -> Vec<Learned> {
    let learn = |(limiter, (admission, stated)): (&Limiter, (_, Stated))| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.learn(&admission, &stated).await.unwrap() })
    };
    let tasks: Vec<_> = limiters.iter().zip(answers).map(learn).collect();
    let mut learned = Vec::new();
    for task in tasks {
        learned.push(task.await.unwrap());
    }
    learned
}

#[test]
fn eight_readers_of_one_answer_charge_it_once() {
    with_eight_backends(async |backends, clock| {
        for policy in every_type(QUOTA, WINDOW) {
            let limiters: Vec<_> = backends.iter().map(|backend| backend.learning(&policy)).collect();
            clock.advance(Duration::from_secs(100) - Duration::from_micros(clock.now_micros() % 100_000_000));
            let mut admissions = Vec::new();
            for limiter in &limiters {
                clock.advance(Duration::from_micros(1));
                admissions.push(limiter.admit(alice()).await.unwrap());
            }
            // The API has counted 30 units of another client.
            let newest = admissions.last().unwrap().clone();
            let answers = vec![(newest.clone(), remain(62)); READERS];
            assert_eq!(charged(&learn_all(&limiters, answers).await), 30, "{}", policy.name());
            assert_eq!(remaining(&limiters[0]).await, 62);

            // The answers to all eight requests, of which each one counts the requests before it.
            let answers = admissions
                .iter()
                .zip((63..70).rev().chain([62]))
                .map(|(admission, units)| (admission.clone(), remain(units)));
            assert_eq!(charged(&learn_all(&limiters, answers.collect()).await), 0);
            assert_eq!(remaining(&limiters[0]).await, 62);
            // Older answers change nothing, whatever they state and whatever has returned.
            limiters[0].reset(alice()).await.unwrap();
            let answers = admissions.iter().map(|admission| (admission.clone(), remain(0))).collect();
            assert_eq!(charged(&learn_all(&limiters, answers).await), 0);
            assert_eq!(remaining(&limiters[0]).await, QUOTA);
        }
    });
}

/// The rate of a token bucket and the begin of a period may change, and the usage is kept: so are the answers.
#[test]
fn answer_is_known_under_another_rate() {
    let bucket = |rate| Policy::token_bucket("calls", QUOTA, Rate::per_second(rate)).unwrap();
    let month =
        |zone| Policy::calendar_period("calls", QUOTA, Period::Month, Zone::new(zone).unwrap()).unwrap();
    with_eight_backends(async |backends, clock| {
        for [before, after] in [[bucket(10), bucket(5)], [month("UTC"), month("Europe/Berlin")]] {
            clock.advance(Duration::from_secs(1));
            let [limiter, changed] = [&before, &after].map(|policy| backends[0].learning(policy));
            let older = changed.admit(alice()).await.unwrap();
            clock.advance(Duration::from_micros(1));
            let newest = limiter.admit(alice()).await.unwrap();
            assert_eq!(charged(&[limiter.learn(&newest, &remain(62)).await.unwrap()]), 36);
            changed.reset(alice()).await.unwrap();
            assert_eq!(charged(&[changed.learn(&older, &remain(0)).await.unwrap()]), 0, "{after:?}");
            assert_eq!(remaining(&changed).await, QUOTA, "{after:?}");
        }
    });
}

#[test]
fn answers_to_eight_requests_charge_smallest_rest() {
    with_eight_backends(async |backends, clock| {
        for policy in every_type(QUOTA, WINDOW) {
            let limiters: Vec<_> = backends.iter().map(|backend| backend.learning(&policy)).collect();
            clock.advance(Duration::from_secs(100) - Duration::from_micros(clock.now_micros() % 100_000_000));
            let mut answers = Vec::new();
            for (limiter, units) in limiters.iter().zip((62..70).rev()) {
                clock.advance(Duration::from_micros(1));
                answers.push((limiter.admit(alice()).await.unwrap(), remain(units)));
            }
            assert_eq!(charged(&learn_all(&limiters, answers).await), 30, "{}", policy.name());
            assert_eq!(remaining(&limiters[0]).await, 62);
        }
    });
}

#[test]
fn answer_applies_until_its_reset_or_its_window() {
    with_eight_backends(async |backends, clock| {
        for policy in every_type_with_window(QUOTA, WINDOW) {
            let limiter = backends[0].learning(&policy);
            for (reset, age, applies) in [
                (None, WINDOW - Duration::from_micros(1), true),
                (None, WINDOW, false),
                (Some(6 * SECOND), 6 * SECOND - Duration::from_micros(1), true),
                (Some(6 * SECOND), 6 * SECOND, false),
                (Some(Duration::MAX), WINDOW, false),
                (Some(Duration::ZERO), Duration::ZERO, false),
            ] {
                clock.advance(
                    Duration::from_secs(100) - Duration::from_micros(clock.now_micros() % 100_000_000),
                );
                limiter.reset(alice()).await.unwrap();
                let admission = limiter.admit(alice()).await.unwrap();
                clock.advance(age);
                let mut quota = StatedQuota::new(40);
                quota.reset = reset;
                let learned = limiter.learn(&admission, &Stated::new([quota])).await.unwrap();
                assert_eq!(charged(&[learned]) > 0, applies, "{} {reset:?} {age:?}", policy.name());
                assert_eq!(remaining(&limiter).await == 40, applies);
            }
        }
    });
}

#[test]
fn denial_blocks_gate_of_all_eight_processes() {
    with_eight_backends(async |backends, clock| {
        let policy = Policy::new("calls", QUOTA, WINDOW).unwrap();
        let limiters: Vec<_> = backends.iter().map(|backend| backend.learning(&policy)).collect();
        let admission = limiters[0].admit(alice()).await.unwrap();
        let learned = limiters[0].learn(&admission, &remain(0).denied(3 * SECOND)).await.unwrap();
        assert_eq!((learned.blocked_for, charged(&[learned])), (Some(3 * SECOND), 99));
        for limiter in &limiters {
            let denied = limiter.check((alice(), 1)).await.unwrap();
            assert_eq!(denied.statuses()[1].retry_after(), Wait::For(3 * SECOND));
        }
        clock.advance(WINDOW);
        assert!(limiters[7].check(alice()).await.unwrap().is_admitted());
    });
}

/// A gate and a policy in flight count no units that an API could state, and a check has one pair.
#[test]
fn check_of_other_pairs_has_no_answer() {
    let counted = Policy::new("calls", QUOTA, WINDOW).unwrap();
    let purpose = Purpose::leave_at_most(1, 1);
    assert_eq!(check(slice::from_ref(&counted), 0, purpose).purpose(), purpose);
    let [gate, held] = [Policy::gate("gate").unwrap(), Policy::in_flight("held", 1).unwrap()];
    let two = vec![counted.clone(), Policy::new("more", 1, WINDOW).unwrap()];
    for policies in [vec![gate], vec![held], two, vec![counted.shadow()]] {
        assert_eq!(check(&policies, 0, purpose).purpose(), Purpose::Peek, "{policies:?}");
    }
}

/// The newest answer is known for one window, and takes a key for no longer.
#[tokio::test]
async fn answer_takes_key_for_one_window() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::lazy(&server.url()).unwrap();
        let policy = Policy::new("calls", QUOTA, WINDOW).unwrap();
        let charged = backend.check(&check(slice::from_ref(&policy), 1, Purpose::Charge)).await.unwrap();
        // It charges nothing, and is known nevertheless.
        let purpose = Purpose::leave_at_most(charged.at_micros(), u64::MAX);
        let _ = backend.check(&check(slice::from_ref(&policy), QUOTA, purpose)).await.unwrap();
        let mut admin = Admin::at(&server);
        let keys = admin.keys();
        let answer = keys.iter().find(|key| key.contains("}~")).expect("a key of the answer");
        let expires_at = Duration::from_millis(admin.expires_at(answer).try_into().unwrap());
        let lives = expires_at - Duration::from_micros(charged.at_micros());
        assert!((WINDOW - SECOND..=WINDOW + SECOND).contains(&lives), "{engine:?}: {lives:?}");
        assert_eq!(keys.len(), 2, "{keys:?}");
    }
}
