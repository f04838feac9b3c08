//! Connection setup: eager or lazy, shared by concurrent checks, or supplied by the caller.

use std::{
    error::Error,
    net::TcpListener,
    time::{Duration, Instant},
};

use redis::{Client, aio::ConnectionManager};
use tokio::time::timeout;
use tower_sliding_window::{
    Limiter, RedisBackend,
    backend::Reason,
    redis::{ConnectError, RedisServers},
};

use super::{
    admin::{Admin, Calls},
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, concurrently, idle, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// Returns a port without a listener.
fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn connect_error_hides_password() {
    let port = unused_port();
    let error = RedisBackend::connect(&format!("redis://user:secret@127.0.0.1:{port}/")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    // The attempt ends without a time-out.
    assert!(text.starts_with(&format!("Redis at 127.0.0.1:{port}: Connection refused")), "{text}");
    assert!(!text.contains("secret") && !format!("{error:?}").contains("secret"), "{text} {error:?}");
}

/// The client crate loses what a server states before it closes a connection.
#[tokio::test]
async fn closed_connection_hints_at_its_causes() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // Its own connection takes the only place.
        let mut held = Admin::at(&server);
        held.set("maxclients", "1");
        let error = RedisBackend::connect(&server.url()).await.unwrap_err().to_string();
        assert!(
            error.ends_with(": the server may be at its `maxclients`, be in protected mode, or expect TLS"),
            "{engine:?}: {error}"
        );
    }
}

#[tokio::test]
async fn connect_to_hanging_server_times_out() {
    let server = Server::start(Engine::Redis);
    server.signal(libc::SIGSTOP);
    let start = Instant::now();
    let url = server.url();
    let error = timeout(TIMEOUT, RedisBackend::connect(&url)).await.expect("the attempt ends").unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(!error.to_string().contains("TLS"), "{error}");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(900), "a server has a second to answer, not {waited:?}");
}

#[tokio::test]
async fn invalid_url_error_hides_password() {
    for url in ["http://user:secret@127.0.0.1/", "redis://user:secret@127.0.0.1:99999/", "secret"] {
        let error = RedisBackend::lazy(url).unwrap_err().to_string();
        assert!(
            error.ends_with("a Redis URL looks like redis://[user:password@]host[:port][/database]")
                && !error.contains("secret"),
            "{error}"
        );
        let error = RedisBackend::connect(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Config(_)), "{error:?}");
    }
}

/// A password with an unencoded `@` and a character that ends the host would be read as the host, which errors, events and a metric
/// state.
#[tokio::test]
async fn unencoded_password_is_error() {
    for url in [
        "redis://svc:p@secret#1@127.0.0.1:6379/",
        "redis://svc:p@secret?1@127.0.0.1:6379/",
        "redis://svc:p@secret/1@127.0.0.1:6379/",
        "redis://svc:p@secret#1",
        "redis://svc:123/secret@127.0.0.1/",
        "redis://svc:secret#1@127.0.0.1/",
        " REDISS://svc:p@secret#1@127.0.0.1:6379/",
    ] {
        for (servers, place) in [
            (RedisServers::single(url), ""),
            (RedisServers::cluster(["redis://127.0.0.1/", url]), "node 2: "),
            (RedisServers::sentinel("redis://limits", [url]), "Sentinel 1: "),
        ] {
            let error = RedisBackend::builder(servers).lazy().unwrap_err().to_string();
            let expected =
                format!("{place}`@` or `#` after the host: percent-encode special characters in the");
            assert!(error.starts_with(&expected) && !error.contains("secret"), "{url}: {error}");
        }
    }
    for url in [
        "redis://svc:p@ssword@127.0.0.1:6379/",
        "redis://svc:p%40ss%231@127.0.0.1:6379/3?protocol=resp2",
        "redis+unix:///run/redis@1/redis.sock?user=svc&pass=p@ss",
        "redis://127.0.0.1/0#",
        "redis+unix://localhost/run/redis@1/redis.sock",
        "unix:/run/redis@1.sock",
    ] {
        assert!(RedisBackend::lazy(url).is_ok(), "{url}");
    }
}

/// The client crate connects as the default user if the URL has a user and no password.
#[tokio::test]
async fn user_without_password_is_error() {
    let url = "redis://limiter@127.0.0.1/";
    for (servers, place) in [
        (RedisServers::single(url), ""),
        (RedisServers::single("redis://limiter:@127.0.0.1/"), ""),
        (RedisServers::cluster(["redis://limiter:secret@127.0.0.1/", url]), "node 2: "),
        (RedisServers::sentinel("redis://limits", [url]), "Sentinel 1: "),
    ] {
        let error = RedisBackend::builder(servers).lazy().unwrap_err().to_string();
        let expected = format!("{place}a user needs a password: for a user with `nopass`, state any; ");
        assert!(error.starts_with(&expected), "{error}");
    }
    for url in ["redis://127.0.0.1/", "redis://:secret@127.0.0.1/", "redis://limiter:secret@127.0.0.1/"] {
        RedisBackend::lazy(url).unwrap();
    }
}

/// Only the parameters of a URL choose the protocol.
#[tokio::test]
async fn password_does_not_choose_protocol() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    admin.query::<()>(&["ACL", "SETUSER", "limiter", "on", ">protocol=2", "~*", "+@all"]);
    let url = format!("redis://limiter:protocol=2@127.0.0.1:{}/", server.port());
    let _backend = RedisBackend::connect(&url).await.unwrap();
    let clients: String = admin.query(&["CLIENT", "LIST"]);
    let mut of_backend = clients.lines().filter(|line| line.contains("user=limiter"));
    assert!(of_backend.all(|line| line.contains("resp=3")), "{clients}");
    assert!(clients.contains("user=limiter"), "{clients}");
}

/// `main` prints the errors that it returns by `Debug`.
#[tokio::test]
async fn debug_output_of_error_equals_its_text() {
    let unreachable =
        RedisBackend::connect(&format!("redis://127.0.0.1:{}/", unused_port())).await.unwrap_err();
    let invalid = RedisBackend::connect("secret").await.unwrap_err();
    for error in [unreachable, invalid] {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

#[tokio::test]
async fn debug_output_hides_password() {
    let backend = RedisBackend::lazy("redis://user:s3cret@127.0.0.1:1/").unwrap();
    let text = format!("{backend:?}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("s3cret"), "{text}");
}

#[tokio::test]
async fn lazy_backend_starts_before_its_server() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        server.kill();
        let limiter = Limiter::builder(RedisBackend::lazy(&server.url()).unwrap())
            .policy(policy("hourly", 10, HOUR))
            .deadline(LONG_DEADLINE)
            .build()
            .unwrap();
        for _ in 0..3 {
            // A check that waited until its deadline would time out.
            assert_eq!(reason(limiter.check(alice()).await), Reason::Connection, "{engine:?}");
        }

        server.restart();
        // After a failed attempt, the backend waits for a moment before the next one.
        idle().await;
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 9, "{engine:?}");
    }
}

#[tokio::test]
async fn lazy_backend_keeps_deadline_while_server_hangs() {
    let server = Server::start(Engine::Redis);
    server.signal(libc::SIGSTOP);
    let builder = Limiter::builder(RedisBackend::lazy(&server.url()).unwrap());
    let builder = builder.policy(policy("hourly", 10, HOUR));
    let short_deadline = builder.clone().deadline(Duration::from_millis(50)).build().unwrap();
    let long_deadline = builder.deadline(Duration::from_secs(20)).build().unwrap();

    let start = Instant::now();
    // The server still hangs when the check ends.
    let outcome = timeout(TIMEOUT, short_deadline.check(alice())).await.expect("an end at the deadline");
    assert_eq!(reason(outcome), Reason::Timeout, "the server hangs");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(50), "before the deadline, after {waited:?}");

    server.signal(libc::SIGCONT);
    let decision = long_deadline.check(alice()).await.unwrap();
    // The backend sent nothing before it had a connection.
    assert_eq!(decision.statuses()[0].remaining(), 9, "the check without a connection was never sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_first_checks_open_one_connection() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let limiter = limiter(RedisBackend::lazy(&server.url()).unwrap(), [policy("hourly", 100, HOUR)]);
        let before = admin.number("stats", "total_connections_received");
        for outcome in concurrently((0..64).map(|_| limiter.check(alice()))).await {
            assert!(outcome.unwrap().is_admitted(), "{engine:?}: 64 checks fit into the quota");
        }
        assert_eq!(admin.number("stats", "total_connections_received") - before, 1, "{engine:?}");
        assert_eq!(remaining(&limiter).await, 36, "{engine:?}: each check is charged once");
    }
}

#[tokio::test]
async fn url_selects_protocol() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        // A connection uses RESP2 until the client sends HELLO. The verification calls it once more.
        for (query, hellos) in [("", 2), ("?protocol=resp2", 1), ("?protocol=resp3", 2)] {
            admin.query::<()>(&["FLUSHALL"]);
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            let backend = RedisBackend::connect(&format!("{}{query}", server.url())).await.unwrap();
            let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
            let summary = |decision: tower_sliding_window::Decision| {
                (decision.is_admitted(), decision.statuses()[0].remaining())
            };
            assert_eq!(summary(limiter.check((alice(), 9)).await.unwrap()), (true, 1), "{engine:?} {query}");
            assert_eq!(summary(limiter.check((alice(), 2)).await.unwrap()), (false, 1), "{engine:?} {query}");
            let expected = Calls { all: hellos, failed: 0 };
            assert_eq!(admin.calls("hello"), expected, "{engine:?} {query}");
        }
    }
}

/// Servers before Redis 6 and some proxies do not support HELLO.
#[tokio::test]
async fn backend_falls_back_to_resp2() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--rename-command", "HELLO", ""]);
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
        assert!(limiter.check((alice(), 9)).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check((alice(), 2)).await.unwrap().is_admitted(), "{engine:?}");
        // A URL that demands RESP3 gets an error. The server's own one states the arguments of its command.
        let url = server.url().replace("redis://", "redis://default:secret-word@");
        let error = RedisBackend::connect(&format!("{url}?protocol=resp3")).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{engine:?} {error}");
        let mut texts = vec![format!("{error:?}")];
        let mut cause = error.source();
        while let Some(error) = cause {
            texts.push(format!("{error} {error:?}"));
            cause = error.source();
        }
        assert!(texts.iter().all(|text| !text.contains("secret-word")), "{engine:?} {texts:?}");
    }
}

#[tokio::test]
async fn backend_reuses_supplied_connection() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let client = Client::open(server.url()).unwrap();
        let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
        let manager = ConnectionManager::new(client).await.unwrap();
        let before = Admin::at(&server).number("stats", "total_connections_received");

        let a = limiter(
            RedisBackend::builder(RedisServers::connection(multiplexed)).lazy().unwrap(),
            [policy("hourly", 10, HOUR)],
        );
        let b = limiter(
            RedisBackend::builder(RedisServers::connection(manager)).lazy().unwrap(),
            [policy("hourly", 10, HOUR)],
        );
        assert!(a.check((alice(), 6)).await.unwrap().is_admitted(), "{engine:?}: 6 of 10 units");
        assert!(
            !b.check((alice(), 6)).await.unwrap().is_admitted(),
            "{engine:?}: both backends share the usage"
        );
        assert_eq!(remaining(&b).await, 4, "{engine:?}: the denial charges nothing");
        // The only new connection is that of `Admin`.
        let after = Admin::at(&server).number("stats", "total_connections_received");
        assert_eq!(after - before, 1, "{engine:?}");
    }
}
