//! Leases of a real server: the script, and several processes on one key.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Decision, Limiter, MemoryBackend, PartitionKey, Policy, RedisBackend,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    policy::Lease,
    testing::ManualClock,
};

use super::{
    admin::Admin,
    proxy::{Cut, Proxy},
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, backend},
};
use crate::{
    lease::{buckets, store::model},
    support::{
        delay::DelayProxy,
        server::{Engine, Server},
    },
};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn request(policies: &[Policy], cost: u32, units: u32) -> Check {
    let pair = |policy: &Policy| {
        let mut pair = Pair::new(alice(), policy.clone(), cost);
        pair.lease = units;
        pair
    };
    let pairs: Vec<Pair> = policies.iter().map(pair).collect();
    Check::new(pairs).unwrap().with_purpose(Purpose::Lease)
}

/// Returns a decision without what differs between stores: the generation.
fn comparable(decision: &Decision) -> (u64, String, Vec<(u64, u32)>) {
    let place = |receipt: &Receipt| (receipt.at_micros, receipt.ordinal);
    let receipts = decision.receipts().iter().map(place).collect();
    (decision.at_micros(), format!("{:?}", decision.statuses()), receipts)
}

async fn equal_leases(engine: Engine) {
    let (server, clock) = (Server::start(engine), ManualClock::new());
    let redis = backend(&server).await.with_clock(&clock);
    let memory = MemoryBackend::new().with_clock(&clock);
    let policies = [(40, "a"), (25, "b")].map(|(quota, name)| {
        let policy = Policy::new(name, quota, SECOND).unwrap();
        policy.with_algorithm(buckets(1, SECOND, 100 * MILLISECOND).algorithm()).unwrap()
    });
    let mut random = 7_u64;
    let mut random = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut leased, mut denied) = (0, 0);
    for step in 0..600 {
        let pairs = &policies[..1 + random(2) as usize];
        let check = request(pairs, random(4) as u32, random(12) as u32);
        let [ours, models] = [redis.check(&check).await.unwrap(), model(&memory, &check).unwrap()];
        assert_eq!(comparable(&ours), comparable(&models), "step {step}: {check:?}");
        leased += usize::from(ours.is_admitted());
        denied += usize::from(!ours.is_admitted());
        if ours.is_admitted() && random(2) == 0 {
            // A part of the units is returned at its place.
            let refund = |decision: &Decision| {
                let charged: Vec<Pair> = check
                    .pairs()
                    .iter()
                    .map(|pair| Pair::new(pair.key.clone(), pair.policy.clone(), 1))
                    .collect();
                Refund::new(&Check::new(charged).unwrap(), decision.receipts(), &vec![0; pairs.len()])
            };
            if check.pairs().iter().all(|pair| pair.cost > 0) {
                redis.refund(&refund(&ours).unwrap()).await.unwrap();
                memory.refund(&refund(&models).unwrap()).await.unwrap();
            }
        }
        clock.advance(Duration::from_micros(random(60_000)));
    }
    assert!(leased > 100 && denied > 100, "{leased} leased, {denied} denied");
}

#[tokio::test]
async fn lease_requests_equal_reference_model() {
    equal_leases(Engine::Redis).await;
}

#[tokio::test]
async fn lease_requests_equal_reference_model_on_valkey() {
    equal_leases(Engine::Valkey).await;
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn limiter(backend: impl Backend, policy: Policy) -> Limiter {
    let builder = Limiter::builder(backend).policy(policy).deadline(LONG_DEADLINE);
    builder.build().unwrap()
}

/// Four limiters, each with a connection of its own, ask for more than the quota in every second window.
#[tokio::test]
async fn processes_on_redis_never_exceed_quota() {
    const QUOTA: usize = 400;
    let (window, server) = (400 * MILLISECOND, Server::start(Engine::Redis));
    let policy = buckets(QUOTA as u32, window, 50 * MILLISECOND).leased(Lease::up_to(40)).unwrap();
    let grants = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    for _ in 0..4 {
        let limiter = limiter(backend(&server).await, policy.clone());
        let grants = grants.clone();
        processes.push(tokio::spawn(async move {
            let start = Instant::now();
            // On a busy machine, fewer checks fit into a window.
            while start.elapsed() < 8 * window || limiter.stats().leased_units_granted < 80 {
                assert!(start.elapsed() < TIMEOUT, "the process grants no 80 units from its leases");
                let is_flood = (start.elapsed().as_micros() / window.as_micros()).is_multiple_of(2);
                for _ in 0..if is_flood { 6 } else { 1 } {
                    let before = unix_micros();
                    let decision = limiter.check(alice()).await.unwrap();
                    let now = unix_micros();
                    if decision.is_admitted() {
                        // The server reads the clock of this machine. The store states its instant.
                        let at = decision.at_micros();
                        let grant = if decision.is_leased() { (before, now) } else { (at, at) };
                        grants.lock().unwrap().push((grant, decision.is_leased()));
                    }
                }
                // The load of a process is spread over its windows.
                sleep(2 * MILLISECOND).await;
            }
            limiter.drain().await;
            limiter.stats()
        }));
    }
    let (mut leased, mut granted, mut returned) = (0, 0, 0);
    for process in processes {
        let stats = process.await.unwrap();
        leased += stats.leased_units;
        granted += stats.leased_units_granted;
        returned += stats.leased_units_returned;
        assert_eq!(stats.leased_units_lost, 0, "every return is confirmed");
    }
    assert_eq!(leased, granted + returned, "each leased unit was granted or returned");
    let grants = grants.lock().unwrap().clone();
    assert_eq!(
        grants.iter().filter(|(_, is_leased)| *is_leased).count() as u64,
        granted,
        "each grant is counted once"
    );
    let window = window.as_micros() as u64;
    for ((start, _), _) in &grants {
        // Those that were granted within the window, whenever between their two instants.
        let inside = grants.iter().filter(|((from, to), _)| start <= from && *to < start + window).count();
        assert!(inside <= QUOTA, "{inside} in a window");
    }
}

/// A grant: the instants between which it was made, and whether it was from a lease.
type Grant = ((u64, u64), bool);

/// Asks at random instants until the runtime ends, and notes the admissions.
async fn ask_far_away(url: String, policy: Policy, mut random: u64, grants: Arc<Mutex<Vec<Grant>>>) {
    let backend = RedisBackend::lazy(&url).unwrap();
    let limiter = Limiter::builder(backend).policy(policy).deadline(SECOND).breaker(None).build().unwrap();
    let mut checks = tokio::task::JoinSet::new();
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // In each second window, the demand is more than the quota.
        let most = if (unix_micros() / 800_000).is_multiple_of(2) { 9_000 } else { 36_000 };
        sleep(Duration::from_micros((random >> 33) % most)).await;
        let (limiter, grants) = (limiter.clone(), grants.clone());
        checks.spawn(async move {
            let before = unix_micros();
            if let Ok(decision) = limiter.check(alice()).await
                && decision.is_admitted()
            {
                let at = decision.at_micros();
                let is_leased = decision.is_leased();
                let grant = if is_leased { (before, unix_micros()) } else { (at, at) };
                grants.lock().unwrap().push((grant, is_leased));
            }
        });
        while checks.try_join_next().is_some() {}
    }
}

/// Three processes are 40 ms away from Redis, and lease ahead. They are killed, and replies are cut.
#[test]
fn killed_processes_that_lease_ahead_never_exceed_quota() {
    const QUOTA: usize = 250;
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (window, server, network) = (800 * MILLISECOND, Server::start(Engine::Redis), runtime());
    let policy = buckets(QUOTA as u32, window, 100 * MILLISECOND).leased(Lease::up_to(40).ahead()).unwrap();
    let (cuts, far) = network.block_on(async {
        let cuts = Proxy::before(&server).await;
        let far = DelayProxy::before_port(cuts.port(), 40 * MILLISECOND).await;
        (cuts, far)
    });
    let grants = Arc::new(Mutex::new(Vec::new()));
    let start = |seed: u64| {
        let process = runtime();
        process.spawn(ask_far_away(far.url(), policy.clone(), seed, grants.clone()));
        process
    };
    let mut processes: Vec<_> = (1..=3).map(start).collect();
    let mut seed = unix_micros();
    let (started, mut step) = (std::time::Instant::now(), 0);
    let leased = || grants.lock().unwrap().iter().filter(|(_, is_leased)| *is_leased).count();
    // On a busy machine, a process needs longer for its leases.
    while step < 12 || leased() < 50 {
        assert!(started.elapsed() < TIMEOUT, "the processes grant no 50 units from their leases");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis(100 + (seed >> 33) % 200));
        if step % 3 == 1 && step < 12 {
            cuts.cut_next(Cut::BeforeReply);
        } else if step % 3 == 2 && step < 12 {
            let killed = std::mem::replace(&mut processes[(seed >> 40) as usize % 3], start(seed));
            killed.shutdown_background();
        }
        step += 1;
    }
    processes.into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
    let grants = grants.lock().unwrap().clone();
    let window = window.as_micros() as u64;
    for ((start, _), _) in &grants {
        let inside = grants.iter().filter(|((from, to), _)| start <= from && *to < start + window).count();
        assert!(inside <= QUOTA, "{inside} in a window");
    }
}

/// Waits while a bucket of an hour may end during the test. The bucket ends on the server's clock.
async fn not_at_end_of_hour() {
    let hour = HOUR.as_micros() as u64;
    while unix_micros() % hour > hour - 30_000_000 {
        sleep(100 * MILLISECOND).await;
    }
}

#[tokio::test]
async fn leases_survive_server_outage_until_bucket_ends() {
    let mut server = Server::start(Engine::Redis);
    let policy = buckets(10_000, 3 * HOUR, HOUR).leased(Lease::up_to(100)).unwrap();
    let backend = backend(&server).await;
    not_at_end_of_hour().await;
    let limiter = limiter(backend, policy);
    let key = || PartitionKey::new("user", "alice");
    // Leases of 1, 3, 7 and 15 units.
    for _ in 0..16 {
        let _ = limiter.check(key()).await.unwrap();
    }
    server.kill();
    for _ in 0..14 {
        assert!(limiter.check(key()).await.unwrap().is_leased(), "the process still has leased units");
    }
    assert!(limiter.peek(key()).await.is_err(), "the server is dead");
}

/// The table of leases keeps a long key as a digest.
#[tokio::test]
async fn lease_of_long_key_is_returned() {
    let server = Server::start(Engine::Redis);
    let policy = buckets(10_000, 3 * HOUR, HOUR).leased(Lease::up_to(100)).unwrap();
    let limiter = limiter(backend(&server).await, policy);
    let key = || PartitionKey::new("user", "x".repeat(1_000));
    not_at_end_of_hour().await;
    for _ in 0..5 {
        let _ = limiter.check(key()).await.unwrap();
    }
    limiter.drain().await;
    assert!(limiter.stats().leased_units_returned > 0, "drain returns the idle units");
    assert_eq!(
        limiter.peek((key(), 0)).await.unwrap().statuses()[0].remaining(),
        10_000 - 5,
        "only the granted units remain charged"
    );
}

/// The status of the shadow pair is missing, and that of the other pair is not one of the leased pair.
#[tokio::test]
async fn leased_decision_states_remaining_of_its_own_pair() {
    let server = Server::start(Engine::Redis);
    let policy = buckets(10_000, 3 * HOUR, HOUR).leased(Lease::up_to(100)).unwrap();
    let redis = backend(&server).await;
    let limiter = limiter(redis.clone(), policy.clone());
    not_at_end_of_hour().await;
    for _ in 0..5 {
        let _ = limiter.check(alice()).await.unwrap();
    }
    let [canary, small] = ["canary", "small"].map(|name| Policy::new(name, 2, HOUR).unwrap());
    let foreign = redis.key_name("tsw", &alice(), &canary);
    Admin::at(&server).query::<()>(&["SET", &foreign, "7"]);
    let pairs = [canary.shadow(), policy, small].map(|policy| Pair::new(alice(), policy, 1));
    let decision = limiter.check(pairs).await.unwrap();
    assert!(decision.is_admitted() && decision.statuses().len() == 2, "{decision:?}");
    let leased = limiter.check(alice()).await.unwrap();
    assert!(leased.is_leased() && leased.statuses()[0].remaining() > 9_000, "{leased:?}");
}
