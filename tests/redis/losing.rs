//! What happens to a connection: a server that dies, hangs, or hangs up. Never a denial, and never a wait past the deadline.

use std::time::{Duration, Instant};

use tower_sliding_window::{Limiter, RedisBackend, backend::Reason};

use super::{
    look::Look,
    rig::{HOUR, UNHURRIED, alice, at_once, backend, idle, limiter, policy, reason},
};
use crate::support::server::{Engine, Server};

const DEADLINE: Duration = Duration::from_millis(100);
/// A busy machine wakes late.
const MARGIN: Duration = Duration::from_millis(900);

async fn hurried_and_unhurried(server: &Server) -> (Limiter, Limiter) {
    let builder = Limiter::builder(backend(server).await).policy(policy("hourly", 100, HOUR));
    (builder.clone().deadline(DEADLINE).build().unwrap(), builder.deadline(UNHURRIED).build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_in_mid_check_is_an_error_at_once() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        server.signal(libc::SIGSTOP);
        let checks: Vec<_> = (0..8).map(|_| tokio::spawn(limiter.check(alice(), 1))).collect();
        idle().await;
        server.kill();
        let killed = Instant::now();
        for check in checks {
            assert_eq!(reason(check.await.unwrap()), Reason::Connection, "{engine:?}");
        }
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    }
}

#[tokio::test]
async fn while_a_server_hangs_every_check_ends_at_its_deadline() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (hurried, unhurried) = hurried_and_unhurried(&server).await;
        unhurried.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let connections = look.number("stats", "total_connections_received");

        server.signal(libc::SIGSTOP);
        let start = Instant::now();
        for outcome in at_once((0..8).map(|_| hurried.check(alice(), 1))).await {
            assert_eq!(reason(outcome), Reason::Timeout, "{engine:?}");
        }
        let waited = start.elapsed();
        assert!((DEADLINE..DEADLINE + MARGIN).contains(&waited), "{waited:?}");

        server.signal(libc::SIGCONT);
        let decision = unhurried.check(alice(), 1).await.unwrap();
        // Those that gave up have charged nothing: they came after their deadline.
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
        assert_eq!(look.number("stats", "total_connections_received"), connections, "the same connection");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_after_the_idle_connection_was_closed_makes_a_new_one() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let mut look = Look::at(&server);
        for round in 1..=5 {
            let decision = limiter.check(alice(), 1).await.unwrap();
            assert_eq!(decision.statuses()[0].remaining(), 100 - round, "{engine:?}");
            look.ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            idle().await;
        }
    }
}

/// Without RESP3 the client is not told of the loss: the check that finds it out is an error, and heals it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_resp3_at_most_one_check_pays_for_a_closed_connection() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::connect(&format!("{}?protocol=resp2", server.url())).await.unwrap();
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        Look::at(&server).ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        idle().await;
        if let Err(error) = limiter.check(alice(), 0).await {
            assert_eq!(error.reason(), Reason::Connection, "{engine:?}");
        }
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_made_again_once_for_all_who_wait() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        server.restart();
        idle().await;
        let mut look = Look::at(&server);
        let before = look.number("stats", "total_connections_received");
        for outcome in at_once((0..64).map(|_| limiter.check(alice(), 1))).await {
            assert!(outcome.unwrap().is_admitted());
        }
        assert_eq!(look.number("stats", "total_connections_received") - before, 1, "{engine:?}");
    }
}

/// The address of a primary leads elsewhere after a failover, and the connection to the old one still answers.
#[tokio::test]
async fn a_server_that_is_demoted_is_connected_to_anew() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        let connections = look.number("stats", "total_connections_received");
        look.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        for _ in 0..3 {
            idle().await;
            // One that has just been made is kept for a moment: nobody connects with every check.
            for outcome in at_once((0..10).map(|_| limiter.check(alice(), 1))).await {
                assert_eq!(reason(outcome), Reason::ReadOnly, "{engine:?}");
            }
        }
        look.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        limiter.check(alice(), 1).await.unwrap();
        let made = look.number("stats", "total_connections_received") - connections;
        assert_eq!(made, 3, "{engine:?}");
    }
}

/// The runtime that had the connection is gone, and with it the task that served it.
#[test]
fn a_backend_outlives_the_runtime_that_connected_it() {
    let server = Server::start(Engine::Redis);
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = runtime();
    let limiter = first.block_on(async {
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        limiter.check(alice(), 1).await.unwrap();
        limiter
    });
    drop(first);
    let second = runtime();
    let outcomes = second.block_on(async {
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            outcomes.push(limiter.check(alice(), 1).await.map(|decision| decision.is_admitted()));
        }
        outcomes
    });
    // The first may find the loss out.
    assert!(matches!(outcomes[1], Ok(true)), "{outcomes:?}");
}

/// The same, while it was still connecting: nobody waits for an attempt that nobody makes any more.
#[test]
fn a_backend_outlives_the_runtime_that_was_connecting_it() {
    let server = Server::start(Engine::Redis);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = RedisBackend::lazy(&server.url()).unwrap();
    let limiter =
        Limiter::builder(backend).policy(policy("hourly", 100, HOUR)).deadline(DEADLINE).build().unwrap();
    server.signal(libc::SIGSTOP);
    assert_eq!(reason(runtime().block_on(limiter.check(alice(), 1))), Reason::Timeout);
    server.signal(libc::SIGCONT);
    let second = runtime();
    // The first may find the loss out, and a busy machine may miss a deadline.
    let admitted = (0..20).any(|_| second.block_on(limiter.check(alice(), 1)).is_ok());
    assert!(admitted);
}

/// A client that goes away says nothing of the server.
#[tokio::test]
async fn a_server_that_nobody_waits_for_keeps_its_connection() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
    limiter.check(alice(), 1).await.unwrap();
    let mut look = Look::at(&server);
    let connections = look.number("stats", "total_connections_received");
    for _ in 0..4 {
        let mut check = Box::pin(limiter.check(alice(), 1));
        assert!(poll_once(&mut check).await.is_none());
        drop(check);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    limiter.check(alice(), 1).await.unwrap();
    assert_eq!(look.number("stats", "total_connections_received"), connections, "the same connection");
}

/// What a future says when it is asked once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *future).poll(cx) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
