//! `RedisBackend::verify`, and the verification by `connect`: permissions, role, memory, and all primaries of a cluster.

use tower_sliding_window::{
    PartitionKey, RedisBackend,
    backend::Reason,
    redis::{ConnectError, RedisServers, ServerProblem, ServerProblemKind as Kind},
};

use super::{
    access::{NEEDED, allow, url},
    admin::Admin,
    rig::{HOUR, limiter, policy},
};
use crate::support::{
    cluster::Cluster,
    events::Events,
    server::{Engine, Server},
};

/// The needed commands that only some algorithms need.
const OPTIONAL: [&str; 4] = ["get", "set", "setrange", "getrange"];

fn lazy(server: &Server) -> RedisBackend {
    RedisBackend::lazy(&url(server, "limiter:secret", "")).unwrap()
}

async fn connect(server: &Server) -> Result<RedisBackend, ConnectError> {
    RedisBackend::connect(&url(server, "limiter:secret", "")).await
}

fn problems(outcome: Result<Vec<ServerProblem>, ConnectError>) -> Vec<ServerProblem> {
    match outcome {
        Ok(warnings) => warnings,
        Err(ConnectError::Unusable { problems, .. }) => problems,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the commands that are missing.
fn missing(problems: &[ServerProblem]) -> Vec<&'static str> {
    let command = |problem: &ServerProblem| match problem.kind {
        Kind::MissingPermission(command) | Kind::MissingOptionalPermission(command) => command,
        _ => panic!("{problem}"),
    };
    problems.iter().map(command).collect()
}

#[tokio::test]
async fn verify_names_each_missing_permission() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for command in NEEDED {
            allow(&mut admin, "~tsw{*", NEEDED.into_iter().filter(|other| *other != command));
            let outcome = lazy(&server).verify().await;
            assert_eq!(outcome.is_ok(), OPTIONAL.contains(&command), "{engine:?} {command}: {outcome:?}");
            assert_eq!(missing(&problems(outcome)), [command], "{engine:?}");
            let (events, _guard) = Events::collect();
            let connected = connect(&server).await;
            assert_eq!(connected.is_ok(), OPTIONAL.contains(&command), "{engine:?} {command}");
            let text = connected.map_or_else(|error| error.to_string(), |_| events.text());
            let name = format!("lacks permission for {} (NOPERM)", command.to_ascii_uppercase());
            assert!(text.contains(&name) && text.trim().lines().count() == 1, "{engine:?}: {text}");
            assert!(text.contains(&server.port().to_string()) && !text.contains("secret"), "{text}");
        }
        allow(&mut admin, "~tsw{*", ["ping"]);
        let mut all = missing(&problems(lazy(&server).verify().await));
        all.sort_unstable();
        // The verification calls RPUSH only after all others.
        let mut expected: Vec<_> = NEEDED.into_iter().filter(|command| *command != "rpush").collect();
        expected.sort_unstable();
        assert_eq!(all, expected, "{engine:?}");
        assert_eq!(admin.keys(), [""; 0], "verification writes nothing");
    }
}

#[tokio::test]
async fn verify_names_each_unknown_command() {
    for engine in Engine::ALL {
        for command in NEEDED {
            let server = Server::with_options(engine, &["--rename-command", command, ""]);
            let problems = problems(RedisBackend::lazy(&server.url()).unwrap().verify().await);
            assert!(
                matches!(&*problems, [ServerProblem { kind: Kind::MissingCommand(missing), .. }] if *missing == command),
                "{engine:?} {command}: {problems:?}"
            );
            let error = RedisBackend::connect(&server.url()).await.unwrap_err().to_string();
            let text = format!("unknown command {}", command.to_ascii_uppercase());
            assert!(error.contains(&text), "{engine:?}: {error}");
        }
    }
}

#[tokio::test]
async fn verify_runs_all_scripts_and_leaves_no_key() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        allow(&mut admin, "~tsw{*", NEEDED);
        let backend = lazy(&server);
        assert_eq!(backend.verify().await.unwrap().len(), 0, "{engine:?}");
        assert_eq!(admin.keys(), [""; 0], "verification writes nothing");
        // Six types with four checks, a refund and a reset each, a gate, which has no refund, and in flight with a peek and a reset; three scripts were loaded.
        let (evalsha, eval) = (admin.calls("evalsha"), admin.calls("eval"));
        assert_eq!(
            evalsha.all - evalsha.failed + eval.all,
            6 * 6 + 5 + 2 + 1,
            "{engine:?}: {evalsha:?} {eval:?}"
        );
        assert_eq!(backend.unanswered_checks(), 0, "verification is no check");
    }
}

#[tokio::test]
async fn verify_reports_replica() {
    for engine in Engine::ALL {
        for permissions in ["+info", "-info"] {
            let server = Server::start(engine);
            let mut admin = Admin::at(&server);
            allow(&mut admin, "~tsw{*", NEEDED);
            admin.query::<()>(&["ACL", "SETUSER", "limiter", permissions]);
            admin.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            let problems = problems(lazy(&server).verify().await);
            assert!(
                matches!(&*problems, [ServerProblem { kind: Kind::Replica, .. }]),
                "{engine:?}: {problems:?}"
            );
            let error = connect(&server).await.unwrap_err().to_string();
            assert!(error.ends_with("is a replica; connect to its primary"), "{error}");
        }
    }
}

/// Such a replica accepts the scripts, and its primary overwrites what they store.
#[tokio::test]
async fn verify_reports_replica_that_accepts_writes() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--replica-read-only", "no"]);
        let mut admin = Admin::at(&server);
        allow(&mut admin, "~tsw{*", NEEDED);
        admin.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        let problems = problems(lazy(&server).verify().await);
        assert!(
            matches!(&*problems, [ServerProblem { kind: Kind::Replica, .. }]),
            "{engine:?}: expected a replica, got {problems:?}"
        );
        assert!(connect(&server).await.is_err(), "{engine:?}: connected to a replica");
    }
}

#[tokio::test]
async fn connect_rejects_node_of_cluster() {
    for engine in Engine::ALL {
        let cluster = Cluster::start(engine);
        for node in &cluster.nodes {
            allow(&mut Admin::at(node), "~tsw{*", NEEDED);
        }
        // Replicas as well, with and without the permission for INFO.
        for _ in 0..5 {
            for node in &cluster.nodes {
                for (name, url) in [("limiter", url(node, "limiter:secret", "")), ("default", node.url())] {
                    let outcome = RedisBackend::connect(&url).await;
                    let error = outcome.map(drop).expect_err("a node of a cluster").to_string();
                    let expected = "is a node of a cluster; use RedisServers::cluster";
                    assert!(error.ends_with(expected), "{engine:?}, {name}: expected the mode, got {error}");
                }
            }
        }
        let client = redis::Client::open(cluster.nodes[0].url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let found = problems(
            RedisBackend::builder(RedisServers::connection(connection)).lazy().unwrap().verify().await,
        );
        assert!(
            matches!(&*found, [ServerProblem { kind: Kind::ClusterNode, .. }]),
            "{engine:?}: own connection: {found:?}"
        );
        let own = RedisBackend::builder(RedisServers::connection(cluster.connection().await)).lazy().unwrap();
        assert_eq!(problems(own.verify().await).len(), 0, "{engine:?}: own cluster connection");
    }
}

/// Nothing is verified: the first redirect shows the mode.
#[tokio::test]
async fn redirected_check_warns_about_node_of_cluster() {
    let cluster = Cluster::start(Engine::Redis);
    let client = redis::Client::open(cluster.nodes[0].url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let lazy = RedisBackend::lazy(&cluster.nodes[0].url()).unwrap();
    for backend in [lazy, RedisBackend::builder(RedisServers::connection(connection)).lazy().unwrap()] {
        let (events, _guard) = Events::collect();
        let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
        for user in 0..32_u8 {
            let _ = limiter.check(PartitionKey::new("user", [user])).await;
        }
        let events = events.take();
        let warns = |event: &&String| event.contains("use RedisServers::cluster");
        assert_eq!(events.iter().filter(warns).count(), 1, "expected one warning: {events:?}");
    }
}

#[tokio::test]
async fn connect_rejects_sentinel() {
    for engine in Engine::ALL {
        let sentinel = Server::sentinel(engine, "sentinel monitor limits 127.0.0.1 1 1\n");
        let error =
            RedisBackend::connect(&sentinel.url()).await.map(drop).expect_err("a Sentinel").to_string();
        let expected = "is a Sentinel; use RedisServers::sentinel";
        assert!(error.ends_with(expected), "{engine:?}: expected the mode, got {error}");
    }
}

#[tokio::test]
async fn verify_warns_about_eviction() {
    for engine in Engine::ALL {
        let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
        let server = Server::with_options(engine, &options);
        let backend = RedisBackend::lazy(&server.url()).unwrap();
        let warnings = backend.verify().await.unwrap();
        assert!(
            matches!(&*warnings, [ServerProblem { kind: Kind::Evicts(policy), .. }] if policy == "allkeys-lru"),
            "{engine:?}: {warnings:?}"
        );
    }
}

#[tokio::test]
async fn verify_fails_and_connect_warns_if_memory_is_full() {
    for engine in Engine::ALL {
        let server = Server::with_options(engine, &["--maxmemory", "1"]);
        let problems = problems(RedisBackend::lazy(&server.url()).unwrap().verify().await);
        let is_full =
            |error: &tower_sliding_window::backend::BackendError| error.reason() == Reason::OutOfMemory;
        assert!(
            matches!(&*problems, [ServerProblem { kind: Kind::Unavailable(error), .. }] if is_full(error)),
            "{engine:?}: {problems:?}"
        );
        let (events, _guard) = Events::collect();
        RedisBackend::connect(&server.url()).await.unwrap();
        let events = events.take();
        assert!(events.len() == 1 && events[0].contains("the store is out of memory"), "{events:?}");
    }
}

#[tokio::test]
async fn verify_covers_the_given_namespace() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        allow(&mut Admin::at(&server), "~other{*", NEEDED);
        let backend = lazy(&server);
        assert_eq!(backend.verify_in("other").await.unwrap().len(), 0, "{engine:?}");
        let problems = problems(backend.verify().await);
        assert!(
            matches!(&*problems, [ServerProblem { kind: Kind::MissingKeyPermission(namespace), .. }] if namespace == "tsw"),
            "{engine:?}: {problems:?}"
        );
        assert!(problems[0].to_string().ends_with("add ~tsw{*"), "{engine:?}: {problems:?}");
        allow(&mut Admin::at(&server), "~tsw{*", NEEDED);
        assert_eq!(backend.verify().await.unwrap().len(), 0, "{engine:?}: the advice helps");
        allow(&mut Admin::at(&server), "~other{*", NEEDED);
        assert!(
            matches!(backend.verify_in("a b").await, Err(ConnectError::Config(_))),
            "{engine:?}: the namespace is invalid"
        );
        connect(&server).await.unwrap();
    }
}

#[tokio::test]
async fn verify_covers_every_primary_of_cluster() {
    let mut cluster = Cluster::start(Engine::Valkey);
    let backend = RedisBackend::builder(RedisServers::cluster(cluster.nodes.iter().map(Server::url)))
        .connect()
        .await
        .unwrap();
    assert_eq!(backend.verify().await.unwrap().len(), 0, "the server has nothing to report");
    for i in 0..3 {
        let node = &cluster.primaries()[i];
        let address = format!("127.0.0.1:{}", node.port());
        let mut admin = Admin::at(node);
        admin.query::<()>(&["ACL", "SETUSER", "default", "-lset"]);
        let problems = problems(backend.verify().await);
        assert!(
            matches!(&*problems, [ServerProblem { server, kind: Kind::MissingPermission("lset"), .. }] if *server == address),
            "{problems:?}"
        );
        admin.query::<()>(&["ACL", "SETUSER", "default", "+lset"]);
    }
    let address = format!("127.0.0.1:{}", cluster.primaries()[0].port());
    cluster.kill(0);
    let problems = problems(backend.verify().await);
    assert!(
        matches!(&*problems, [ServerProblem { server, kind: Kind::Unavailable(_), .. }] if *server == address),
        "{problems:?}"
    );
}
