//! Connection loss: a server that dies, hangs, or closes the connection. It causes no denial, and no check waits until the server
//! answers again.

use std::time::{Duration, Instant};

use tower_sliding_window::{Limiter, RedisBackend, backend::Reason};

use super::{
    admin::Admin,
    rig::{HOUR, LONG_DEADLINE, TIMEOUT, alice, backend, concurrently, idle, limiter, policy, reason},
};
use crate::support::server::{Engine, Server};

const DEADLINE: Duration = Duration::from_millis(100);

async fn short_and_long_deadline(server: &Server) -> (Limiter, Limiter) {
    let builder = Limiter::builder(backend(server).await).breaker(None).policy(policy("hourly", 100, HOUR));
    (builder.clone().deadline(DEADLINE).build().unwrap(), builder.deadline(LONG_DEADLINE).build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_server_fails_pending_checks_at_once() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        server.signal(libc::SIGSTOP);
        let checks: Vec<_> = (0..8).map(|_| tokio::spawn(limiter.check(alice()))).collect();
        idle().await;
        server.kill();
        for check in checks {
            // A check that waited until its deadline would time out.
            assert_eq!(reason(check.await.unwrap()), Reason::Connection, "{engine:?}");
        }
    }
}

#[tokio::test]
async fn checks_end_at_deadline_while_server_hangs() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let (short_deadline, long_deadline) = short_and_long_deadline(&server).await;
        let _ = long_deadline.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let connections = admin.number("stats", "total_connections_received");

        server.signal(libc::SIGSTOP);
        let start = Instant::now();
        let checks = concurrently((0..8).map(|_| short_deadline.check(alice())));
        // The server still hangs when they end.
        let outcomes = tokio::time::timeout(TIMEOUT, checks).await.expect("the checks end at their deadline");
        for outcome in outcomes {
            assert_eq!(reason(outcome), Reason::Timeout, "{engine:?}");
        }
        assert!(start.elapsed() >= DEADLINE, "{engine:?}: before the deadline, after {:?}", start.elapsed());

        server.signal(libc::SIGCONT);
        let decision = long_deadline.check(alice()).await.unwrap();
        // The timed-out checks have charged nothing: they ran after their deadline.
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
        assert_eq!(admin.number("stats", "total_connections_received"), connections, "the same connection");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reconnects_after_idle_connection_closes() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let mut admin = Admin::at(&server);
        for round in 1..=5 {
            let decision = limiter.check(alice()).await.unwrap();
            assert_eq!(decision.statuses()[0].remaining(), 100 - round, "{engine:?}");
            admin.query::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            idle().await;
        }
    }
}

/// Without RESP3, the client does not notice the loss. The first check may fail; then the backend reconnects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_resp2_connection_fails_at_most_one_check() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::connect(&format!("{}?protocol=resp2", server.url())).await.unwrap();
        let limiter = limiter(backend, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        Admin::at(&server).query::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        idle().await;
        if let Err(error) = limiter.check((alice(), 0)).await {
            assert_eq!(error.reason(), Reason::Connection, "{engine:?}");
        }
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 98, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_share_one_reconnect() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        server.restart();
        idle().await;
        let mut admin = Admin::at(&server);
        let before = admin.number("stats", "total_connections_received");
        for outcome in concurrently((0..64).map(|_| limiter.check(alice()))).await {
            assert!(outcome.unwrap().is_admitted(), "{engine:?}: every check after the reconnect fits");
        }
        assert_eq!(admin.number("stats", "total_connections_received") - before, 1, "{engine:?}");
    }
}

/// After a failover, the address belongs to another server, while the old connection still answers READONLY.
#[tokio::test]
async fn backend_reconnects_to_demoted_server() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let connections = admin.number("stats", "total_connections_received");
        admin.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        let mut most = 0;
        for _ in 0..3 {
            idle().await;
            let start = Instant::now();
            for outcome in concurrently((0..10).map(|_| limiter.check(alice()))).await {
                assert_eq!(reason(outcome), Reason::ReadOnly, "{engine:?}");
            }
            // The backend keeps a new connection for a moment, and does not reconnect with every check. A busy machine may need longer.
            most += 1 + start.elapsed().as_millis() as u64 / 50;
        }
        admin.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        let _ = limiter.check(alice()).await.unwrap();
        let reconnects = admin.number("stats", "total_connections_received") - connections;
        assert!((3..=most).contains(&reconnects), "{engine:?}: {reconnects} of at most {most}");
    }
}

/// A dropped check says nothing about the server, so the backend keeps its connection.
#[tokio::test]
async fn dropped_checks_keep_connection_open() {
    let server = Server::start(Engine::Redis);
    let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
    let _ = limiter.check(alice()).await.unwrap();
    let mut admin = Admin::at(&server);
    let connections = admin.number("stats", "total_connections_received");
    for _ in 0..4 {
        let mut check = Box::pin(limiter.check(alice()));
        assert!(poll_once(&mut check).await.is_none(), "the check waits for its reply");
        drop(check);
        // So long that a server without a reply would be silent.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let _ = limiter.check(alice()).await.unwrap();
    assert_eq!(admin.number("stats", "total_connections_received"), connections, "the same connection");
}

/// The time between two unanswered checks is not silence of the server.
#[tokio::test]
async fn idle_time_between_drops_keeps_connection_open() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 100, HOUR)]);
        let _ = limiter.check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        let connections = admin.number("stats", "total_connections_received");
        for waited in [100, 20].map(Duration::from_millis) {
            admin.query::<()>(&["CLIENT", "PAUSE", "150"]);
            let check = tokio::time::timeout(waited, limiter.check(alice())).await;
            assert!(check.is_err(), "{engine:?}: the server is paused");
            // Longer than the silence after which the backend reconnects. Meanwhile, the server answers again.
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        let _ = limiter.check(alice()).await.unwrap();
        let new = admin.number("stats", "total_connections_received") - connections;
        assert_eq!(new, 0, "{engine:?}: the same connection");
    }
}

/// Polls a future once. Returns its output if it is ready.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *future).poll(cx) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
