//! Overload of one process: floods of checks and of disconnects, while Redis works, and denials that outlive Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::Mutex,
    task::{JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};
use tower_sliding_window::{
    Limiter, LimiterBuilder, OutageRule, PartitionKey, RedisBackend, Rejection, backend::Reason,
    outage::Breaker, redis::Merging,
};

use super::rig::{HOUR, LONG_DEADLINE, alice, backend, concurrently, merging_backend, policy};
use crate::support::server::{Engine, Server};

/// Held by a flood, so that two of them do not share the machine.
static FLOOD: Mutex<()> = Mutex::const_new(());

fn on(backend: RedisBackend) -> LimiterBuilder {
    Limiter::builder(backend).policy(policy("five", 5, HOUR)).outage(OutageRule::FailOpen)
}

/// The key of a client that invents its keys.
fn invented(number: usize) -> PartitionKey {
    PartitionKey::new("user", format!("invented {number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_keys_passes_no_request_unchecked() {
    let _flood = FLOOD.lock().await;
    for run in 0..10 {
        let server = Server::start(Engine::Redis);
        let backend = backend(&server).await;
        let warm_up = on(backend.clone()).deadline(LONG_DEADLINE).build().unwrap();
        assert!(warm_up.check((alice(), 5)).await.unwrap().is_admitted(), "the quota of alice is unused");
        // A busy machine may give Redis no time for a tenth of a second. Then it is silent.
        let limiter = on(backend).deadline(Duration::from_millis(250)).build().unwrap();
        for burst in 0..3 {
            flood_with_keys(&limiter, burst, &format!("run {run}, burst {burst}")).await;
        }
    }
}

/// Sends a burst. Every twentieth request is from a client that has used up its quota.
async fn flood_with_keys(limiter: &Limiter, burst: usize, case: &str) {
    const REQUESTS: usize = 10_000;
    let flood: JoinSet<_> = (0..REQUESTS)
        .map(|number| {
            let (limiter, is_alice) = (limiter.clone(), number % 20 == 0);
            async move {
                let key = if is_alice { alice() } else { invented(burst * REQUESTS + number) };
                (is_alice, limiter.admit(key).await)
            }
        })
        .collect();
    let mut decided = 0;
    for (is_alice, outcome) in flood.join_all().await {
        match outcome {
            Ok(admission) => {
                let error = admission.error().map(ToString::to_string);
                assert_eq!((error, is_alice), (None, false), "{case}: this request passes");
                decided += 1;
            }
            Err(Rejection::Denied(_)) => assert!(is_alice, "{case}: the quota of a new key is unused"),
            Err(Rejection::Unavailable(error)) => {
                assert_eq!(error.reason(), Reason::Overloaded, "{case}: {error}");
            }
            Err(other) => panic!("{case}: {other}"),
        }
    }
    assert!(decided > 0, "{case}: Redis decides some of the checks");
}

/// A check with a shadow policy shares no call. Among others in flight, it keeps its place nevertheless when its client leaves.
#[tokio::test]
async fn dropped_check_with_shadow_keeps_its_place() {
    const PLACES: usize = 4;
    let server = Server::start(Engine::Redis);
    let builder = on(merging_backend(&server, Merging::On)).policy(policy("shadow", 5, HOUR).shadow());
    let limiter = builder.breaker(None).max_checks_in_flight(PLACES).deadline(LONG_DEADLINE).build().unwrap();
    assert!(limiter.check(alice()).await.unwrap().is_admitted(), "Redis decides");
    server.signal(libc::SIGSTOP);
    let mut sent = Vec::new();
    for round in 0..2 {
        let clients: JoinSet<_> = (0..2 * PLACES)
            .map(|n| timeout(Duration::from_millis(20), limiter.check(invented(round * 2 * PLACES + n))))
            .collect();
        let outcomes = clients.join_all().await;
        sent.push(outcomes.iter().filter(|outcome| outcome.is_err()).count());
    }
    // The first check has found no other in flight.
    assert_eq!(sent, [PLACES, 1]);
    server.signal(libc::SIGCONT);
    assert!(limiter.check(alice()).await.unwrap().is_admitted(), "a place is free");
    let checks = (0..PLACES).map(|n| limiter.check(invented(100 + n)));
    for decided in join_all(checks).await {
        assert!(
            decided.unwrap().is_admitted(),
            "Redis has answered the checks of the clients that have left"
        );
    }
}

/// Clients that leave early, and the places in flight that their merged checks take, hide no outage.
#[tokio::test]
async fn silent_server_is_an_outage_although_every_client_leaves_early() {
    const DEADLINE: Duration = Duration::from_millis(200);
    for breaker in [Some(Breaker::default()), None] {
        let server = Server::start(Engine::Redis);
        let merged = merging_backend(&server, Merging::On);
        let builder = on(merged).breaker(breaker).max_checks_in_flight(4);
        let limiter = builder.deadline(DEADLINE).build().unwrap();
        let warm_up = on(backend(&server).await).deadline(LONG_DEADLINE).build().unwrap();
        assert!(warm_up.check(alice()).await.is_ok(), "Redis decides");
        let _ = limiter.check(alice()).await;
        server.signal(libc::SIGSTOP);
        // Nothing answers from here on, so the clock of the test can run ahead.
        tokio::time::pause();
        let stopped = Instant::now();
        let (mut number, mut has_passed) = (0, false);
        while !has_passed {
            // More clients than places. Each waits for a tenth of the deadline.
            let clients: JoinSet<_> =
                (number..number + 8).map(|n| timeout(DEADLINE / 10, limiter.admit(invented(n)))).collect();
            number += 8;
            for outcome in clients.join_all().await {
                match outcome {
                    Ok(Ok(admission)) => has_passed |= admission.unchecked().is_some(),
                    Ok(Err(Rejection::Unavailable(error))) => {
                        assert_eq!(error.reason(), Reason::Overloaded, "{breaker:?}: {error}");
                    }
                    Ok(Err(other)) => panic!("{breaker:?}: {other}"),
                    Err(_) => {}
                }
            }
            assert!(
                stopped.elapsed() <= 2 * DEADLINE,
                "{breaker:?}: a server that answers nothing for one deadline is an outage"
            );
            sleep(DEADLINE / 40).await;
        }
        tokio::time::resume();
        server.signal(libc::SIGCONT);
    }
}

/// A process that is so busy that it notices its deadlines late recognises an outage nevertheless.
#[tokio::test]
async fn silent_server_is_an_outage_for_busy_process() {
    let server = Server::start(Engine::Redis);
    let limiter = on(backend(&server).await).deadline(Duration::from_millis(100)).build().unwrap();
    assert!(limiter.check(alice()).await.is_ok(), "Redis decides");
    server.signal(libc::SIGSTOP);
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            while !is_over.load(Ordering::Relaxed) {
                // Occupies the only thread of the runtime.
                std::thread::sleep(Duration::from_millis(20));
                yield_now().await;
            }
        }
    });
    let mut has_passed = false;
    for wave in 0..100 {
        let waiting: JoinSet<_> =
            (0..100).map(|number| limiter.admit(invented(100 * wave + number))).collect();
        has_passed = waiting.join_all().await.iter().all(|outcome| match outcome {
            Ok(admission) => admission.unchecked().is_some(),
            Err(_) => false,
        });
        if has_passed {
            break;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    busy.await.unwrap();
    server.signal(libc::SIGCONT);
    assert!(has_passed, "a server that answers nothing is an outage");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_disconnects_leaves_redis_available() {
    let server = Server::start(Engine::Redis);
    let backend = backend(&server).await;
    let _flood = FLOOD.lock().await;
    for run in 0..2 {
        let attacked = on(backend.clone()).build().unwrap();
        let victim = on(backend.clone()).deadline(Duration::from_secs(1)).build().unwrap();
        let mut flood = JoinSet::new();
        for number in 0..200_000 {
            let check = attacked.check(invented(number));
            // Most clients leave before the reply, or before the check is sent.
            flood.spawn(timeout(Duration::from_millis(number as u64 % 7), check));
            if number % 64 == 0 {
                yield_now().await;
            }
        }
        flood.join_all().await;
        let checks = (0..500).map(|number| {
            let victim = victim.clone();
            async move { victim.check(PartitionKey::new("victim", format!("{run} {number}"))).await }
        });
        for decided in concurrently(checks).await {
            assert!(
                decided.unwrap_or_else(|error| panic!("run {run}: {error}")).is_admitted(),
                "run {run}: a new key"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_key_stays_denied_after_redis_stops() {
    for rule in [OutageRule::FailOpen, OutageRule::FailClosed] {
        let mut server = Server::start(Engine::Redis);
        let limiter = on(backend(&server).await).outage(rule).deadline(LONG_DEADLINE).build().unwrap();
        assert!(limiter.check((alice(), 5)).await.unwrap().is_admitted(), "{rule:?}: the quota is unused");
        assert!(!limiter.check(alice()).await.unwrap().is_admitted(), "{rule:?}: the quota is used");
        server.kill();
        // Longer than the maximum age of the deny cache.
        sleep(Duration::from_millis(1_100)).await;
        for _ in 0..20 {
            let outcome = limiter.admit(alice()).await;
            assert!(matches!(&outcome, Err(Rejection::Denied(denied)) if denied.is_cached()), "{outcome:?}");
        }
        let other = limiter.admit(invented(0)).await;
        assert_eq!(other.is_ok(), rule == OutageRule::FailOpen, "the rule applies to other keys: {other:?}");
    }
}
