//! Another server is the primary: found without a restart, and without a check that is charged twice.

use std::time::{Duration, Instant};

use tokio::{task::spawn_blocking, time::sleep};
use tower_sliding_window::{Limiter, RedisBackend, backend::Reason, redis::ConnectError};

use super::{
    look::Look,
    rig::{HOUR, alice, at_once, limiter, policy, remaining},
};
use crate::support::{
    sentinel::Watched,
    server::{Engine, Server},
};

/// Long enough for Sentinels to agree, and for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn hurried(backend: RedisBackend) -> Limiter {
    Limiter::builder(backend).policy(policy("hourly", 100, HOUR)).build().unwrap()
}

/// Asks until there is a decision; returns how often there was none.
async fn until_decided(limiter: &Limiter) -> u32 {
    let start = Instant::now();
    for outages in 0.. {
        match limiter.check(alice(), 1).await {
            Ok(decision) => {
                assert!(decision.is_admitted());
                return outages;
            }
            Err(error) => assert!(!error.reason().is_of_one_check(), "{error:?}"),
        }
        assert!(start.elapsed() < PATIENCE, "there is never a decision");
        sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

/// Without keeping others of this test waiting.
async fn start(engine: Engine) -> Watched {
    spawn_blocking(move || Watched::start(engine)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_primary_that_dies_is_followed_by_its_replica_which_knows_what_was_charged() {
    at_once(Engine::ALL.map(|engine| async move {
        let mut watched = start(engine).await;
        let backend = RedisBackend::connect_sentinel(&watched.url(), watched.sentinel_urls()).await.unwrap();
        let limiter = hurried(backend.clone());
        limiter.check(alice(), 40).await.unwrap();
        Look::at(&watched.primary).replicate();

        watched.primary.kill();
        until_decided(&limiter).await;
        let left = remaining(&limiter).await;
        // Those of the checks without an answer that had run stand; but none was under way when it died.
        assert_eq!(left, 59, "{engine:?}, {} unanswered", backend.unanswered_checks());
        assert_eq!(Look::at(&watched.replica).info("replication", "role").as_deref(), Some("master"));
    }))
    .await;
}

/// A server that is stopped keeps its connections, and nobody hangs up.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_primary_that_hangs_is_followed_by_its_replica_and_charges_nothing_afterwards() {
    at_once(Engine::ALL.map(|engine| async move {
        let watched = start(engine).await;
        let backend = RedisBackend::connect_sentinel(&watched.url(), watched.sentinel_urls()).await.unwrap();
        let limiter = hurried(backend);
        limiter.check(alice(), 40).await.unwrap();
        Look::at(&watched.primary).replicate();

        // One of those who know hangs as well, and it is the first.
        watched.sentinels[0].signal(libc::SIGSTOP);
        watched.primary.signal(libc::SIGSTOP);
        until_decided(&limiter).await;
        assert_eq!(remaining(&limiter).await, 59, "{engine:?}");

        watched.primary.signal(libc::SIGCONT);
        for _ in 0..10 {
            let decision = limiter.check(alice(), 0).await;
            assert_eq!(decision.unwrap().statuses()[0].remaining(), 59, "{engine:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }))
    .await;
}

/// A primary that becomes a replica says so, and the next check already is for the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_planned_failover_costs_a_few_checks_at_most() {
    at_once(Engine::ALL.map(|engine| async move {
        let watched = start(engine).await;
        let backend = RedisBackend::connect_sentinel(&watched.url(), watched.sentinel_urls()).await.unwrap();
        let limiter = hurried(backend);
        limiter.check(alice(), 40).await.unwrap();
        Look::at(&watched.primary).replicate();

        let mut sentinel = Look::at(&watched.sentinels[1]);
        sentinel.ask::<()>(&["SENTINEL", "FAILOVER", "limits"]);
        let start = Instant::now();
        let is_replica = || -> redis::RedisResult<bool> {
            let mut connection = redis::Client::open(watched.primary.url())?.get_connection()?;
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection)?;
            Ok(role[0] == redis::Value::BulkString(b"slave".into()))
        };
        // Sentinels close the connections of the server that they change.
        while !is_replica().unwrap_or(false) {
            assert!(start.elapsed() < PATIENCE);
            let _ = limiter.check(alice(), 0).await;
            sleep(Duration::from_millis(10)).await;
        }
        until_decided(&limiter).await;
        assert_eq!(remaining(&limiter).await, 59, "{engine:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_service_that_nobody_knows_and_sentinels_that_are_not_there_are_errors() {
    let watched = Watched::start(Engine::Redis);
    let error =
        RedisBackend::connect_sentinel("redis://another/", watched.sentinel_urls()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().starts_with("Redis at another (by Sentinel): "), "{error}");

    let nobody: [&str; 0] = [];
    let error = RedisBackend::lazy_sentinel("redis://limits/", nobody).unwrap_err();
    assert!(error.to_string().starts_with("missing Sentinel: give at least one URL; "), "{error}");
    let error = RedisBackend::lazy_sentinel("redis://limits/", ["redis:/"]).unwrap_err();
    assert!(error.to_string().contains("a Redis URL looks like"), "{error}");

    let backend = RedisBackend::lazy_sentinel("redis://limits/", ["redis://127.0.0.1:1"]).unwrap();
    let error = limiter(backend, [policy("hourly", 1, HOUR)]).check(alice(), 1).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Connection, "{error:?}");
}

#[tokio::test]
async fn the_smallest_set_of_permissions_is_enough_behind_sentinels_and_less_is_not() {
    let watched = Watched::start(Engine::Redis);
    let allow = |commands: &str| {
        let commands = format!("reset on >secret ~tsw:* {commands}");
        let words = ["ACL", "SETUSER", "limiter"].into_iter().chain(commands.split(' '));
        Look::at(&watched.primary).ask::<()>(&words.collect::<Vec<_>>());
    };
    let url = watched.url().replace("redis://", "redis://limiter:secret@");
    let always = "+evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire";
    allow(always);
    assert!(RedisBackend::connect_sentinel(&url, watched.sentinel_urls()).await.is_err());
    allow(&format!("{always} +role"));
    let backend = RedisBackend::connect_sentinel(&url, watched.sentinel_urls()).await.unwrap();
    hurried(backend).check(alice(), 1).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_no_primary_is_not_believed_to_be_one() {
    // The Sentinel is wrong: what it names is a replica of somebody.
    let replica = Server::with_options(Engine::Redis, &["--replicaof", "127.0.0.1", "1"]);
    let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", replica.port());
    let sentinel = Server::sentinel(Engine::Redis, &configuration);
    let error = RedisBackend::connect_sentinel("redis://limits/", [sentinel.url()]).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

/// Servers before Redis 6.
#[tokio::test]
async fn a_primary_that_does_not_know_resp3_is_found_and_spoken_to_in_resp2() {
    for engine in Engine::ALL {
        let primary = Server::with_options(engine, &["--rename-command", "HELLO", ""]);
        let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", primary.port());
        let sentinel = Server::sentinel(engine, &configuration);
        let connect = async |url| RedisBackend::connect_sentinel(url, [sentinel.url()]).await;
        let limiter = limiter(connect("redis://limits/").await.unwrap(), [policy("hourly", 100, HOUR)]);
        assert!(limiter.check(alice(), 1).await.unwrap().is_admitted(), "{engine:?}");
        assert!(connect("redis://limits/?protocol=resp3").await.is_err(), "{engine:?}");
    }
    // Who knows it is spoken to in it.
    let primary = Server::start(Engine::Redis);
    let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", primary.port());
    let sentinel = Server::sentinel(Engine::Redis, &configuration);
    let mut look = Look::at(&primary);
    let before = look.calls("hello").all;
    let backend = RedisBackend::connect_sentinel("redis://limits/", [sentinel.url()]).await.unwrap();
    assert_eq!(look.calls("hello").all, before + 1);
    drop(backend);
}
