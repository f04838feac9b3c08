//! A server that has forgotten the script is told it again, by the check that finds out.

use tower_sliding_window::{RedisBackend, backend::Backend};

use super::{
    look::{Calls, Look},
    rig::{
        HOUR, LONG, alice, at_once, backend, every_algorithm, idle, limiter, peek, policy, remaining, reserve,
    },
};
use crate::support::server::{Engine, Server};

#[tokio::test]
async fn an_unknown_script_costs_one_more_round_trip_once() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10, HOUR)]);
        let mut look = Look::at(&server);
        limiter.check(alice(), 1).await.unwrap();
        look.ask::<()>(&["SCRIPT", "FLUSH"]);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);

        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 8);
        assert_eq!(look.calls("evalsha"), Calls { all: 1, failed: 1 }, "{engine:?}");
        assert_eq!(look.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");

        assert_eq!(remaining(&limiter).await, 8);
        assert_eq!(look.calls("evalsha"), Calls { all: 2, failed: 1 }, "{engine:?}");
        assert_eq!(look.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");
        assert_eq!(look.calls("script|load"), Calls::default(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_checks_that_find_the_script_unknown_at_once_are_all_right() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 40, HOUR)]);
        limiter.check(alice(), 0).await.unwrap();
        let mut look = Look::at(&server);
        look.ask::<()>(&["SCRIPT", "FLUSH"]);
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);

        let outcomes = at_once((0..64).map(|_| limiter.check(alice(), 1))).await;
        let admitted = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
        assert_eq!(admitted.count(), 40, "{engine:?}");
        assert_eq!(remaining(&limiter).await, 0);
        assert_eq!(look.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}: one tells it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_check_after_a_restart_is_right() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let limiter = limiter(backend(&server).await, [policy("hourly", 10, HOUR)]);
        limiter.check(alice(), 4).await.unwrap();
        server.restart();
        idle().await;

        // Everything is lost, and the limit starts afresh.
        let decision = limiter.check(alice(), 1).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), 9, "{engine:?}");
        assert_eq!(Look::at(&server).calls("eval"), Calls { all: 1, failed: 0 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_checks_right_after_a_restart_are_all_right() {
    let mut server = Server::start(Engine::Redis);
    let backend = RedisBackend::lazy(&server.url()).unwrap();
    let limiter = limiter(backend, [policy("hourly", 40, HOUR)]);
    limiter.check(alice(), 1).await.unwrap();
    server.restart();
    idle().await;

    let outcomes = at_once((0..64).map(|_| limiter.check(alice(), 1))).await;
    let admitted = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
    assert_eq!(admitted.count(), 40);
}

/// The script that gives units back is another one than that of the checks, and is forgotten apart from it.
#[tokio::test]
async fn a_refund_whose_script_is_unknown_is_done_with_its_second_trip() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = backend(&server).await;
        let policies = every_algorithm(10, LONG);
        let mut look = Look::at(&server);
        for flushed in [1, 2] {
            let reserved = reserve(&backend, &policies, 5).await;
            look.ask::<()>(&["SCRIPT", "FLUSH"]);
            look.ask::<()>(&["CONFIG", "RESETSTAT"]);
            backend.refund(&reserved.refund(1)).await.unwrap();
            assert_eq!(look.calls("evalsha"), Calls { all: 1, failed: 1 }, "{engine:?}");
            assert_eq!(look.calls("eval"), Calls { all: 1, failed: 0 }, "{engine:?}");
            assert_eq!(look.calls("script|load"), Calls::default(), "{engine:?}");
            for status in peek(&backend, &policies, 0).await.statuses() {
                assert_eq!(status.remaining(), 10 - flushed, "{engine:?}: {status:?}");
            }
        }
        // From then on it is known.
        let reserved = reserve(&backend, &policies, 5).await;
        look.ask::<()>(&["CONFIG", "RESETSTAT"]);
        backend.refund(&reserved.refund(0)).await.unwrap();
        assert_eq!(look.calls("evalsha"), Calls { all: 1, failed: 0 }, "{engine:?}");
        assert_eq!(look.calls("eval"), Calls::default(), "{engine:?}");
    }
}
