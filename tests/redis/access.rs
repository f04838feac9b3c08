//! Databases, passwords and permissions: how little a server has to allow.

use std::time::Duration;

use tower_sliding_window::{ConnectError, Limiter, ManualClock, Reason, RedisBackend};

use super::{
    look::Look,
    rig::{HOUR, alice, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// The commands that a user of the server needs.
const NEEDED: [&str; 9] =
    ["evalsha", "eval", "time", "lindex", "lset", "rpush", "ltrim", "unlink", "pexpire"];

fn url(server: &Server, user: &str, path: &str) -> String {
    format!("redis://{user}@127.0.0.1:{}/{path}", server.port())
}

/// A user `limiter` with the password `secret`, and nothing but these commands and keys.
fn allow<'a>(look: &mut Look, keys: &str, commands: impl IntoIterator<Item = &'a str>) {
    let commands: Vec<String> = commands.into_iter().map(|command| format!("+{command}")).collect();
    let mut words = vec!["ACL", "SETUSER", "limiter", "reset", "on", ">secret", keys];
    words.extend(commands.iter().map(String::as_str));
    look.ask::<()>(&words);
}

/// Checks that together call every command that the script knows.
async fn everything(backend: RedisBackend) -> Result<(), Reason> {
    let own_clock = limiter(backend.clone(), [policy("own clock", 100, HOUR)]);
    let clock = ManualClock::new();
    let clocked = limiter(backend.with_clock(&clock), [policy("clocked", 100, Duration::from_secs(10))]);
    let charge =
        async |limiter: &Limiter| limiter.check(alice(), 1).await.map(|_| ()).map_err(|error| error.reason());
    charge(&own_clock).await?;
    for _ in 0..20 {
        charge(&clocked).await?;
        clock.advance(Duration::from_secs(1));
    }
    // All of it has left, but the key is still there.
    clock.advance(Duration::from_secs(100));
    charge(&clocked).await
}

#[tokio::test]
async fn a_database_of_its_own_can_be_chosen() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::connect(&format!("{}3", server.url())).await.unwrap();
        limiter(backend, [policy("hourly", 10, HOUR)]).check(alice(), 1).await.unwrap();
        let mut look = Look::at(&server);
        assert_eq!(look.keys(), [""; 0]);
        look.ask::<()>(&["SELECT", "3"]);
        assert_eq!(look.keys().len(), 1, "{engine:?}");
    }
}

#[tokio::test]
async fn a_password_opens_and_a_wrong_one_or_none_is_no_permission() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        look.set("requirepass", "secret");
        let backend = RedisBackend::connect(&url(&server, ":secret", "")).await.unwrap();
        let right = limiter(backend, [policy("hourly", 10, HOUR)]);
        right.check(alice(), 1).await.unwrap();

        for path in ["", "?protocol=resp2"] {
            for user in [":wrong", "nobody:secret", ""] {
                let url = url(&server, user, path);
                let error = RedisBackend::connect(&url).await.map(|_| ());
                // Without RESP3 and without a password, nothing is asked before the first check.
                if (path, user) != ("?protocol=resp2", "") {
                    assert!(matches!(error, Err(ConnectError::Unreachable { .. })), "{engine:?} {url}");
                }
                let wrong = limiter(RedisBackend::lazy(&url).unwrap(), [policy("hourly", 10, HOUR)]);
                for _ in 0..2 {
                    assert_eq!(
                        reason(wrong.check(alice(), 1).await),
                        Reason::NoPermission,
                        "{engine:?} {url}"
                    );
                }
            }
        }
        assert_eq!(remaining(&right).await, 9);
    }
}

#[tokio::test]
async fn the_smallest_set_of_permissions_is_enough_for_everything() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        allow(&mut Look::at(&server), "~tsw:*", NEEDED);
        let backend = RedisBackend::connect(&url(&server, "limiter:secret", "")).await.unwrap();
        assert_eq!(everything(backend).await, Ok(()), "{engine:?}");
    }
}

#[tokio::test]
async fn with_any_permission_less_something_is_refused_and_has_a_reason() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        for missing in NEEDED {
            look.ask::<()>(&["FLUSHALL"]);
            look.ask::<()>(&["SCRIPT", "FLUSH"]);
            allow(&mut look, "~tsw:*", NEEDED.into_iter().filter(|command| *command != missing));
            let backend = RedisBackend::connect(&url(&server, "limiter:secret", "")).await.unwrap();
            assert_eq!(everything(backend).await, Err(Reason::NoPermission), "{engine:?} without {missing}");
        }
    }
}

#[tokio::test]
async fn a_user_of_another_namespace_is_refused() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        allow(&mut look, "~other:*", NEEDED);
        let backend = RedisBackend::connect(&url(&server, "limiter:secret", "")).await.unwrap();
        assert_eq!(everything(backend.clone()).await, Err(Reason::NoPermission), "{engine:?}");
        assert_eq!(look.keys(), [""; 0]);

        let builder = Limiter::builder(backend).policy(policy("hourly", 10, HOUR));
        let other = builder.namespace("other").build().unwrap();
        assert!(other.check(alice(), 1).await.unwrap().is_admitted());
    }
}

/// A database other than the first has to be selected when the connection is made.
#[tokio::test]
async fn a_database_needs_one_permission_more() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut look = Look::at(&server);
        allow(&mut look, "~tsw:*", NEEDED);
        let url = url(&server, "limiter:secret", "3");
        assert!(RedisBackend::connect(&url).await.is_err(), "{engine:?}");
        allow(&mut look, "~tsw:*", NEEDED.into_iter().chain(["select"]));
        assert_eq!(everything(RedisBackend::connect(&url).await.unwrap()).await, Ok(()), "{engine:?}");
    }
}
