//! Checks across slots under load and under faults: what a rejected, denied or dropped check leaves behind.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use tokio::time::{interval, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::{
    Algorithm, Limiter, OutageRule, PartitionKey, Policy, RateLimitLayer, RedisBackend, Rejection, Wait,
    backend::{Backend, Check, Pair, Reason},
    header, limit,
    outage::{Breaker, BreakerState, DenyCacheConfig},
    redis::RedisServers,
    settle::Settled,
};

use super::{
    admin::{Admin, Monitor},
    proxy::relay,
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, concurrently, policy},
};
use crate::support::{
    cluster::{Cluster, slot},
    cluster_rows,
    server::{Engine, Server},
};

const SECOND: Duration = Duration::from_secs(1);

fn owner(key: &PartitionKey) -> usize {
    usize::from(slot(key)) * 3 / 16_384
}

/// Returns keys of a kind whose slots belong to a primary.
fn keys_on(kind: &'static str, primary: usize) -> impl Iterator<Item = PartitionKey> {
    (0..).map(move |n| PartitionKey::new(kind, n.to_string())).filter(move |key| owner(key) == primary)
}

fn pair(key: &PartitionKey, policy: &Policy, cost: u32) -> Pair {
    Pair::new(key.clone(), policy.clone(), cost)
}

async fn backend(cluster: &Cluster) -> RedisBackend {
    RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).connect().await.unwrap()
}

/// Returns a limiter whose deadline a busy machine does not reach.
fn patient(backend: &RedisBackend) -> Limiter {
    Limiter::builder(backend.clone()).without_policies().deadline(LONG_DEADLINE).build().unwrap()
}

/// Waits until there is a decision again after an outage.
async fn until_decided(limiter: &Limiter, key: &PartitionKey, policy: &Policy) {
    let start = Instant::now();
    while let Err(error) = limiter.peek([pair(key, policy, 0)]).await {
        assert!(start.elapsed() < TIMEOUT, "no check gets a decision: {error:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns whether the circuit breaker of this node is open.
fn is_open(limiter: &Limiter, node: &Server) -> bool {
    let breakers = limiter.stats().breakers;
    let mut of_node =
        breakers.iter().filter(|breaker| breaker.server.ends_with(&format!(":{}", node.port())));
    of_node.any(|breaker| breaker.state == BreakerState::Open)
}

async fn used(limiter: &Limiter, key: &PartitionKey, policy: &Policy) -> u32 {
    let decision = limiter.check([pair(key, policy, 0)]).await.unwrap();
    policy.quota().unwrap() - decision.statuses()[0].remaining()
}

/// Counts the calls of scripts on a node.
fn evalsha(node: &Server) -> u64 {
    Admin::at(node).calls("evalsha").all
}

/// "A client over its limit causes at most one rollback per maximum age and process."
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_limit_client_causes_few_rollbacks() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let (route, address) = (keys_on("route", 0).next().unwrap(), keys_on("address", 1).next().unwrap());
    let honest = keys_on("address", 1).nth(1).unwrap();
    // A refund of a check in one slot shows the hash of the script that rolls back.
    let (mut admin, mut monitor) = (Admin::at(&cluster.nodes[0]), Monitor::at(&cluster.nodes[0]));
    let settled =
        limiter.reserve([pair(&keys_on("route", 0).nth(1).unwrap(), &policy("route", 40, SECOND), 1)]);
    assert!(matches!(settled.await.unwrap().settle(0).await, Settled::Done { .. }));
    let refund = monitor.called_scripts(&mut admin).pop().unwrap();
    // The abuser may use 10 of the 40 units a second of the route; the honest client needs 15.
    let (of_route, of_address) = (policy("route", 40, SECOND), policy("address", 10, SECOND));
    let (of_both, many) = ((of_route.clone(), of_address.clone()), policy("address", 1_000, SECOND));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let abuse: Vec<_> = (0..64)
        .map(|_| {
            let (limiter, route, address, stop) =
                (limiter.clone(), route.clone(), address.clone(), stop.clone());
            let (of_route, of_address) = of_both.clone();
            tokio::spawn(async move {
                let (mut admitted, mut sent) = (0, 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let pairs = [pair(&route, &of_route, 1), pair(&address, &of_address, 1)];
                    let decision = limiter.check(pairs).await.unwrap();
                    sent += 1;
                    admitted += u32::from(decision.is_admitted());
                    sleep(Duration::from_millis(10)).await;
                }
                (admitted, sent)
            })
        })
        .collect();
    // The first denials of all clients, and their rollbacks, leave the window of the route.
    sleep(2 * SECOND).await;
    let mut pace = interval(SECOND / 15);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut denied, mut asked) = (0, 0);
    monitor.called_scripts(&mut admin);
    let start = Instant::now();
    while start.elapsed() < 6 * SECOND {
        pace.tick().await;
        let pairs = [pair(&route, &of_route, 1), pair(&honest, &many, 1)];
        let decision = limiter.check(pairs).await.unwrap();
        asked += 1;
        denied += u32::from(!decision.is_admitted());
    }
    let (elapsed, calls) = (start.elapsed(), monitor.called_scripts(&mut admin));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut abuser = (0, 0);
    for task in abuse {
        let (admitted, sent) = task.await.unwrap();
        abuser = (abuser.0 + admitted, abuser.1 + sent);
    }
    let rollbacks = calls.iter().filter(|script| **script == refund).count();
    println!(
        "{rollbacks} rollbacks in {elapsed:?}; {} calls; abuser: admitted and sent {abuser:?}",
        calls.len()
    );
    assert_eq!(denied, 0, "of {asked}; {} calls", calls.len());
    let (admitted, sent) = abuser;
    assert!(admitted > 0 && sent > 100 * admitted, "the abuser is over its limit: {abuser:?}");
    // The maximum age is a second by default.
    assert!(rollbacks as f64 <= elapsed.as_secs_f64() + 1.0, "{rollbacks} rollbacks in {elapsed:?}");
}

/// As above: the wait of each denial is short, and one client asks for a moment after it, in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_cause_few_rollbacks() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let (route, address) = (keys_on("route", 0).next().unwrap(), keys_on("address", 1).next().unwrap());
    let (of_route, of_address) = (policy("route", 1_000_000, HOUR), policy("address", 20, SECOND));
    let (start, mut admitted, mut denied) = (Instant::now(), 0, 0);
    let before = evalsha(&cluster.nodes[0]);
    while start.elapsed() < 5 * SECOND {
        let pairs = [pair(&route, &of_route, 1), pair(&address, &of_address, 1)];
        let decision = limiter.check(pairs).await.unwrap();
        admitted += u64::from(decision.is_admitted());
        denied += u64::from(!decision.is_admitted() && !decision.is_cached());
        sleep(Duration::from_millis(1)).await;
    }
    limiter.drain().await;
    let calls = evalsha(&cluster.nodes[0]) - before;
    // One rollback in each second, and a peek and a charge for each admission, and a peek for each denial.
    let seconds = 1 + start.elapsed().as_secs();
    assert!(
        calls <= 2 * seconds + 2 * admitted + denied,
        "{calls} calls in {seconds} s for {admitted} admissions and {denied} denials: at most one rollback in a second"
    );
}

/// As above: the costs of the client fall, so that no denial in the cache covers the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn falling_costs_cause_few_rollbacks() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let (route, address) = (keys_on("route", 0).next().unwrap(), keys_on("address", 1).next().unwrap());
    let (of_route, of_address) = (policy("route", 1_000, HOUR), policy("address", 100, HOUR));
    assert!(
        limiter.check([pair(&address, &of_address, 100)]).await.unwrap().is_admitted(),
        "the first check uses the quota of the address"
    );
    let check = |cost| limiter.check([pair(&route, &of_route, 1), pair(&address, &of_address, cost)]);
    assert!(!check(100).await.unwrap().is_admitted(), "the address is over its limit");
    limiter.drain().await;
    let before = evalsha(&cluster.nodes[0]);
    let start = Instant::now();
    for cost in (1..100).rev() {
        assert!(!check(cost).await.unwrap().is_admitted(), "cost {cost}: the address is over its limit");
    }
    let seconds = 1 + start.elapsed().as_secs();
    limiter.drain().await;
    let calls = evalsha(&cluster.nodes[0]) - before;
    // With a peek first: at most one call for each check. A charge and its rollback are two.
    assert!(
        calls <= 99 + 10 * seconds,
        "{calls} calls in {seconds} s: most of the 99 checks cause no rollback"
    );
}

/// A cost above its own quota is never admitted, and charges no slot that others share, not even for a moment. Each key is new, so
/// no denial of it is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cost_above_quota_charges_no_shared_slot() {
    let cluster = Cluster::start(Engine::Redis);
    let limiter = patient(&backend(&cluster).await);
    let (shared, users) = (keys_on("shared", 0).next().unwrap(), keys_on("user", 1));
    let (of_all, of_user) = (policy("all", 1_000, HOUR), policy("user", 100, HOUR));
    let before = evalsha(&cluster.nodes[0]);
    for user in users.take(20) {
        let decision =
            limiter.check([pair(&shared, &of_all, 900), pair(&user, &of_user, 900)]).await.unwrap();
        assert_eq!(decision.retry_after(), Wait::Never);
    }
    limiter.drain().await;
    assert_eq!(evalsha(&cluster.nodes[0]) - before, 20, "a peek for each check, and no rollback");
}

/// A check that the layer rejects charges nothing: the error is that of one check, so the layer does not fail open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_check_keeps_no_charges() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let layer = RateLimitLayer::builder(backend.clone())
        .policy(policy("own", 20, HOUR))
        .outage(OutageRule::FailOpen)
        .deadline(LONG_DEADLINE)
        .key(header("x-api-key").unwrap())
        .also(limit(header("x-other").unwrap()).policy(policy("shared", 20, HOUR)))
        .build()
        .unwrap();
    let send = async |own: &str, other: &str| {
        let request = Request::get("/").header("x-api-key", own).header("x-other", other).body(()).unwrap();
        let ok = async |_: Request<()>| Ok::<_, std::convert::Infallible>(http::Response::new(()));
        layer.layer(service_fn(ok)).oneshot(request).await.unwrap().status()
    };
    let find = |policy: &str| {
        let of = |n: usize| Admin::at(&cluster.nodes[n]).keys().into_iter().find(|key| key.ends_with(policy));
        (0..3).find_map(|n| of(n).map(|key| (n, key))).unwrap()
    };
    let mut n = 0;
    let (own, shared) = loop {
        cluster.flush();
        assert_eq!(send(&n.to_string(), "other").await, StatusCode::OK, "the first request of key {n} fits");
        let (own, shared) = (find("own"), find("shared"));
        if own.0 != shared.0 {
            break (own, shared);
        }
        n += 1;
    };
    // The attacker's own key has a foreign value (or its log is full).
    Admin::at(&cluster.nodes[own.0]).query::<()>(&["DEL", &own.1]);
    Admin::at(&cluster.nodes[own.0]).query::<()>(&["SET", &own.1, "foreign"]);
    let key = |n: usize, key: &str| Admin::at(&cluster.nodes[n]).query::<()>(&["DEL", key]);
    key(shared.0, &shared.1);
    for _ in 0..10 {
        let status = send(&n.to_string(), "other").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "an error of one check never fails open");
    }
    backend.drain().await;
    // Another client of the shared key has its full quota of 20.
    key(own.0, &own.1);
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u32::from(send(&n.to_string(), "other").await == StatusCode::OK);
    }
    assert_eq!(admitted, 20, "rejected requests have charged the shared key");
}

/// Outside tokio, a check returns an error, as it does in one slot.
#[test]
fn check_across_slots_outside_tokio_returns_error() {
    let (a, b) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let ten = policy("ten", 10, HOUR);
    for pairs in [vec![pair(&a, &ten, 1)], vec![pair(&a, &ten, 1), pair(&b, &ten, 1)]] {
        let backend = RedisBackend::builder(RedisServers::cluster(["redis://127.0.0.1:1/"])).lazy().unwrap();
        let limiter = Limiter::builder(backend).without_policies().build().unwrap();
        let slots = pairs.len();
        let mut check = Box::pin(limiter.check(pairs));
        let mut poll = || Pin::new(&mut check).poll(&mut Context::from_waker(Waker::noop()));
        let polled = catch_unwind(AssertUnwindSafe(&mut poll));
        assert!(matches!(polled, Ok(Poll::Ready(Err(_)))), "{slots} slots: panicked {}", polled.is_err());
    }
}

/// Two limiters share a backend. The deadline of one is shorter than the round trip. The other's probes are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_closes_although_another_limiter_has_a_short_deadline() {
    let server = Server::start(Engine::Redis);
    let port = relay(Arc::new(AtomicU16::new(server.port())), Duration::from_millis(200), |_| false).await;
    let backend = RedisBackend::connect(&format!("redis://127.0.0.1:{port}/")).await.unwrap();
    let limiter = |deadline| {
        let builder = Limiter::builder(backend.clone()).policy(policy("many", 1_000_000, HOUR));
        builder.deadline(deadline).deny_cache(None).build().unwrap()
    };
    let (hasty, patient) = (limiter(Duration::from_millis(10)), limiter(LONG_DEADLINE));
    let _ = patient.check(alice()).await.unwrap();
    // A server that has answered within the last deadline is not silent.
    sleep(Duration::from_millis(300)).await;
    for _ in 0..6 {
        hasty.check(alice()).await.expect_err("the round trip is longer than the deadline");
    }
    // From here on, only the patient limiter is used.
    let start = Instant::now();
    while patient.check(alice()).await.is_err() {
        assert!(start.elapsed() < TIMEOUT, "no probe is answered");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(patient.stats().breakers[0].state, BreakerState::Closed, "after an answered probe");
    let mut pace = interval(SECOND / 40);
    let mut checks = Vec::new();
    for _ in 0..160 {
        pace.tick().await;
        checks.push(tokio::spawn(patient.check(alice())));
    }
    for (i, check) in checks.into_iter().enumerate() {
        let decision = check.await.unwrap();
        assert!(decision.is_ok(), "check {i} after the breaker has closed: {decision:?}");
    }
}

/// A cluster without a quorum for a moment, and a user with the documented permissions only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_permissions_are_enough_after_failover() {
    let mut cluster = Cluster::start(Engine::Redis);
    for node in &cluster.nodes {
        let words = "ACL SETUSER limiter reset on >secret ~tsw{* +evalsha +eval +time +lindex +lset +rpush +ltrim +unlink \
                     +pexpire +cluster|slots +asking";
        Admin::at(node).query::<()>(&words.split_whitespace().collect::<Vec<_>>());
    }
    let mut limiters = Vec::new();
    for user in ["", "limiter:secret@"] {
        let urls = cluster.primaries().iter().map(|node| format!("redis://{user}127.0.0.1:{}/", node.port()));
        let backend = RedisBackend::builder(RedisServers::cluster(urls)).connect().await.unwrap();
        let builder = Limiter::builder(backend).policy(policy("many", 1_000_000, HOUR)).without_policies();
        limiters.push(builder.deny_cache(None).deadline(SECOND).build().unwrap());
    }
    let keys: Vec<_> = (0..3).map(|n| keys_on("user", n).next().unwrap()).collect();
    let many = policy("many", 1_000_000, HOUR);
    let has_failed_over = Arc::new(AtomicBool::new(false));
    let run = |(user, limiter): (&'static str, Limiter)| {
        let (keys, many, has_failed_over) = (keys.clone(), many.clone(), has_failed_over.clone());
        tokio::spawn(async move {
            let (mut failed_over, mut pace) = (None, interval(SECOND / 20));
            // The rounds without an error since the failover.
            let mut rounds = 0;
            while rounds < 20 {
                pace.tick().await;
                if has_failed_over.load(Ordering::SeqCst) && failed_over.is_none() {
                    failed_over = Some(Instant::now());
                }
                let mut errors = Vec::new();
                for (n, key) in keys.iter().enumerate() {
                    if let Err(error) = limiter.check([pair(key, &many, 1)]).await {
                        let reason = error.reason();
                        assert_ne!(reason, Reason::NoPermission, "{user}, node {n}: {error:?}");
                        errors.push((n, reason));
                    }
                }
                let is_over = failed_over.is_none_or(|instant| instant.elapsed() < TIMEOUT);
                assert!(is_over, "{user}: no decision after the failover: {errors:?}");
                rounds = if failed_over.is_some() && errors.is_empty() { rounds + 1 } else { 0 };
            }
        })
    };
    let tasks: Vec<_> = ["default user", "limiter"].into_iter().zip(limiters).map(run).collect();
    cluster.kill(0);
    tokio::task::block_in_place(|| cluster.fail_over(0));
    has_failed_over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
}

/// A client over its limit, another slot hung, no deny cache: the breaker of the hung node opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peeks_open_breaker_of_hung_node() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = Limiter::builder(backend).without_policies().deny_cache(None);
    // There is no probe during the test.
    let limiter = limiter.deadline(2 * SECOND).breaker(Breaker::new(5, HOUR)).build().unwrap();
    let (hung, healthy) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let one = policy("one", 1, HOUR);
    for key in [&hung, &healthy] {
        let _ = limiter.check([pair(key, &policy("warm", 9, HOUR), 1)]).await.unwrap();
    }
    assert!(
        limiter.check([pair(&healthy, &one, 1)]).await.unwrap().is_admitted(),
        "the first check uses the quota of the healthy slot"
    );
    for node in &cluster.nodes {
        // No failover.
        Admin::at(node).set("cluster-node-timeout", "60000");
    }
    cluster.nodes[0].signal(libc::SIGSTOP);
    let mut checks = 0;
    while !is_open(&limiter, &cluster.nodes[0]) {
        // Some of the checks find that the node is silent.
        assert!(checks < 20, "the breaker of the hung node does not open");
        let pairs = [pair(&hung, &one, 1), pair(&healthy, &one, 1)];
        let denied = limiter.check(pairs).await.unwrap();
        assert!(!denied.is_admitted(), "check {checks}: the healthy slot denies");
        checks += 1;
    }
    assert!(!is_open(&limiter, &cluster.nodes[1]), "the healthy node answers");
}

/// A hung node loses no rollback of a healthy node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_node_loses_no_rollback_of_another() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = Limiter::builder(backend.clone()).without_policies();
    let limiter = limiter.deadline(2 * SECOND).build().unwrap();
    let (hung, healthy) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    // A refund in buckets costs the server the same however many charges there are. A log is searched.
    let buckets = Algorithm::SlidingBuckets { precision: HOUR };
    let many = policy("many", 1_000_000, HOUR).with_algorithm(buckets).unwrap();
    for key in [&hung, &healthy] {
        let _ = limiter.check([pair(key, &many, 1)]).await.unwrap();
    }
    for node in &cluster.nodes {
        // The healthy node answers while the other one is down.
        Admin::at(node).query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster.nodes[0].signal(libc::SIGSTOP);
    let checks = (0..4_000).map(|_| limiter.check([pair(&hung, &many, 1), pair(&healthy, &many, 1)]));
    concurrently(checks).await;
    limiter.drain().await;
    cluster.nodes[0].signal(libc::SIGCONT);
    until_decided(&limiter, &healthy, &many).await;
    let used = used(&limiter, &healthy, &many).await;
    assert_eq!((used, backend.lost_rollbacks()), (1, 0), "every rollback of the healthy node has run");
}

/// Each rollback ends after some seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_ends_while_a_node_hangs() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let (hung, healthy) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let many = policy("many", 1_000_000, HOUR);
    let check = Check::new([pair(&hung, &many, 1), pair(&healthy, &many, 1)]).unwrap();
    assert!(backend.check(&check).await.unwrap().is_admitted(), "both slots admit while all nodes run");
    cluster.nodes[0].signal(libc::SIGSTOP);
    // A check without a deadline, which its caller drops.
    timeout(SECOND / 5, backend.check(&check)).await.expect_err("no reply");
    timeout(TIMEOUT, backend.drain()).await.expect("drain ends while the node hangs");
}

/// A runtime that is not driven holds a rollback. Another runtime drains.
#[test]
fn drain_ends_while_another_runtime_is_not_driven() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (undriven, driven) = (runtime(), runtime());
    let cluster = Cluster::start(Engine::Redis);
    let backend = driven.block_on(backend(&cluster));
    let limiter = Limiter::builder(backend.clone()).without_policies().deadline(SECOND).build().unwrap();
    let (a, b) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let many = policy("many", 1_000_000, HOUR);
    let both = || limiter.check([pair(&a, &many, 1), pair(&b, &many, 1)]);
    let _ = driven.block_on(async { both().await.unwrap() });
    undriven.block_on(async {
        let mut check = Box::pin(both());
        poll_fn(|cx| {
            let _ = Pin::new(&mut check).poll(cx);
            Poll::Ready(())
        })
        .await;
        // The check is dropped here: its rollback runs on this runtime.
    });
    let drained = driven.block_on(async { timeout(TIMEOUT, limiter.drain()).await });
    drained.expect("drain ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_checks_leave_no_charges() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let keys: Vec<_> = (0..3).map(|n| keys_on("k", n).next().unwrap()).collect();
    let many = policy("many", 1_000_000, HOUR);
    let all = || limiter.check(keys.iter().map(|key| pair(key, &many, 1)).collect::<Vec<_>>());
    assert!(all().await.unwrap().is_admitted(), "the first check fits");
    let (mut admitted, mut random) = (1, 12_345_u64);
    for round in 0..50 {
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let micros = (random >> 33) % 12_000;
                let check = all();
                tokio::spawn(async move {
                    let until = tokio::time::Instant::now() + Duration::from_micros(micros);
                    tokio::select! {
                        biased;
                        decision = check => u32::from(decision.is_ok_and(|decision| decision.is_admitted())),
                        () = async { while tokio::time::Instant::now() < until { tokio::task::yield_now().await } } => 0,
                    }
                })
            })
            .collect();
        for task in tasks {
            admitted += task.await.unwrap();
        }
        if round % 10 == 0 {
            limiter.drain().await;
        }
    }
    limiter.drain().await;
    let mut usage = Vec::new();
    for key in &keys {
        usage.push(used(&limiter, key, &many).await);
    }
    assert_eq!(usage, [admitted; 3], "each slot has the charges of the admitted checks");
}

/// The round trip is longer than half the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_over_limit_is_denied_by_a_distant_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    let delay = Duration::from_millis(120);
    let backend = RedisBackend::builder(RedisServers::cluster_streams(
        [("127.0.0.1", cluster.nodes[0].port())],
        move |host, port| async move {
            let _ = host;
            let relay = relay(Arc::new(AtomicU16::new(port)), delay, |_| false).await;
            tokio::net::TcpStream::connect(("127.0.0.1", relay)).await
        },
    ))
    .lazy()
    .unwrap();
    let (a, b) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let (many, one) = (policy("many", 1_000, HOUR), policy("one", 1, HOUR));
    let limiter = |deadline| {
        let builder = Limiter::builder(backend.clone()).without_policies().breaker(None::<Breaker>);
        builder.deny_cache(None::<DenyCacheConfig>).deadline(deadline).build().unwrap()
    };
    let both = |limiter: &Limiter| limiter.check([pair(&a, &many, 1), pair(&b, &one, 1)]);
    assert!(both(&limiter(LONG_DEADLINE)).await.unwrap().is_admitted(), "the first check fits");
    let uncached = limiter(Duration::from_millis(230));
    let mut outcomes = Vec::new();
    // On a busy machine, some replies are too late.
    while !outcomes.contains(&Ok(false)) {
        let outcome = both(&uncached).await;
        outcomes.push(outcome.map(|decision| decision.is_admitted()).map_err(|error| error.reason()));
        assert!(
            outcomes.len() <= 30 && !outcomes.contains(&Ok(true)),
            "the distant cluster denies the client: {outcomes:?}"
        );
    }
}

/// The outage rules while the node of one slot is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_rules_apply_across_slots() {
    use tower_sliding_window::outage::Share;
    for rule in [OutageRule::FailOpen, OutageRule::FailClosed, OutageRule::LocalFallback(Share::whole())] {
        let cluster = cluster_rows::cluster();
        let backend = backend(&cluster).await;
        let layer = RateLimitLayer::builder(backend.clone())
            .policy(policy("own", 1_000, HOUR))
            .outage(rule)
            .deadline(SECOND)
            .key(header("x-api-key").unwrap())
            .also(limit(header("x-other").unwrap()).policy(policy("shared", 10, HOUR)))
            .build()
            .unwrap();
        let send = async |own: &str, other: &str| {
            let request =
                Request::get("/").header("x-api-key", own).header("x-other", other).body(()).unwrap();
            let ok = async |_: Request<()>| Ok::<_, std::convert::Infallible>(http::Response::new(()));
            layer.layer(service_fn(ok)).oneshot(request).await.unwrap().status().as_u16()
        };
        let find = |policy: &str| {
            let of =
                |n: usize| Admin::at(&cluster.nodes[n]).keys().into_iter().find(|key| key.ends_with(policy));
            (0..3).find_map(|n| of(n).map(|key| (n, key))).unwrap()
        };
        let mut n = 0;
        let (own, shared) = loop {
            cluster.flush();
            assert_eq!(
                send(&n.to_string(), "other").await,
                200,
                "{rule:?}: the first request of key {n} fits"
            );
            let (own, shared) = (find("own"), find("shared"));
            if own.0 != shared.0 {
                break (own, shared);
            }
            n += 1;
        };
        Admin::at(&cluster.nodes[shared.0]).query::<()>(&["DEL", &shared.1]);
        cluster.nodes[own.0].signal(libc::SIGSTOP);
        let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
        for _ in 0..50 {
            *statuses.entry(send(&n.to_string(), "other").await).or_default() += 1;
        }
        timeout(TIMEOUT, backend.drain()).await.expect("drain ends while the node hangs");
        cluster.nodes[own.0].signal(libc::SIGCONT);
        let key = PartitionKey::new("header:x-api-key", n.to_string());
        until_decided(&patient(&backend), &key, &policy("own", 1_000, HOUR)).await;
        backend.drain().await;
        let mut after = std::collections::BTreeMap::<u16, u32>::new();
        for _ in 0..20 {
            *after.entry(send(&n.to_string(), "other").await).or_default() += 1;
        }
        // To fail open, the healthy slot fills. Otherwise, its charges are rolled back.
        let (expected, expected_after) = match rule {
            OutageRule::FailOpen => (vec![(200, 10), (429, 40)], vec![(429, 20)]),
            OutageRule::FailClosed => (vec![(503, 50)], vec![(200, 10), (429, 10)]),
            _ => (vec![(200, 10), (503, 40)], vec![(200, 10), (429, 10)]),
        };
        assert_eq!(statuses.into_iter().collect::<Vec<_>>(), expected, "{rule:?}");
        assert_eq!(after.into_iter().collect::<Vec<_>>(), expected_after, "{rule:?}");
    }
}

/// Checks that are denied, dropped and admitted at random leave what was admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_and_denied_checks_leave_admitted_charges() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let other =
        Limiter::builder(backend.clone()).without_policies().deny_cache(None).max_checks_in_flight(64);
    let other = other.deadline(SECOND).build().unwrap();
    let keys: Vec<_> = (0..3).map(|n| keys_on("k", n).next().unwrap()).collect();
    let policies = [policy("p", 1_000_000, HOUR), policy("p", 150, HOUR), policy("p", 1_000, HOUR)];
    let mut random = 777_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut admitted = 0;
    for _ in 0..50 {
        let tasks: Vec<_> = (0..20)
            .map(|i| {
                let limiter = if i % 2 == 0 { &limiter } else { &other };
                let cost = 1 + next(3) as u32;
                let pairs = keys.iter().zip(&policies).map(|(key, policy)| pair(key, policy, cost));
                let check = limiter.check(pairs.collect::<Vec<_>>());
                let limit = Duration::from_micros(next(15_000));
                tokio::spawn(async move {
                    let until = tokio::time::Instant::now() + limit;
                    tokio::select! {
                        biased;
                        decision = check => if decision.is_ok_and(|decision| decision.is_admitted()) { cost } else { 0 },
                        () = async { while tokio::time::Instant::now() < until { tokio::task::yield_now().await } } => 0,
                    }
                })
            })
            .collect();
        for task in tasks {
            admitted += task.await.unwrap();
        }
    }
    limiter.drain().await;
    let mut usage = Vec::new();
    for (key, policy) in keys.iter().zip(&policies) {
        usage.push(used(&limiter, key, policy).await);
    }
    assert_eq!(usage, [admitted; 3], "each slot has the charges of the admitted checks");
}

/// Reads and drops on several runtimes that share a backend; the runtimes end while rollbacks are in progress.
#[test]
fn ended_runtimes_count_lost_rollbacks() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let main = runtime();
    let cluster = Cluster::start(Engine::Redis);
    let backend = main.block_on(backend(&cluster));
    let limiter = Limiter::builder(backend.clone()).without_policies().deadline(SECOND).build().unwrap();
    let (a, b) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let many = policy("many", 1_000_000, HOUR);
    let both = || limiter.check([pair(&a, &many, 1), pair(&b, &many, 1)]);
    let mut admitted = u32::from(main.block_on(async { both().await.unwrap() }).is_admitted());
    for round in 0..40 {
        let ending = runtime();
        let (mut first, mut outcome) = (None, 0);
        ending.block_on(async {
            outcome += u32::from(both().await.is_ok_and(|decision| decision.is_admitted()));
            let mut check = Box::pin(both());
            for _ in 0..round {
                let is_done = poll_fn(|cx| Poll::Ready(Pin::new(&mut check).poll(cx))).await;
                if let Poll::Ready(decision) = is_done {
                    outcome += u32::from(decision.is_ok_and(|decision| decision.is_admitted()));
                    return;
                }
                tokio::task::yield_now().await;
            }
            first = Some(check);
        });
        admitted += outcome;
        if round % 2 == 0 {
            drop(first);
            drop(ending);
        } else {
            drop(ending);
            drop(first);
        }
    }
    let drained = main.block_on(async { timeout(TIMEOUT, limiter.drain()).await });
    let usage = main.block_on(async {
        // The servers run the calls of the runtimes that have ended.
        sleep(SECOND / 5).await;
        [used(&limiter, &a, &many).await, used(&limiter, &b, &many).await]
    });
    let (lost, unanswered) = (backend.lost_rollbacks(), backend.unanswered_checks());
    drained.unwrap();
    for usage in usage {
        assert!(
            usage >= admitted && u64::from(usage - admitted) <= lost + unanswered,
            "{usage} units used by {admitted} admitted checks: only {lost} lost rollbacks and {unanswered} unanswered checks may be charged, too"
        );
    }
}

/// A check that is dropped before anything was sent sends nothing.
#[tokio::test]
async fn check_dropped_while_connecting_sends_nothing() {
    let cluster = Cluster::start(Engine::Redis);
    let (a, b) = (keys_on("a", 0).next().unwrap(), keys_on("b", 1).next().unwrap());
    let many = policy("many", 1_000_000, HOUR);
    let backend = RedisBackend::builder(RedisServers::cluster([cluster.nodes[0].url()])).lazy().unwrap();
    let limiter = patient(&backend);
    let mut check = Box::pin(limiter.check([pair(&a, &many, 1), pair(&b, &many, 1)]));
    poll_fn(|cx| {
        let _ = Pin::new(&mut check).poll(cx);
        Poll::Ready(())
    })
    .await;
    drop(check);
    limiter.drain().await;
    // No event shows that nothing is sent.
    sleep(SECOND).await;
    let calls = [0, 1].map(|n| evalsha(&cluster.nodes[n]) + Admin::at(&cluster.nodes[n]).calls("eval").all);
    assert_eq!(calls, [0, 0], "no script call reaches a node");
}

/// Returns the policy names of the statuses of a check.
fn decided(decision: &tower_sliding_window::Decision) -> Vec<&str> {
    decision.statuses().iter().map(|status| status.policy().name()).collect()
}

/// A shadow slot that denies, and an enforcing slot that denies: with and without a peek first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_slot_denies_no_check() {
    let cluster = Cluster::start(Engine::Redis);
    let backend = backend(&cluster).await;
    for cache in [Some(DenyCacheConfig::default()), None] {
        for node in &cluster.nodes[..3] {
            Admin::at(node).query::<()>(&["FLUSHALL"]);
        }
        let limiter = Limiter::builder(backend.clone()).without_policies().deny_cache(cache);
        let limiter = limiter.deadline(LONG_DEADLINE).build().unwrap();
        let (user, route) = (keys_on("user", 0).next().unwrap(), keys_on("route", 1).next().unwrap());
        let (two, canary) = (policy("two", 2, HOUR), policy("canary", 1, HOUR));
        let both = || limiter.check([pair(&route, &canary, 1).shadow(), pair(&user, &two, 1)]);
        for denials in [0, 1] {
            let decision = both().await.unwrap();
            assert!(decision.is_admitted() && decision.shadow_denied().count() == denials, "{decision:?}");
            assert_eq!(decided(&decision), ["canary", "two"], "the statuses are in the order of the pairs");
        }
        assert_eq!(used(&limiter, &route, &canary).await, 1, "a shadow denial charges nothing");
        // The enforcing slot denies: the shadow slot is rolled back.
        let wide = policy("wide", 9, HOUR);
        let of_route = [pair(&route, &wide, 1).shadow(), pair(&route, &canary, 1).shadow()];
        let pairs = [&of_route[..], &[pair(&user, &two, 1)]].concat();
        let denied = limiter.check(pairs).await.unwrap();
        assert!(!denied.is_admitted(), "the enforcing slot denies");
        if cache.is_some() {
            // Without a peek, the shadow slot has replied. Its statuses contain no charge.
            let remaining: Vec<u32> = denied.statuses().iter().map(|status| status.remaining()).collect();
            assert_eq!(
                (decided(&denied), remaining),
                (vec!["wide", "canary", "two"], vec![9, 0, 0]),
                "the statuses contain no charge of the denied check"
            );
        }
        limiter.drain().await;
        assert_eq!(used(&limiter, &route, &wide).await, 0, "the shadow slot is rolled back");
        // Shadow slots alone.
        let shadows = [pair(&route, &canary, 1).shadow(), pair(&user, &two, 1).shadow()];
        let decision = limiter.check(shadows).await.unwrap();
        assert!(decision.is_admitted() && decision.shadow_denied().count() == 2, "{decision:?}");
    }
    assert_eq!(backend.lost_rollbacks(), 0, "every rollback has run");
}

/// A shadow slot whose node is dead or hangs makes no check unavailable, and its circuit breaker opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_shadow_slot_makes_no_check_unavailable() {
    let cached = Some(DenyCacheConfig::default());
    for (is_killed, cache) in [(true, cached), (false, cached), (false, None)] {
        let mut cluster = cluster_rows::cluster();
        let limiter = Limiter::builder(backend(&cluster).await).without_policies().deny_cache(cache);
        // Until the breaker opens, a check waits for half of its deadline.
        let limiter = limiter.deadline(2 * SECOND).breaker(Breaker::new(5, HOUR));
        let limiter = limiter.build().unwrap();
        let (user, route) = (keys_on("user", 0).next().unwrap(), keys_on("route", 1).next().unwrap());
        let (ten, canary) = (policy("ten", 10, HOUR), policy("canary", 10, HOUR));
        let pairs = || [pair(&route, &canary, 1).shadow(), pair(&user, &ten, 1)];
        assert_eq!(
            decided(&limiter.check(pairs()).await.unwrap()),
            ["canary", "ten"],
            "all slots reply while the node runs"
        );
        if is_killed {
            cluster.kill(1);
        } else {
            cluster.nodes[1].signal(libc::SIGSTOP);
        }
        for remaining in (1..9).rev() {
            let reservation = limiter.reserve(pairs()).await.unwrap();
            let decision = reservation.decision().unwrap();
            assert_eq!(
                (decided(decision), decision.receipts().len()),
                (vec!["ten"], 2),
                "only the enforcing slot has a status, and both pairs have receipts"
            );
            assert_eq!(
                decision.statuses()[0].remaining(),
                remaining,
                "the enforcing slot charges each check once"
            );
            assert_eq!(decision.policies().count(), 2, "the decision names both policies");
        }
        // The breaker opens when the last answer of the node is a deadline old.
        let lost = Instant::now();
        while !is_open(&limiter, &cluster.nodes[1]) && lost.elapsed() < TIMEOUT {
            let peeked = limiter.peek(pairs()).await;
            assert!(peeked.is_ok(), "the enforcing slot decides: {peeked:?}");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(
            is_open(&limiter, &cluster.nodes[1]),
            "the breaker of the lost node opens: {:?}",
            limiter.stats()
        );
        // The enforcing slot denies as usual.
        assert!(limiter.check(pairs()).await.unwrap().is_admitted(), "the last unit of the enforcing slot");
        assert!(!limiter.check(pairs()).await.unwrap().is_admitted(), "the enforcing slot denies as usual");
        // Shadow slots alone: without any reply, there is an error, and the caller decides.
        let alone = limiter.check([pair(&route, &canary, 1).shadow()]).await;
        assert!(alone.is_err(), "without any reply, there is no decision: {alone:?}");
        let shadows = [pair(&route, &canary, 1).shadow(), pair(&user, &policy("new", 9, HOUR), 1).shadow()];
        let decision = limiter.check(shadows).await.unwrap();
        assert_eq!(
            (decision.is_admitted(), decided(&decision)),
            (true, vec!["new"]),
            "one reply of a shadow slot is a decision"
        );
        if !is_killed {
            cluster.nodes[1].signal(libc::SIGCONT);
        }
    }
}

/// The node of a pair that was denied hangs.
#[tokio::test]
async fn known_denial_outlives_hung_slot() {
    let cluster = cluster_rows::cluster();
    let backend = backend(&cluster).await;
    let (own, shared) = (policy("own", 1, HOUR), policy("shared", 100, HOUR));
    let node = 1;
    let (denied, other) = (keys_on("user", node).next().unwrap(), keys_on("tenant", 0).next().unwrap());
    for rule in [OutageRule::FailOpen, OutageRule::FailClosed] {
        cluster.flush();
        let max_age = Duration::from_millis(20);
        let limiter = Limiter::builder(backend.clone()).without_policies().outage(rule).breaker(None);
        let limiter =
            limiter.deny_cache(DenyCacheConfig::new(max_age, 1_000)).deadline(SECOND).build().unwrap();
        let both = || [pair(&other, &shared, 1), pair(&denied, &own, 1)];
        assert!(limiter.check([pair(&denied, &own, 1)]).await.unwrap().is_admitted());
        assert!(!limiter.check([pair(&denied, &own, 1)]).await.unwrap().is_admitted());
        sleep(2 * max_age).await;
        cluster.nodes[node].signal(libc::SIGSTOP);
        let outcomes = [limiter.admit(both()).await, limiter.admit([pair(&denied, &own, 1)]).await];
        cluster.nodes[node].signal(libc::SIGCONT);
        for outcome in outcomes {
            assert!(
                matches!(&outcome, Err(Rejection::Denied(denied)) if denied.is_cached()),
                "{rule:?}: {outcome:?}"
            );
        }
        limiter.drain().await;
        assert_eq!(used(&patient(&backend), &other, &shared).await, 0, "the healthy slot is rolled back");
    }
}

/// A call of four pairs is as long as a call may take.
#[tokio::test]
async fn rollback_of_many_pairs_takes_several_calls() {
    let cluster = cluster_rows::cluster();
    let backend = backend(&cluster).await;
    let limiter = patient(&backend);
    let (charged, denied) = (keys_on("user", 0).next().unwrap(), keys_on("tenant", 1).next().unwrap());
    let (many, one) = ((0..7).map(|n| policy(&n.to_string(), 10, HOUR)), policy("one", 1, HOUR));
    assert!(limiter.check([pair(&denied, &one, 1)]).await.unwrap().is_admitted());
    let many: Vec<Policy> = many.collect();
    let calls = evalsha(&cluster.nodes[0]);
    let pairs = many.iter().map(|policy| pair(&charged, policy, 1)).chain([pair(&denied, &one, 1)]);
    assert!(!limiter.check(pairs.collect::<Vec<_>>()).await.unwrap().is_admitted());
    limiter.drain().await;
    assert_eq!(evalsha(&cluster.nodes[0]) - calls, 3, "the charge, and a rollback in two parts");
    for policy in &many {
        assert_eq!(used(&limiter, &charged, policy).await, 0, "{policy:?}");
    }
}
