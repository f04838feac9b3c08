//! A server that throws limits away when its memory is full is warned about, once, and nobody waits for that.

use tower_sliding_window::{Limiter, RedisBackend};

use super::{
    events::Events,
    look::Look,
    rig::{HOUR, alice, backend, idle, limiter, policy, remaining},
};
use crate::support::server::{Engine, Server};

async fn on(server: &Server) -> Limiter {
    limiter(backend(server).await, [policy("hourly", 100, HOUR)])
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_about_once_for_each_backend() {
    for engine in Engine::ALL {
        for evicts in ["allkeys-lru", "volatile-ttl"] {
            let server =
                Server::with_options(engine, &["--maxmemory", "100mb", "--maxmemory-policy", evicts]);
            let events = Events::default();
            let _guard = tracing::subscriber::set_default(events.clone());
            let limiter = on(&server).await;
            for _ in 0..3 {
                limiter.check(alice(), 1).await.unwrap();
                idle().await;
                // The next one is another connection.
                Look::at(&server).ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                idle().await;
            }
            let told = events.text();
            assert_eq!(told.lines().count(), 1, "{engine:?}: {told}");
            let address = format!("127.0.0.1:{}", server.port());
            assert!(told.contains(evicts) && told.contains(&address), "{engine:?}: {told}");

            on(&server).await.check(alice(), 1).await.unwrap();
            idle().await;
            assert_eq!(events.text().lines().count(), 2, "{engine:?}: of another backend");
        }
    }
}

#[tokio::test]
async fn where_nothing_is_evicted_nothing_is_said() {
    for engine in Engine::ALL {
        for options in [
            &[][..],
            &["--maxmemory", "100mb"],
            &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"],
            &["--maxmemory-policy", "allkeys-lru"],
        ] {
            let server = Server::with_options(engine, options);
            let events = Events::default();
            let _guard = tracing::subscriber::set_default(events.clone());
            on(&server).await.check(alice(), 1).await.unwrap();
            idle().await;
            assert!(Look::at(&server).calls("info").all > 0);
            assert_eq!(events.text(), "", "{engine:?} {options:?}");
        }
    }
}

#[tokio::test]
async fn a_user_who_may_not_ask_is_told_nothing_and_is_limited_as_any_other() {
    for engine in Engine::ALL {
        let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
        let server = Server::with_options(engine, &options);
        let mut look = Look::at(&server);
        let user = ["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-info"];
        look.ask::<()>(&user);
        let events = Events::default();
        let _guard = tracing::subscriber::set_default(events.clone());
        let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
        let limiter = limiter(RedisBackend::connect(&url).await.unwrap(), [policy("hourly", 100, HOUR)]);
        idle().await;
        limiter.check(alice(), 1).await.unwrap();
        assert_eq!((remaining(&limiter).await, &*events.text()), (99, ""), "{engine:?}");
    }
}
