//! The verification of all primaries: mode, role, permissions, version and eviction.
//!
//! Each command is called on its own, in a form that changes nothing, because a script does not report which of its commands the
//! user may not call. Then the scripts run on a key of their own.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use redis::{Cmd, Value, cmd, from_redis_value};
use tokio::{task::JoinSet, time::timeout};

use super::{
    ConnectError, RedisBackend, ServerProblem,
    error::{is_readonly, is_unknown_command, redis_error, unavailable},
    eviction::{eviction_policy, info_field},
    patience::Patience,
    problem::ServerProblemKind as Kind,
    topology::Topology,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Namespace, Pair, Purpose, Refund},
    key::PartitionKey,
    observe,
    policy::{Algorithm, Policy},
    random::random,
};

/// The time limit of the verification of one server.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The number of random keys among which one per primary is searched. A primary without a slot needs no verification.
const MAX_DRAWS: usize = 200_000;

/// The oldest major version that the scripts support.
const OLDEST_VERSION: u32 = 5;

/// The command that only the scripts call, because it cannot be called on its own without a change.
const PUSH: &str = "rpush";

impl RedisBackend {
    /// Verifies that checks in the default namespace, `"tsw"`, can work: on every primary, calls every command and runs every
    /// script, for every purpose, on a probe key. Returns the warnings. Use it when a service starts.
    ///
    /// It takes about 60 short commands per primary, all primaries at the same time, and at most two seconds after the backend
    /// has connected. It leaves no key behind. [`connect`](Self::connect) calls it.
    ///
    /// Do not use it as a readiness probe: it fails if one primary of a cluster hangs. Use [`Limiter::readiness`](crate::Limiter::readiness).
    /// Do not let clients call it: it costs Redis more than a check, and its errors name servers and permissions.
    ///
    /// | problem | needs | result |
    /// | --- | --- | --- |
    /// | a missing permission: each one is named | | error |
    /// | a missing permission that checks of sliding logs and sliding buckets do not need | | warning |
    /// | a command that the server does not know: each one is named | | error |
    /// | a server that does not answer, is out of memory or loads its data | | error |
    /// | a replica, also one that accepts writes | Redis 6.2, or `+info` | error |
    /// | a node of a cluster, for a backend that is not one of a cluster | Redis 6.2, or `+info` | error |
    /// | a Sentinel, for a backend of another server | Redis 6.2, or `+info` | error |
    /// | a version before Redis 5 | `+info` | error |
    /// | a server that evicts keys | `+info` | warning |
    ///
    /// The role and the mode come from `HELLO`, which needs no permission. Before Redis 6.2, and behind a proxy without `HELLO`, they
    /// come from `INFO`. Without either, only a replica that rejects writes is found.
    ///
    /// Your [own connection](super::RedisServers) does not show its servers, so only one of them is verified. If its type may lead
    /// to a cluster, neither role nor mode is verified.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError::Unreachable`] if there is no connection, and [`ConnectError::Unusable`] with all problems.
    ///
    /// ```no_run
    /// use tower_sliding_window::RedisBackend;
    ///
    /// # async fn verify() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = RedisBackend::lazy("redis://127.0.0.1/")?;
    /// for warning in backend.verify().await? {
    ///     eprintln!("warning: {warning}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn verify(&self) -> Result<Vec<ServerProblem>, ConnectError> {
        self.verify_namespace(Namespace::default()).await
    }

    /// Verifies as [`verify`](Self::verify) does, for the namespace of a [limiter](crate::LimiterBuilder::namespace).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`verify`](Self::verify), and [`ConnectError::Config`] if the namespace is invalid.
    pub async fn verify_in(&self, namespace: &str) -> Result<Vec<ServerProblem>, ConnectError> {
        self.verify_namespace(Namespace::new(namespace)?).await
    }

    async fn verify_namespace(&self, namespace: Namespace) -> Result<Vec<ServerProblem>, ConnectError> {
        let problems = self.problems(namespace).await?;
        if problems.iter().all(ServerProblem::is_warning) {
            Ok(problems)
        } else {
            Err(ConnectError::Unusable { problems })
        }
    }

    /// Connects and verifies, when a backend is created. A problem that may pass, and a missing permission for the default
    /// namespace, which the limiter need not have, are logged.
    pub(super) async fn connected(self) -> Result<Self, ConnectError> {
        let problems = self.problems(Namespace::default()).await?;
        let is_fatal = |problem: &ServerProblem| match &problem.kind {
            Kind::MissingPermission(_)
            | Kind::MissingCommand(_)
            | Kind::Replica
            | Kind::ClusterNode
            | Kind::Sentinel
            | Kind::OldVersion(_) => true,
            Kind::Unavailable(error) => error.reason() == Reason::NoPermission,
            _ => false,
        };
        if problems.iter().any(is_fatal) {
            return Err(ConnectError::Unusable { problems });
        }
        // Each connection looks for eviction by itself.
        for problem in problems.iter().filter(|problem| !matches!(problem.kind, Kind::Evicts(_))) {
            observe::problem_at_start(problem);
        }
        Ok(self)
    }

    /// Returns the problems of all primaries.
    async fn problems(&self, namespace: Namespace) -> Result<Vec<ServerProblem>, ConnectError> {
        if let Err(source) = self.topology.connect().await {
            let (address, source) = (self.topology.to_string(), unavailable(source));
            return Err(ConnectError::Unreachable { address, source });
        }
        let mut probes = JoinSet::new();
        for (server, key) in self.probe_keys() {
            let (backend, namespace) = (self.clone(), namespace.clone());
            probes.spawn(Probe { backend, server, key, namespace, problems: Vec::new() }.run());
        }
        let mut problems: Vec<ServerProblem> = probes.join_all().await.concat();
        problems.sort_by_cached_key(ToString::to_string);
        Ok(problems)
    }

    /// Returns a random key of each primary, so that processes that verify at the same time do not share a key.
    fn probe_keys(&self) -> BTreeMap<String, PartitionKey> {
        let random_key = || PartitionKey::new("verify", random().to_be_bytes());
        let Topology::Cluster(cluster) = &self.topology else {
            return [(self.topology.to_string(), random_key())].into();
        };
        let (mut keys, servers) = (BTreeMap::new(), cluster.primaries());
        for _ in 0..MAX_DRAWS {
            let key = random_key();
            if let Some(server) = cluster.primary_of(self.names.slot(&key)) {
                keys.entry(server).or_insert(key);
            }
            if keys.len() >= servers {
                break;
            }
        }
        keys
    }
}

/// The verification of one primary.
struct Probe {
    backend: RedisBackend,
    server: String,
    key: PartitionKey,
    namespace: Namespace,
    problems: Vec<ServerProblem>,
}

/// The end of a verification, because no further command can succeed.
struct Stop;

impl Probe {
    async fn run(mut self) -> Vec<ServerProblem> {
        if timeout(TIMEOUT, self.verify()).await.is_err() {
            self.found(Kind::Unavailable(BackendError::new(Reason::Timeout)));
        }
        self.problems
    }

    async fn verify(&mut self) -> Result<(), Stop> {
        let Some(policy) = policy(Algorithm::SlidingLog) else { return Ok(()) };
        let slot = self.backend.names.slot(&self.key);
        let key = self.backend.names.key(self.namespace.as_str(), &self.key, &policy);
        self.verify_server(slot).await?;
        for (name, command) in commands(&key, self.backend.topology.is_cluster()) {
            if let Err(error) = self.backend.run_in_slot(slot, &command).await {
                self.command_failed(name, error)?;
            }
        }
        let is_missing = |kind: &Kind| {
            matches!(
                kind,
                Kind::MissingPermission(_) | Kind::MissingCommand(_) | Kind::MissingKeyPermission(_)
            )
        };
        if self.has_found(is_missing) {
            // A script could stop halfway.
            return Ok(());
        }
        let is_missing = |name: &&str| {
            self.has_found(|kind| matches!(kind, Kind::MissingOptionalPermission(command) if command == name))
        };
        let can_run = |algorithm: &Algorithm| !optional_commands(*algorithm).iter().any(is_missing);
        let algorithms: Vec<_> = Algorithm::examples().filter(can_run).collect();
        for algorithm in algorithms {
            if let Err(error) = self.run_scripts(algorithm).await {
                // All other commands of the scripts have been called.
                self.command_failed(PUSH, error)?;
                break;
            }
        }
        Ok(())
    }

    /// Runs every script, for every purpose.
    async fn run_scripts(&self, algorithm: Algorithm) -> Result<(), BackendError> {
        let backend = &self.backend;
        for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage] {
            let Some(check) = self.check(algorithm, purpose) else { continue };
            // Only a backend that holds units needs a thread.
            if purpose != Purpose::Peek && check.pairs().iter().any(|pair| pair.policy.properties().is_held) {
                continue;
            }
            let decision = backend.check_in_slot(&check, Patience::Caller).await?;
            if let Some(refund) = Refund::new(&check, decision.receipts(), &[0]) {
                backend.refund_in_slot(&refund).await?;
            }
        }
        match self.check(algorithm, Purpose::Charge) {
            Some(check) => backend.reset_in_slot(&check).await,
            None => Ok(()),
        }
    }

    /// Reads the mode and the role of the server. Also reads its version and eviction policy, if the user may call INFO.
    async fn verify_server(&mut self, slot: u16) -> Result<(), Stop> {
        let backend = &self.backend;
        let info = backend.run_in_slot(slot, &cmd("INFO")).await.ok();
        let info = info.and_then(|reply| from_redis_value::<String>(reply).ok());
        // The caller's cluster client sends a command without a key to any node.
        let hello = match backend.topology.has_client_of_cluster() {
            true => None,
            false => backend.run_in_slot(slot, &cmd("HELLO")).await.ok(),
        };
        let hello = hello
            .and_then(|reply| from_redis_value::<HashMap<String, Value>>(reply).ok())
            .unwrap_or_default();
        let from_hello =
            |name| hello.get(name).and_then(|value| from_redis_value::<String>(value.clone()).ok());
        let read = |in_hello, in_info| {
            from_hello(in_hello)
                .or_else(|| info.as_deref().and_then(|info| info_field(info, in_info)).map(str::to_owned))
        };
        let (mode, role) = (read("mode", "redis_mode"), read("role", "role"));
        match mode.as_deref() {
            Some("sentinel") => {
                self.found(Kind::Sentinel);
                return Err(Stop);
            }
            Some("cluster") if !backend.topology.needs_slots() => {
                self.found(Kind::ClusterNode);
                // The probe key may be in a slot of another node.
                return Err(Stop);
            }
            _ => {}
        }
        let info = info.as_deref().unwrap_or_default();
        if let Some(version) = old_version(info) {
            self.found(Kind::OldVersion(version.to_owned()));
        }
        if role.is_some_and(|role| role != "master") {
            self.found(Kind::Replica);
        }
        if let Some(policy) = eviction_policy(info) {
            self.found(Kind::Evicts(policy.to_owned()));
        }
        Ok(())
    }

    /// Records the error of a command. An error that shows that the command was permitted is none.
    fn command_failed(&mut self, command: &'static str, error: BackendError) -> Result<(), Stop> {
        let kind = match error.reason() {
            Reason::NoPermission => self.missing_permission(command, &error),
            Reason::ReadOnly if redis_error(&error).is_some_and(is_readonly) => {
                self.found(Kind::Replica);
                return Err(Stop);
            }
            Reason::Other if redis_error(&error).is_some_and(is_unknown_command) => {
                Some(Kind::MissingCommand(command))
            }
            // The command was called, and its arguments have no effect.
            Reason::Other if command != PUSH => return Ok(()),
            _ => None,
        };
        let Some(kind) = kind else {
            self.found(Kind::Unavailable(error));
            return Err(Stop);
        };
        self.found(kind);
        Ok(())
    }

    /// Returns the permission that the user of a command lacks. None if the user has no valid password.
    fn missing_permission(&self, command: &'static str, error: &BackendError) -> Option<Kind> {
        let error = redis_error(error)?;
        if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) {
            return None;
        }
        let text = error.detail().unwrap_or_default();
        // "No permissions to access a key", "access one of the keys", "can't access at least one of the keys".
        Some(if text.contains("access") && text.contains("key") {
            Kind::MissingKeyPermission(self.namespace.as_str().into())
        } else if is_optional(command) {
            Kind::MissingOptionalPermission(command)
        } else {
            Kind::MissingPermission(command)
        })
    }

    /// Records a problem, unless it is recorded.
    fn found(&mut self, kind: Kind) {
        let text = kind.to_string();
        if !self.has_found(|known| known.to_string() == text) {
            self.problems.push(ServerProblem { server: self.server.clone(), kind });
        }
    }

    fn has_found(&self, is_it: impl Fn(&Kind) -> bool) -> bool {
        self.problems.iter().any(|problem| is_it(&problem.kind))
    }

    fn check(&self, algorithm: Algorithm, purpose: Purpose) -> Option<Check> {
        let check = Check::new([Pair::new(self.key.clone(), policy(algorithm)?, 1)]).ok()?;
        Some(check.in_namespace(self.namespace.clone()).with_purpose(purpose))
    }
}

/// Returns the commands that this algorithm needs, and a sliding log does not.
fn optional_commands(algorithm: Algorithm) -> &'static [&'static str] {
    policy(algorithm).map_or(&[], |policy| policy.properties().redis.optional_commands)
}

fn is_optional(command: &str) -> bool {
    Algorithm::examples().any(|algorithm| optional_commands(algorithm).contains(&command))
}

/// Returns the commands of the scripts, in a form that changes nothing. The key does not exist. The server verifies the permission
/// before it finds that there is nothing to do.
fn commands(key: &str, is_cluster: bool) -> Vec<(&'static str, Cmd)> {
    let unknown_script = "0000000000000000000000000000000000000000";
    let commands: [(_, &[&str]); 12] = [
        ("time", &[]),
        ("eval", &["return 1", "0"]),
        ("evalsha", &[unknown_script, "0"]),
        ("lindex", &[key, "0"]),
        ("lset", &[key, "0", ""]),
        ("ltrim", &[key, "0", "0"]),
        ("unlink", &[key]),
        ("pexpire", &[key, "1"]),
        ("get", &[key]),
        ("set", &[key, "", "XX", "PX", "1"]),
        ("setrange", &[key, "0", ""]),
        ("getrange", &[key, "0", "0"]),
    ];
    let asking = is_cluster.then_some(("asking", &[][..]));
    let command = |(name, arguments): (&'static str, &[&str])| (name, cmd(name).arg(arguments).take());
    commands.into_iter().chain(asking).map(command).collect()
}

fn policy(algorithm: Algorithm) -> Option<Policy> {
    // Its keys expire after a few seconds, if the connection is lost before they are deleted.
    Policy::new("verify", 1_000, Duration::from_secs(2)).ok()?.with_algorithm(algorithm).ok()
}

/// Returns the version of a server that is too old. Valkey reports the version of Redis that it is compatible with.
fn old_version(info: &str) -> Option<&str> {
    let version = info_field(info, "redis_version")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < OLDEST_VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_redis_5_are_too_old() {
        let info = |version: &str| format!("# Server\r\nredis_version:{version}\r\nrole:master\r\n");
        for version in ["4.0.14", "3.2.0", "2.8"] {
            assert_eq!(old_version(&info(version)), Some(version));
        }
        for version in ["5.0.0", "6.2.14", "7.2.4", "10.0", "unstable", ""] {
            assert_eq!(old_version(&info(version)), None, "{version}");
        }
        assert_eq!(old_version("role:master"), None);
    }
}
