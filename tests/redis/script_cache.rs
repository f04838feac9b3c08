//! The server's script cache: the first check that finds the script missing loads it.

use tower_sliding_window::{RedisBackend, backend::Backend, redis::Merging};

use super::{
    admin::{Admin, Calls},
    rig::{
        HOUR, LONG_WINDOW, alice, backend, concurrently, every_algorithm, idle, limiter, merging_backend,
        peek, policy, remaining, reserve,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test]
async fn unknown_script_costs_one_more_round_trip() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10, HOUR)]);
        let mut admin = Admin::at(&server);
        let _ = limiter.check(alice()).await.unwrap();
        admin.query::<()>(&["SCRIPT", "FLUSH"]);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);

        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 8, "{engine:?}: each check is charged once");
        assert_eq!(admin.calls("evalsha"), Calls { all: 1, failed: 1 }, "{engine:?}");
        assert_eq!(admin.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");

        assert_eq!(remaining(&limiter).await, 8, "{engine:?}: a check of cost 0 charges nothing");
        assert_eq!(admin.calls("evalsha"), Calls { all: 2, failed: 1 }, "{engine:?}");
        assert_eq!(admin.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");
        assert_eq!(admin.calls("script|load"), Calls::default(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_load_unknown_script_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        // Merged checks would use two scripts.
        let backend = merging_backend(&server, Merging::Off);
        let limiter = limiter(backend, [policy("hourly", 40, HOUR)]);
        let _ = limiter.check((alice(), 0)).await.unwrap();
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["SCRIPT", "FLUSH"]);
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);

        let outcomes = concurrently((0..64).map(|_| limiter.check(alice()))).await;
        let admitted = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
        assert_eq!(admitted.count(), 40, "{engine:?}");
        assert_eq!(remaining(&limiter).await, 0, "{engine:?}: the admitted checks are charged");
        assert_eq!(
            admin.calls("eval"),
            Calls { all: 1, failed: 0 },
            "{engine:?}: one check loads the script"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_check_after_restart_loads_script() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10, HOUR)]);
        let _ = limiter.check((alice(), 4)).await.unwrap();
        server.restart();
        idle().await;

        // The server has lost all data, so the limit starts with a full quota.
        let decision = limiter.check(alice()).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 9, "{engine:?}");
        assert_eq!(
            Admin::at(&server).calls("eval"),
            Calls { all: 1, failed: 0 },
            "{engine:?}: the first check loads the script"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_after_restart_are_exact() {
    let mut server = Server::start(Engine::Redis);
    let backend = RedisBackend::lazy(&server.url()).unwrap();
    let limiter = limiter(backend, [policy("hourly", 40, HOUR)]);
    let _ = limiter.check(alice()).await.unwrap();
    server.restart();
    idle().await;

    let outcomes = concurrently((0..64).map(|_| limiter.check(alice()))).await;
    let admitted = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
    assert_eq!(admitted.count(), 40, "the quota fits 40 checks");
}

/// Refunds and checks use different scripts, which the server caches independently.
#[tokio::test]
async fn refund_loads_unknown_script_and_applies_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, LONG_WINDOW);
        let mut admin = Admin::at(&server);
        for flushed in [1, 2] {
            let reserved = reserve(&backend, &policies, 5).await;
            admin.query::<()>(&["SCRIPT", "FLUSH"]);
            admin.query::<()>(&["CONFIG", "RESETSTAT"]);
            backend.refund(&reserved.refund(1)).await.unwrap();
            assert_eq!(admin.calls("evalsha"), Calls { all: 1, failed: 1 }, "{engine:?}");
            assert_eq!(admin.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");
            assert_eq!(admin.calls("script|load"), Calls::default(), "{engine:?}");
            for status in peek(&backend, &policies, 0).await.statuses() {
                assert_eq!(status.remaining(), 10 - flushed, "{engine:?}: {status:?}");
            }
        }
        // The server has cached the script now.
        let reserved = reserve(&backend, &policies, 5).await;
        admin.query::<()>(&["CONFIG", "RESETSTAT"]);
        backend.refund(&reserved.refund(0)).await.unwrap();
        assert_eq!(admin.calls("evalsha"), Calls { all: 1, failed: 0 }, "{engine:?}");
        assert_eq!(admin.calls("eval"), Calls::default(), "{engine:?}");
    }
}
