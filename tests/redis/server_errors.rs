//! Server errors: each is an outage with a reason. None is a denial, and none charges.

use std::thread;

use redis::cmd;
use tower_sliding_window::{Limiter, RedisBackend, backend::Reason};

use super::{
    admin::Admin,
    rig::{HOUR, alice, backend, idle, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// Returns a limiter with two policies, each with 3 of 10 units used.
async fn three_of_ten(server: &Server) -> Limiter {
    let limiter = limiter(backend(server).await, [policy("a", 10, HOUR), policy("b", 10, HOUR)]);
    let _ = limiter.check((alice(), 3)).await.unwrap();
    limiter
}

/// Asserts that usage is unchanged since `three_of_ten`, and that checks work.
async fn assert_three_of_ten(limiter: &Limiter, engine: Engine) {
    assert_eq!(remaining(limiter).await, 7, "{engine:?}");
    let decision = limiter.check(alice()).await.unwrap();
    let remaining = decision.statuses().iter().map(|status| status.remaining());
    assert_eq!(remaining.collect::<Vec<_>>(), [6, 6], "{engine:?}");
}

#[tokio::test]
async fn server_at_memory_limit_is_out_of_memory() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut admin = Admin::at(&server);
        admin.set("maxmemory", "1");
        for _ in 0..2 {
            assert_eq!(reason(limiter.check(alice()).await), Reason::OutOfMemory, "{engine:?}");
        }
        // A new key, and a script that the server has not cached.
        admin.query::<()>(&["SCRIPT", "FLUSH"]);
        let bob = tower_sliding_window::PartitionKey::new("user", "bob");
        assert_eq!(reason(limiter.check(bob).await), Reason::OutOfMemory, "{engine:?}");
        assert_eq!(admin.keys().len(), 2, "{engine:?}");

        admin.set("maxmemory", "0");
        assert_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn replica_is_read_only() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut admin = Admin::at(&server);
        admin.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        for _ in 0..2 {
            assert_eq!(reason(limiter.check(alice()).await), Reason::ReadOnly, "{engine:?}");
        }
        // A replica that may not serve stale data.
        admin.set("replica-serve-stale-data", "no");
        assert_eq!(reason(limiter.check(alice()).await), Reason::Busy, "{engine:?}");

        admin.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        assert_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_endless_script_is_busy() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--lua-time-limit", "20"]);
        let limiter = three_of_ten(&server).await;
        let mut admin = Admin::at(&server);
        let mut other = server.connection();
        let endless = thread::spawn(move || {
            let outcome = cmd("EVAL").arg("while true do end").arg(0).exec(&mut other);
            outcome.expect_err("the script ends only when it is killed")
        });
        // When the script has run for 20 ms, the server answers BUSY to all clients.
        while admin.try_query::<String>(&["PING"]).is_ok() {}
        let outcomes = [limiter.check(alice()).await, limiter.check((alice(), 100)).await];
        admin.query::<()>(&["SCRIPT", "KILL"]);
        endless.join().unwrap();

        assert_eq!(outcomes.map(reason), [Reason::Busy, Reason::Busy], "{engine:?}");
        assert_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn server_loading_its_data_is_busy() {
    for engine in Engine::ALL {
        let mut server = Server::start(engine);
        let backend = RedisBackend::lazy(&server.url()).unwrap();
        let limiter = limiter(backend, [policy("a", 10, HOUR), policy("b", 10, HOUR)]);
        let _ = limiter.check((alice(), 3)).await.unwrap();
        let mut admin = Admin::at(&server);
        admin.set("rdbcompression", "no");
        let value = "string.rep('x', 131072)";
        admin.query::<()>(&["EVAL", &format!("for i = 1, 320 do redis.call('SET', i, {value}) end"), "0"]);
        admin.query::<()>(&["SAVE"]);
        // The keys take two seconds to load. The server serves its clients after every 2 of 40 megabytes. A few long delays take
        // about as long on a busy machine, unlike many short ones.
        server.kill();
        server.add_options(&["--key-load-delay", "6400"]);
        server.restart();
        idle().await;
        let outcome = limiter.check(alice()).await;
        assert_eq!(reason(outcome), Reason::Busy, "{engine:?}");

        let mut admin = Admin::at(&server);
        while admin.number("persistence", "loading") != 0 {
            idle().await;
        }
        assert_three_of_ten(&limiter, engine).await;
    }
}

#[tokio::test]
async fn primary_with_too_few_replicas_is_read_only() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let limiter = three_of_ten(&server).await;
        let mut admin = Admin::at(&server);
        admin.set("min-replicas-to-write", "1");
        assert_eq!(reason(limiter.check(alice()).await), Reason::ReadOnly, "{engine:?}");
        admin.set("min-replicas-to-write", "0");
        assert_three_of_ten(&limiter, engine).await;
    }
}
