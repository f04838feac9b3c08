//! Databases, passwords and permissions, including the smallest set of permissions that a user needs.

use std::time::Duration;

use tower_sliding_window::{
    Limiter, Policy, RedisBackend,
    backend::{Backend, BackendError, Purpose, Reason},
    redis::ConnectError,
    testing::ManualClock,
};

use super::{
    admin::Admin,
    rig::{self, HOUR, LONG_DEADLINE, Reserved, alice, every_type, limiter, policy, reason, remaining},
};
use crate::support::server::{Engine, Server};

/// The commands that the Redis user needs permission for.
pub const NEEDED: [&str; 13] = [
    "evalsha", "eval", "time", "lindex", "lset", "rpush", "ltrim", "unlink", "pexpire", "get", "set",
    "setrange", "getrange",
];

pub fn url(server: &Server, user: &str, path: &str) -> String {
    format!("redis://{user}@127.0.0.1:{}/{path}", server.port())
}

/// Creates the user `limiter` with the password `secret`, and with permission for only these commands and keys.
pub fn allow<'a>(admin: &mut Admin, keys: &str, commands: impl IntoIterator<Item = &'a str>) {
    let commands: Vec<String> = commands.into_iter().map(|command| format!("+{command}")).collect();
    let mut words = vec!["ACL", "SETUSER", "limiter", "reset", "on", ">secret", keys];
    words.extend(commands.iter().map(String::as_str));
    admin.query::<()>(&words);
}

/// Runs checks of every purpose, refunds at every position, and resets, with every algorithm. Together they call every
/// command of the scripts.
async fn run_all_operations(backend: RedisBackend) -> Result<(), Reason> {
    let run = async || -> Result<(), BackendError> {
        run_on_server_clock(&backend).await?;
        run_on_manual_clock(&backend).await
    };
    run().await.map_err(|error| error.reason())
}

async fn run_on_server_clock(backend: &RedisBackend) -> Result<(), BackendError> {
    for policy in every_type(100, HOUR) {
        let policies = [policy];
        for purpose in [Purpose::Charge, Purpose::Charge, Purpose::Peek, Purpose::Overage] {
            let _ = backend.check(&rig::check(&policies, 1, purpose)).await?;
        }
        let reserved = try_reserve(backend, &policies, 3).await?;
        backend.refund(&reserved.refund(1)).await?;
        let purpose = Purpose::leave_at_most(reserved.decision.at_micros(), u64::MAX);
        let _ = backend.check(&rig::check(&policies, 50, purpose)).await?;
        backend.reset(&rig::check(&policies, 1, Purpose::Charge)).await?;
    }
    Ok(())
}

async fn run_on_manual_clock(backend: &RedisBackend) -> Result<(), BackendError> {
    let clock = ManualClock::new();
    let backend = backend.clone().with_clock(&clock);
    for policy in every_type(100, Duration::from_secs(40)) {
        let policies = [policy];
        let mut reserved = Vec::new();
        for _ in 0..36 {
            reserved.push(try_reserve(&backend, &policies, 2).await?);
            clock.advance(Duration::from_secs(1));
        }
        // First part of a charge in a block, a charge in a block, the oldest and the newest charges; then all others.
        for i in [10, 12, 0, 1, 35, 34] {
            backend.refund(&reserved[i].refund(u32::from(i == 10))).await?;
        }
        for reservation in &reserved {
            backend.refund(&reservation.refund(0)).await?;
        }
        for _ in 0..36 {
            let _ = backend.check(&rig::check(&policies, 1, Purpose::Charge)).await?;
            clock.advance(Duration::from_secs(2));
        }
        // All charges have expired, but the key still exists.
        clock.advance(Duration::from_secs(100));
        let _ = backend.check(&rig::check(&policies, 1, Purpose::Charge)).await?;
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
    assert!(decision.is_admitted(), "the reservation fits");
    Ok(Reserved { check, decision })
}

#[tokio::test]
async fn url_selects_database() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let backend = RedisBackend::connect(&format!("{}3", server.url())).await.unwrap();
        let _ = limiter(backend, [policy("hourly", 10, HOUR)]).check(alice()).await.unwrap();
        let mut admin = Admin::at(&server);
        assert_eq!(admin.keys(), [""; 0], "{engine:?}: database 0 stays empty");
        admin.query::<()>(&["SELECT", "3"]);
        assert_eq!(admin.keys().len(), 1, "{engine:?}");
    }
}

#[tokio::test]
async fn wrong_or_missing_password_is_no_permission() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        admin.set("requirepass", "secret");
        let backend = RedisBackend::connect(&url(&server, ":secret", "")).await.unwrap();
        let valid = limiter(backend, [policy("hourly", 10, HOUR)]);
        let _ = valid.check(alice()).await.unwrap();

        for path in ["", "?protocol=resp2"] {
            for user in [":wrong", "unknown:secret", ""] {
                let url = url(&server, user, path);
                let error = RedisBackend::connect(&url).await.map(|_| ());
                // Without RESP3 and without a password, the backend sends no command before the first check.
                if (path, user) != ("?protocol=resp2", "") {
                    assert!(matches!(error, Err(ConnectError::Unreachable { .. })), "{engine:?} {url}");
                } else {
                    assert!(matches!(error, Err(ConnectError::Unusable { .. })), "{engine:?} {url}");
                }
                let invalid = limiter(RedisBackend::lazy(&url).unwrap(), [policy("hourly", 10, HOUR)]);
                for _ in 0..2 {
                    assert_eq!(
                        reason(invalid.check(alice()).await),
                        Reason::NoPermission,
                        "{engine:?} {url}"
                    );
                }
            }
        }
        assert_eq!(remaining(&valid).await, 9, "{engine:?}: a rejected connection charges nothing");
    }
}

#[tokio::test]
async fn documented_permissions_allow_every_operation() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        allow(&mut Admin::at(&server), "~tsw{*", NEEDED);
        let backend = RedisBackend::connect(&url(&server, "limiter:secret", "")).await.unwrap();
        assert_eq!(run_all_operations(backend).await, Ok(()), "{engine:?}");
    }
}

#[tokio::test]
async fn missing_permission_fails_with_no_permission() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        // Only a release needs it, whose error no caller sees.
        for missing in NEEDED.into_iter().filter(|command| *command != "getrange") {
            admin.query::<()>(&["FLUSHALL"]);
            admin.query::<()>(&["SCRIPT", "FLUSH"]);
            allow(&mut admin, "~tsw{*", NEEDED.into_iter().filter(|command| *command != missing));
            let backend = RedisBackend::lazy(&url(&server, "limiter:secret", "")).unwrap();
            assert_eq!(
                run_all_operations(backend).await,
                Err(Reason::NoPermission),
                "{engine:?} without {missing}"
            );
        }
    }
}

#[tokio::test]
async fn key_permission_covers_one_namespace() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        allow(&mut admin, "~other{*", NEEDED);
        let backend = RedisBackend::connect(&url(&server, "limiter:secret", "")).await.unwrap();
        assert_eq!(run_all_operations(backend.clone()).await, Err(Reason::NoPermission), "{engine:?}");
        assert_eq!(
            admin.keys(),
            [""; 0],
            "{engine:?}: a check without permission for its key writes nothing"
        );

        let builder = Limiter::builder(backend).policy(policy("hourly", 10, HOUR));
        let other = builder.namespace("other").deadline(LONG_DEADLINE).build().unwrap();
        assert!(
            other.check(alice()).await.unwrap().is_admitted(),
            "{engine:?}: the permission covers the namespace `other`"
        );
    }
}

/// A new connection must SELECT any database other than the first.
#[tokio::test]
async fn database_selection_needs_select_permission() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        allow(&mut admin, "~tsw{*", NEEDED);
        let url = url(&server, "limiter:secret", "3");
        assert!(RedisBackend::connect(&url).await.is_err(), "{engine:?}");
        allow(&mut admin, "~tsw{*", NEEDED.into_iter().chain(["select"]));
        assert_eq!(
            run_all_operations(RedisBackend::connect(&url).await.unwrap()).await,
            Ok(()),
            "{engine:?}"
        );
    }
}
