//! The warning about a server that evicts keys when its memory is full. The backend logs it once, and no check waits for it.

use tower_sliding_window::{Limiter, Policy, RedisBackend};

use super::{
    admin::Admin,
    rig::{HOUR, alice, backend, idle, limiter, policy, remaining},
};
use crate::support::{
    events::Events,
    server::{Engine, Server},
};

async fn connect(server: &Server) -> Limiter {
    limiter(backend(server).await, [policy("hourly", 100, HOUR)])
}

#[tokio::test]
async fn each_backend_warns_once_about_eviction() {
    for engine in Engine::ALL {
        for policy_name in ["allkeys-lru", "volatile-ttl"] {
            let server =
                Server::with_options(engine, &["--maxmemory", "100mb", "--maxmemory-policy", policy_name]);
            let (events, _guard) = Events::collect();
            let limiter = connect(&server).await;
            for _ in 0..3 {
                let _ = limiter.check(alice()).await.unwrap();
                idle().await;
                // The next check needs a new connection.
                Admin::at(&server).query::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                idle().await;
            }
            let text = events.text();
            assert_eq!(text.lines().count(), 1, "{engine:?}: {text}");
            let address = format!("127.0.0.1:{}", server.port());
            assert!(text.contains(policy_name) && text.contains(&address), "{engine:?}: {text}");

            let _ = connect(&server).await.check(alice()).await.unwrap();
            idle().await;
            assert_eq!(events.text().lines().count(), 2, "{engine:?}: another backend warns too");
        }
    }
}

/// The thread of the units in flight has a connection of its own.
#[tokio::test]
async fn connection_of_units_in_flight_asks_for_no_eviction() {
    for engine in Engine::ALL {
        let server =
            Server::with_options(engine, &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
        let limiter = limiter(backend(&server).await, [Policy::in_flight("exports", 5).unwrap()]);
        let held = limiter.check(alice()).await.unwrap();
        idle().await;
        let mut admin = Admin::at(&server);
        let connections = |admin: &mut Admin| admin.info("stats", "total_connections_received").unwrap();
        let (asked, opened) = (admin.calls("info").all, connections(&mut admin));
        drop(held);
        limiter.drain().await;
        idle().await;
        // The look-ups of the test itself.
        assert_eq!(admin.calls("info").all, asked + 2, "{engine:?}");
        assert_ne!(connections(&mut admin), opened, "{engine:?}: the thread has connected");
    }
}

#[tokio::test]
async fn backend_logs_nothing_without_eviction() {
    for engine in Engine::ALL {
        for options in [
            &[][..],
            &["--maxmemory", "100mb"],
            &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"],
            &["--maxmemory-policy", "allkeys-lru"],
        ] {
            let server = Server::with_options(engine, options);
            let (events, _guard) = Events::collect();
            let _ = connect(&server).await.check(alice()).await.unwrap();
            idle().await;
            assert!(Admin::at(&server).calls("info").all > 0, "the backend has asked for the policy");
            assert_eq!(events.text(), "", "{engine:?} {options:?}");
        }
    }
}

#[tokio::test]
async fn backend_works_silently_without_info_permission() {
    for engine in Engine::ALL {
        let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
        let server = Server::with_options(engine, &options);
        let mut admin = Admin::at(&server);
        let user = ["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-info"];
        admin.query::<()>(&user);
        let (events, _guard) = Events::collect();
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
        let limiter = limiter(RedisBackend::connect(&url).await.unwrap(), [policy("hourly", 100, HOUR)]);
        idle().await;
        let _ = limiter.check(alice()).await.unwrap();
        assert_eq!((remaining(&limiter).await, &*events.text()), (99, ""), "{engine:?}");
    }
}
