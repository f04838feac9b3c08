//! Databases, passwords and permissions: how little a server has to allow.

use std::time::Duration;

use tower_sliding_window::{
    Limiter, Policy, RedisBackend,
    backend::{Backend, BackendError, Purpose, Reason},
    redis::ConnectError,
    testing::ManualClock,
};

use super::{
    look::Look,
    rig::{self, HOUR, Reserved, alice, every_algorithm, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// The commands that a user of the server needs.
const NEEDED: [&str; 12] = [
    "evalsha", "eval", "time", "lindex", "lset", "rpush", "ltrim", "unlink", "pexpire", "get", "set",
    "setrange",
];

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

/// What a limiter does in all four ways of counting: checks of every purpose, refunds of every place, and resets. Together
/// they call every command that the scripts know.
async fn everything(backend: RedisBackend) -> Result<(), Reason> {
    let run = async || -> Result<(), BackendError> {
        on_the_servers_clock(&backend).await?;
        on_a_moved_clock(&backend).await
    };
    run().await.map_err(|error| error.reason())
}

async fn on_the_servers_clock(backend: &RedisBackend) -> Result<(), BackendError> {
    for policy in every_algorithm(100, HOUR) {
        let policies = [policy];
        for purpose in [Purpose::Charge, Purpose::Charge, Purpose::Peek, Purpose::Overage] {
            backend.check(&rig::check(&policies, 1, purpose)).await?;
        }
        backend.refund(&try_reserve(backend, &policies, 3).await?.refund(1)).await?;
        backend.reset(&rig::check(&policies, 1, Purpose::Charge)).await?;
    }
    Ok(())
}

async fn on_a_moved_clock(backend: &RedisBackend) -> Result<(), BackendError> {
    let clock = ManualClock::new();
    let backend = backend.clone().with_clock(&clock);
    for policy in every_algorithm(100, Duration::from_secs(40)) {
        let policies = [policy];
        let mut reserved = Vec::new();
        for _ in 0..36 {
            reserved.push(try_reserve(&backend, &policies, 2).await?);
            clock.advance(Duration::from_secs(1));
        }
        // Of a block and in part, of a block, the oldest ones and the newest ones; then all others, and nothing is left.
        for i in [10, 12, 0, 1, 35, 34] {
            backend.refund(&reserved[i].refund(u32::from(i == 10))).await?;
        }
        for one in &reserved {
            backend.refund(&one.refund(0)).await?;
        }
        for _ in 0..36 {
            backend.check(&rig::check(&policies, 1, Purpose::Charge)).await?;
            clock.advance(Duration::from_secs(2));
        }
        // All of it has left, but the key is still there.
        clock.advance(Duration::from_secs(100));
        backend.check(&rig::check(&policies, 1, Purpose::Charge)).await?;
    }
    Ok(())
}

async fn try_reserve(
    backend: &RedisBackend,
    policies: &[Policy],
    cost: u32,
) -> Result<Reserved, BackendError> {
    let check = rig::check(policies, cost, Purpose::Reserve);
    let decision = backend.check(&check).await?;
    assert!(decision.is_admitted());
    Ok(Reserved { check, decision })
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
