//! Errors of the server are outages with a reason. None of them is a denial, and none of them charges.

use std::thread;

use redis::cmd;
use tower_sliding_window::{Limiter, RedisBackend, backend::Reason};

use super::{
    look::Look,
    rig::{HOUR, alice, backend, idle, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// A limiter with two policies, 3 of 10 units used.
async fn three_of_ten(server: &Server) -> Limiter {
    let limiter = limiter(backend(server).await, [policy("a", 10, HOUR), policy("b", 10, HOUR)]);
    limiter.check(alice(), 3).await.unwrap();
    limiter
}

/// Everything is as it was after `three_of_ten`, and works.
async fn still_three_of_ten(limiter: &Limiter, engine: Engine) {
    assert_eq!(remaining(limiter).await, 7, "{engine:?}");
    let decision = limiter.check(alice(), 1).await.unwrap();
    let left = decision.statuses().iter().map(|status| status.remaining());
    assert_eq!(left.collect::<Vec<_>>(), [6, 6], "{engine:?}");
}

#[tokio::test]
async fn a_server_without_memory_is_out_of_memory() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut look = Look::at(&server);
        look.set("maxmemory", "1");
        for _ in 0..2 {
            assert_eq!(reason(limiter.check(alice(), 1).await), Reason::OutOfMemory, "{engine:?}");
        }
        // A new key, and a script that is not known yet.
        look.ask::<()>(&["SCRIPT", "FLUSH"]);
        let bob = tower_sliding_window::PartitionKey::new("user", "bob");
        assert_eq!(reason(limiter.check(bob, 1).await), Reason::OutOfMemory, "{engine:?}");
        assert_eq!(look.keys().len(), 2, "{engine:?}");

        look.set("maxmemory", "0");
        still_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn a_replica_is_read_only() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut look = Look::at(&server);
        look.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        for _ in 0..2 {
            assert_eq!(reason(limiter.check(alice(), 1).await), Reason::ReadOnly, "{engine:?}");
        }
        // One that may not show what it has.
        look.set("replica-serve-stale-data", "no");
        assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Busy, "{engine:?}");

        look.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        still_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_script_that_does_not_end_is_busy() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--lua-time-limit", "20"]);
        let limiter = three_of_ten(&server).await;
        let mut look = Look::at(&server);
        let mut other = server.connection();
        let endless = thread::spawn(move || {
            let outcome = cmd("EVAL").arg("while true do end").arg(0).exec(&mut other);
            outcome.expect_err("it does not end by itself")
        });
        // Once the script has run for 20 ms, the server says so to everybody.
        while look.try_ask::<String>(&["PING"]).is_ok() {}
        let outcomes = [limiter.check(alice(), 1).await, limiter.check(alice(), 100).await];
        look.ask::<()>(&["SCRIPT", "KILL"]);
        endless.join().unwrap();

        assert_eq!(outcomes.map(reason), [Reason::Busy, Reason::Busy], "{engine:?}");
        still_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_busy() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let backend = RedisBackend::lazy(&server.url()).unwrap();
        let limiter = limiter(backend, [policy("a", 10, HOUR), policy("b", 10, HOUR)]);
        limiter.check(alice(), 3).await.unwrap();
        let mut look = Look::at(&server);
        look.set("rdbcompression", "no");
        let value = "string.rep('x', 8192)";
        look.ask::<()>(&["EVAL", &format!("for i = 1, 5000 do redis.call('SET', i, {value}) end"), "0"]);
        look.ask::<()>(&["SAVE"]);
        // A second and more for the keys; after every two megabytes of the forty, it looks at the clients.
        server.kill();
        server.add_options(&["--key-load-delay", "200"]);
        server.restart();
        idle().await;
        let outcome = limiter.check(alice(), 1).await;
        assert_eq!(reason(outcome), Reason::Busy, "{engine:?}");

        let mut look = Look::at(&server);
        while look.number("persistence", "loading") != 0 {
            idle().await;
        }
        still_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn a_primary_with_too_few_replicas_takes_no_writes() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut look = Look::at(&server);
        look.set("min-replicas-to-write", "1");
        assert_eq!(reason(limiter.check(alice(), 1).await), Reason::ReadOnly, "{engine:?}");
        look.set("min-replicas-to-write", "0");
        still_three_of_ten(&limiter, engine).await;
    }
}
