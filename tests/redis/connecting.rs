//! How a connection comes to be: at once or with the first check, one for all, or the caller's own.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use redis::{Client, aio::ConnectionManager};
use tower_sliding_window::{Limiter, RedisBackend, backend::Reason, redis::ConnectError};

use super::{
    look::{Calls, Look},
    rig::{HOUR, alice, at_once, idle, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// A port at which nobody listens.
fn nobody() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn connecting_to_nobody_is_an_error_without_the_password() {
    let port = nobody();
    let start = Instant::now();
    let error = RedisBackend::connect(&format!("redis://user:secret@127.0.0.1:{port}/")).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("Redis at 127.0.0.1:{port}: ")), "{text}");
    assert!(!text.contains("secret") && !format!("{error:?}").contains("secret"), "{text} {error:?}");
}

#[tokio::test]
async fn connecting_to_a_server_that_does_not_answer_is_an_error_after_a_second() {
    let server = Server::start(Engine::Redis);
    server.signal(libc::SIGSTOP);
    let start = Instant::now();
    let error = RedisBackend::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    let waited = start.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_millis(2_500)).contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn a_url_that_does_not_parse_is_an_error_without_the_password() {
    for url in ["http://user:secret@127.0.0.1/", "redis://user:secret@127.0.0.1:99999/", "secret"] {
        let error = RedisBackend::lazy(url).unwrap_err().to_string();
        assert!(
            error.ends_with("a Redis URL looks like redis://[user:password@]host[:port][/database]")
                && !error.contains("secret"),
            "{error}"
        );
        let error = RedisBackend::connect(url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Url(_)), "{error:?}");
    }
}

#[tokio::test]
async fn debug_hides_the_password() {
    let backend = RedisBackend::lazy("redis://user:s3cret@127.0.0.1:1/").unwrap();
    let text = format!("{backend:?}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("s3cret"), "{text}");
}

#[tokio::test]
async fn a_lazy_backend_may_start_before_its_server() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        server.kill();
        let limiter = Limiter::builder(RedisBackend::lazy(&server.url()).unwrap())
            .policy(policy("hourly", 10, HOUR))
            .deadline(Duration::from_secs(2))
            .build()
            .unwrap();
        for _ in 0..3 {
            let start = Instant::now();
            assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Connection);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        }

        server.restart();
        // Nobody connects for a moment after an attempt that has failed.
        idle().await;
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 9, "{engine:?}");
    }
}

#[tokio::test]
async fn a_lazy_backend_before_a_server_that_does_not_answer_keeps_the_deadline() {
    let server = Server::start(Engine::Redis);
    server.signal(libc::SIGSTOP);
    let builder = Limiter::builder(RedisBackend::lazy(&server.url()).unwrap());
    let builder = builder.policy(policy("hourly", 10, HOUR));
    let hurried = builder.clone().deadline(Duration::from_millis(50)).build().unwrap();
    let unhurried = builder.deadline(Duration::from_secs(20)).build().unwrap();

    let start = Instant::now();
    assert_eq!(reason(hurried.check(alice(), 1).await), Reason::Timeout);
    let waited = start.elapsed();
    assert!((Duration::from_millis(50)..Duration::from_millis(900)).contains(&waited), "{waited:?}");

    server.signal(libc::SIGCONT);
    let decision = unhurried.check(alice(), 1).await.unwrap();
    // Nothing was sent while there was no connection.
    assert_eq!(decision.statuses()[0].remaining(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_checks_open_one_connection() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        let limiter = limiter(RedisBackend::lazy(&server.url()).unwrap(), [policy("hourly", 100, HOUR)]);
        let before = look.number("stats", "total_connections_received");
        for outcome in at_once((0..64).map(|_| limiter.check(alice(), 1))).await {
            assert!(outcome.unwrap().is_admitted());
        }
        assert_eq!(look.number("stats", "total_connections_received") - before, 1, "{engine:?}");
        assert_eq!(remaining(&limiter).await, 36);
    }
}

#[tokio::test]
async fn both_protocols_can_be_chosen() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        // A connection speaks RESP2 until it says HELLO.
        for (query, hellos) in [("", 1), ("?protocol=resp2", 0), ("?protocol=resp3", 1)] {
            look.ask::<()>(&["FLUSHALL"]);
            look.ask::<()>(&["CONFIG", "RESETSTAT"]);
            let backend = RedisBackend::connect(&format!("{}{query}", server.url())).await.unwrap();
            let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
            let seen = |decision: tower_sliding_window::Decision| {
                (decision.is_admitted(), decision.statuses()[0].remaining())
            };
            assert_eq!(seen(limiter.check(alice(), 9).await.unwrap()), (true, 1), "{engine:?} {query}");
            assert_eq!(seen(limiter.check(alice(), 2).await.unwrap()), (false, 1), "{engine:?} {query}");
            let expected = Calls { all: hellos, failed: 0 };
            assert_eq!(look.calls("hello"), expected, "{engine:?} {query}");
        }
    }
}

/// Servers before Redis 6, and some proxies.
#[tokio::test]
async fn a_server_that_does_not_know_resp3_is_spoken_to_in_resp2() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--rename-command", "HELLO", ""]);
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
        assert!(limiter.check(alice(), 9).await.unwrap().is_admitted(), "{engine:?}");
        assert!(!limiter.check(alice(), 2).await.unwrap().is_admitted(), "{engine:?}");
        // Who demands it is told.
        let error = RedisBackend::connect(&format!("{}?protocol=resp3", server.url())).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{engine:?} {error}");
    }
}

#[tokio::test]
async fn the_callers_own_connection_is_welcome() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let client = Client::open(server.url()).unwrap();
        let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
        let manager = ConnectionManager::new(client).await.unwrap();
        let before = Look::at(&server).number("stats", "total_connections_received");

        let a = limiter(RedisBackend::from_connection(multiplexed), [policy("hourly", 10, HOUR)]);
        let b = limiter(RedisBackend::from_connection(manager), [policy("hourly", 10, HOUR)]);
        assert!(a.check(alice(), 6).await.unwrap().is_admitted());
        assert!(!b.check(alice(), 6).await.unwrap().is_admitted());
        assert_eq!(remaining(&b).await, 4);
        // One connection is new: the one that looks.
        let after = Look::at(&server).number("stats", "total_connections_received");
        assert_eq!(after - before, 1, "{engine:?}");
    }
}
