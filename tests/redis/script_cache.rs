//! A server that has forgotten the script is told it again, by the check that finds out.

use tower_sliding_window::RedisBackend;

use super::{
    look::{Calls, Look},
    rig::{HOUR, alice, at_once, backend, idle, limiter, policy, remaining},
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
        Look::at(&server).ask::<()>(&["SCRIPT", "FLUSH"]);

        let outcomes = at_once((0..64).map(|_| limiter.check(alice(), 1))).await;
        let admitted = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().is_admitted());
        assert_eq!(admitted.count(), 40, "{engine:?}");
        assert_eq!(remaining(&limiter).await, 0);
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
