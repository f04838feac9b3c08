//! Failover to another primary: the backend finds it without a restart, and charges no check twice.

use std::{
    sync::{Arc, atomic::AtomicU16},
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::spawn_blocking, time::sleep};
use tower_sliding_window::{
    Limiter, PartitionKey, RedisBackend,
    backend::Reason,
    redis::{ConnectError, RedisServers},
};

use super::{
    admin::Admin,
    proxy::relay,
    rig::{HOUR, TIMEOUT, alice, concurrently, limiter, policy, remaining, wait_until},
};
use crate::support::{
    sentinel::Watched,
    server::{Engine, Server},
};

/// A busy machine exceeds the default deadline of 100 ms.
const DEADLINE: Duration = Duration::from_secs(1);

fn with_deadline(backend: RedisBackend) -> Limiter {
    Limiter::builder(backend).policy(policy("hourly", 100, HOUR)).deadline(DEADLINE).build().unwrap()
}

/// Repeats a check until there is a decision. Returns the number of outages before it.
async fn until_decided(limiter: &Limiter) -> u32 {
    let start = Instant::now();
    for outages in 0.. {
        match limiter.check(alice()).await {
            Ok(decision) => {
                assert!(decision.is_admitted(), "100 units fit all checks");
                return outages;
            }
            Err(error) => assert!(!error.reason().is_of_one_check(), "{error:?}"),
        }
        assert!(start.elapsed() < TIMEOUT, "no check gets a decision");
        sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

/// Starts the servers on a blocking thread, so that the other engines of the test go on.
async fn start(engine: Engine) -> Watched {
    spawn_blocking(move || Watched::start(engine)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn replica_of_dead_primary_keeps_usage() {
    concurrently(Engine::ALL.map(|engine| async move {
        let mut watched = start(engine).await;
        let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), watched.sentinel_urls()))
            .connect()
            .await
            .unwrap();
        let limiter = with_deadline(backend.clone());
        let _ = limiter.check((alice(), 40)).await.unwrap();
        Admin::at(&watched.primary).replicate();

        watched.primary.kill();
        until_decided(&limiter).await;
        let units = remaining(&limiter).await;
        // An unanswered check that had run would remain charged. No check was in flight when the primary died.
        assert_eq!(units, 59, "{engine:?}, {} unanswered", backend.unanswered_checks());
        assert_eq!(
            Admin::at(&watched.replica).info("replication", "role").as_deref(),
            Some("master"),
            "{engine:?}: the replica was promoted"
        );
    }))
    .await;
}

/// A stopped server keeps its connections open.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn replaced_hanging_primary_charges_nothing() {
    concurrently(Engine::ALL.map(|engine| async move {
        let watched = start(engine).await;
        let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), watched.sentinel_urls()))
            .connect()
            .await
            .unwrap();
        let limiter = with_deadline(backend);
        let _ = limiter.check((alice(), 40)).await.unwrap();
        Admin::at(&watched.primary).replicate();

        // The first Sentinel hangs as well.
        watched.sentinels[0].signal(libc::SIGSTOP);
        watched.primary.signal(libc::SIGSTOP);
        until_decided(&limiter).await;
        assert_eq!(remaining(&limiter).await, 59, "{engine:?}");

        watched.primary.signal(libc::SIGCONT);
        for _ in 0..10 {
            let decision = limiter.check((alice(), 0)).await;
            assert_eq!(decision.unwrap().statuses()[0].remaining(), 59, "{engine:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }))
    .await;
}

/// A demoted primary answers READONLY, and the backend reconnects to the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn planned_failover_keeps_usage() {
    concurrently(Engine::ALL.map(|engine| async move {
        let watched = start(engine).await;
        let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), watched.sentinel_urls()))
            .connect()
            .await
            .unwrap();
        let limiter = with_deadline(backend);
        let _ = limiter.check((alice(), 40)).await.unwrap();
        Admin::at(&watched.primary).replicate();

        let mut sentinel = Admin::at(&watched.sentinels[1]);
        sentinel.query::<()>(&["SENTINEL", "FAILOVER", "limits"]);
        let start = Instant::now();
        let is_replica = || -> redis::RedisResult<bool> {
            let mut connection = redis::Client::open(watched.primary.url())?.get_connection()?;
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection)?;
            Ok(role[0] == redis::Value::BulkString(b"slave".into()))
        };
        // Sentinels close the connections of the server that they demote.
        while !is_replica().unwrap_or(false) {
            assert!(start.elapsed() < TIMEOUT, "{engine:?}: the Sentinels do not demote the primary");
            let _ = limiter.check((alice(), 0)).await;
            sleep(Duration::from_millis(10)).await;
        }
        until_decided(&limiter).await;
        assert_eq!(remaining(&limiter).await, 59, "{engine:?}");
    }))
    .await;
}

/// Returns whether a majority of the Sentinels names the replica as the primary.
fn majority_names_replica(sentinels: &mut [Admin], watched: &Watched) -> bool {
    let names_replica = |sentinel: &mut Admin| {
        let named: (String, u16) = sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"]);
        named.1 == watched.replica.port()
    };
    sentinels.iter_mut().filter_map(|sentinel| names_replica(sentinel).then_some(())).count() >= 2
}

/// Fails over by the last Sentinel, while checks of new users run. Returns when the promoted server gets their charges. The old
/// primary never becomes a replica, so that no error and no lost connection shows the failover.
async fn fail_over_under_load(watched: &Watched, limiter: &Limiter, events: &str) {
    let mut sentinels: Vec<_> = watched.sentinels[1..].iter().map(Admin::at).collect();
    sentinels.last_mut().unwrap().query::<()>(&["SENTINEL", "FAILOVER", "limits"]);
    let (start, mut named, mut decided, mut admitted) = (Instant::now(), None, None, 0_u64);
    for user in 0_u64.. {
        // Sentinels close the connections of a server that they promote.
        let replica = || redis::Client::open(watched.replica.url()).unwrap().get_connection();
        let state = || -> redis::RedisResult<(String, u64)> {
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut replica()?)?;
            let keys = redis::cmd("DBSIZE").query(&mut replica()?)?;
            let role = role.into_iter().next().unwrap_or(redis::Value::Nil);
            Ok((redis::from_redis_value(role)?, keys))
        };
        let Ok((role, before)) = state() else { continue };
        let outcome = limiter.check(PartitionKey::new("user", user.to_le_bytes())).await;
        admitted += u64::from(outcome.is_ok());
        let Ok((_, after)) = state() else { continue };
        if named.is_none() && majority_names_replica(&mut sentinels, watched) {
            named = Some(start.elapsed());
        }
        if outcome.is_ok() && role == "master" && after > before {
            decided = Some((start.elapsed(), admitted.saturating_sub(after)));
            break;
        }
        assert!(start.elapsed() < TIMEOUT, "{events}: the backend does not follow the promoted server");
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        Admin::at(&watched.primary).info("replication", "role").as_deref(),
        Some("master"),
        "{events}: no demotion shows the failover"
    );
    let (followed, lacking) = decided.unwrap_or_default();
    println!(
        "{events}: a majority named it after {named:?}, followed after {followed:?}; it lacks {lacking} of {admitted} charges"
    );
}

/// Both servers consider themselves primaries, and the Sentinels name the promoted one.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn planned_failover_moves_charges_to_promoted_server() {
    let none: [&str; 0] = [];
    let options = [&none[..], &["--min-replicas-to-write", "1"]];
    for (engine, options) in
        Engine::ALL.into_iter().flat_map(|engine| options.map(|options| (engine, options)))
    {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let watched = spawn_blocking(move || {
            let options: Vec<_> = options.iter().map(String::as_str).collect();
            (Watched::with_stubborn_primary(engine, &options), options.len())
        });
        let (watched, needs_replica) = watched.await.unwrap();
        let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), watched.sentinel_urls()))
            .connect()
            .await
            .unwrap();
        let limiter = with_deadline(backend);
        until_decided(&limiter).await;
        fail_over_under_load(&watched, &limiter, &format!("{engine:?}, {needs_replica} options")).await;
    }
}

/// The user of the Sentinels may not subscribe.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn backend_follows_primary_without_sentinel_events() {
    let watched = spawn_blocking(|| Watched::with_stubborn_primary(Engine::Redis, &[])).await.unwrap();
    for sentinel in &watched.sentinels {
        let user = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret", "+sentinel|master"];
        Admin::at(sentinel).query::<()>(&user);
    }
    let urls =
        watched.sentinel_urls().into_iter().map(|url| url.replace("redis://", "redis://limiter:secret@"));
    let backend = RedisBackend::builder(RedisServers::sentinel(watched.url(), urls)).connect().await.unwrap();
    let limiter = with_deadline(backend);
    until_decided(&limiter).await;
    fail_over_under_load(&watched, &limiter, "without events").await;
}

/// Returns the number of connections to a Sentinel, besides those of the other Sentinels and of this test.
fn connections(sentinel: &Server) -> usize {
    let clients: String = Admin::at(sentinel).query(&["CLIENT", "LIST"]);
    clients.lines().filter(|client| !client.contains("name=sentinel-")).count() - 1
}

/// The runtime that has connected ends, and so does the only Sentinel that the caller has named.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn backend_discovers_sentinels_on_any_runtime() {
    for engine in Engine::ALL {
        let watched = spawn_blocking(move || Watched::with_stubborn_primary(engine, &[])).await.unwrap();
        let (url, named) = (watched.url(), watched.sentinels[0].url());
        let connect = move || {
            Runtime::new()
                .unwrap()
                .block_on(RedisBackend::builder(RedisServers::sentinel(&url, [named])).connect())
        };
        let limiter = with_deadline(spawn_blocking(connect).await.unwrap().unwrap());
        until_decided(&limiter).await;
        // Two connections to each, of which one gets the events.
        let is_watched = |sentinel| connections(sentinel) == 2;
        wait_until("the backend does not find all Sentinels", || watched.sentinels.iter().all(is_watched))
            .await;

        watched.sentinels[0].signal(libc::SIGSTOP);
        fail_over_under_load(&watched, &limiter, &format!("{engine:?}, one Sentinel named")).await;
        watched.sentinels[0].signal(libc::SIGCONT);

        drop(limiter);
        let is_left = |sentinel| connections(sentinel) == 0;
        wait_until("a dropped backend keeps its connections", || watched.sentinels.iter().all(is_left)).await;
    }
}

#[tokio::test]
async fn unknown_service_and_invalid_sentinels_are_errors() {
    let watched = Watched::start(Engine::Redis);
    let error = RedisBackend::builder(RedisServers::sentinel("redis://another/", watched.sentinel_urls()))
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().starts_with("Redis at another (by Sentinel): "), "{error}");

    let none: [&str; 0] = [];
    let error = RedisBackend::builder(RedisServers::sentinel("redis://limits/", none)).lazy().unwrap_err();
    assert!(error.to_string().starts_with("missing Sentinel: give at least one URL; "), "{error}");
    for (primary, sentinel, expected) in [
        ("redis://limits/", "redis:/", "Sentinel 1: "),
        ("limits", "redis://127.0.0.1/", "the primary, whose host is the service name of the Sentinels: "),
    ] {
        let servers = RedisServers::sentinel(primary, [sentinel]);
        let error = RedisBackend::builder(servers).lazy().unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.contains("a Redis URL looks like"), "{error}");
    }

    let backend = RedisBackend::builder(RedisServers::sentinel("redis://limits/", ["redis://127.0.0.1:1"]))
        .lazy()
        .unwrap();
    let error = limiter(backend, [policy("hourly", 1, HOUR)]).check(alice()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Connection, "{error:?}");
}

#[tokio::test]
async fn sentinel_user_needs_role_permission() {
    let watched = Watched::start(Engine::Redis);
    let allow = |commands: &str| {
        let commands = format!("reset on >secret ~tsw{{* {commands}");
        let words = ["ACL", "SETUSER", "limiter"].into_iter().chain(commands.split(' '));
        Admin::at(&watched.primary).query::<()>(&words.collect::<Vec<_>>());
    };
    let url = watched.url().replace("redis://", "redis://limiter:secret@");
    let always = "+evalsha +eval +time +lindex +lset +rpush +ltrim +unlink +pexpire";
    allow(always);
    assert!(
        RedisBackend::builder(RedisServers::sentinel(&url, watched.sentinel_urls())).connect().await.is_err(),
        "the user has no permission for ROLE"
    );
    allow(&format!("{always} +role"));
    let backend =
        RedisBackend::builder(RedisServers::sentinel(&url, watched.sentinel_urls())).connect().await.unwrap();
    let _ = with_deadline(backend).check(alice()).await.unwrap();
}

#[tokio::test]
async fn backend_rejects_replica_named_by_sentinel() {
    // The Sentinel names a replica as the primary.
    let replica = Server::with_options(Engine::Redis, &["--replicaof", "127.0.0.1", "1"]);
    let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", replica.port());
    let sentinel = Server::sentinel(Engine::Redis, &configuration);
    let builder = || RedisBackend::builder(RedisServers::sentinel("redis://limits/", [sentinel.url()]));
    let error = builder().connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let backend = builder().lazy().unwrap();
    let error = limiter(backend, [policy("hourly", 1, HOUR)]).check(alice()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Connection, "{error:?}");
}

/// A Sentinel that is out of date answers first, and names a server that considers itself a primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_of_sentinels_names_the_primary() {
    for engine in Engine::ALL {
        let [old, new] = [Server::start(engine), Server::start(engine)];
        let sentinel = |primary: &Server, epoch: u32| {
            let port = primary.port();
            let configuration =
                format!("sentinel monitor limits 127.0.0.1 {port} 1\nsentinel config-epoch limits {epoch}\n");
            Server::sentinel(engine, &configuration)
        };
        let others = [sentinel(&new, 4), sentinel(&new, 4)];
        // Even an epoch of its own that is higher does not outvote the others.
        for epoch in [3, 5] {
            let stale = sentinel(&old, epoch);
            let mut urls = vec![stale.url()];
            for other in &others {
                let port = Arc::new(AtomicU16::new(other.port()));
                let port = relay(port, Duration::from_millis(20), |_| false).await;
                urls.push(format!("redis://127.0.0.1:{port}"));
            }
            let backend = RedisBackend::builder(RedisServers::sentinel("redis://limits/", &urls))
                .connect()
                .await
                .unwrap();
            let _ = with_deadline(backend).check(alice()).await.unwrap();
            assert_eq!(Admin::at(&old).keys(), [""; 0], "{engine:?} {epoch}");
        }
        // One of the others hangs. Of the two answers, the newer one counts.
        let stale = sentinel(&old, 3);
        others[0].signal(libc::SIGSTOP);
        let urls = [stale.url(), others[0].url(), others[1].url()];
        let backend =
            RedisBackend::builder(RedisServers::sentinel("redis://limits/", urls)).connect().await.unwrap();
        let _ = with_deadline(backend).check(alice()).await.unwrap();
        assert_eq!(Admin::at(&old).keys(), [""; 0], "{engine:?}");
    }
}

/// Servers before Redis 6 do not support HELLO.
#[tokio::test]
async fn sentinel_backend_falls_back_to_resp2() {
    for engine in Engine::ALL {
        let primary = Server::with_options(engine, &["--rename-command", "HELLO", ""]);
        let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", primary.port());
        let sentinel = Server::sentinel(engine, &configuration);
        let connect =
            async |url| RedisBackend::builder(RedisServers::sentinel(url, [sentinel.url()])).connect().await;
        let limiter = limiter(connect("redis://limits/").await.unwrap(), [policy("hourly", 100, HOUR)]);
        assert!(limiter.check(alice()).await.unwrap().is_admitted(), "{engine:?}");
        assert!(connect("redis://limits/?protocol=resp3").await.is_err(), "{engine:?}");
    }
    // The backend uses RESP3 with a server that supports it.
    let primary = Server::start(Engine::Redis);
    let configuration = format!("sentinel monitor limits 127.0.0.1 {} 1\n", primary.port());
    let sentinel = Server::sentinel(Engine::Redis, &configuration);
    let mut admin = Admin::at(&primary);
    let before = admin.calls("hello").all;
    let backend = RedisBackend::builder(RedisServers::sentinel("redis://limits/", [sentinel.url()]))
        .connect()
        .await
        .unwrap();
    // The verification calls HELLO once more.
    assert_eq!(admin.calls("hello").all, before + 2, "the connection and its verification use RESP3");
    drop(backend);
}
