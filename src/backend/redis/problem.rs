//! The problems that the verification of a Redis finds.

use std::{error::Error, fmt};

use crate::backend::BackendError;

/// A problem of a Redis server, which [`RedisBackend::verify`](crate::RedisBackend::verify) has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub struct ServerProblem {
    /// The address of the server, without user and password.
    pub server: String,
    /// What is wrong with it.
    pub kind: ServerProblemKind,
}

/// What is wrong with a Redis server. A command is in lower case, as in an ACL rule.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub enum ServerProblemKind {
    /// The Redis user may not call this command, which every check may need.
    MissingPermission(&'static str),
    /// The Redis user may not call this command, which checks of sliding logs and sliding buckets do not need.
    /// [`RedisBackend`](crate::RedisBackend#permissions) lists what needs it. This is a warning.
    MissingOptionalPermission(&'static str),
    /// The server does not know this command: it is disabled or renamed, a proxy does not support it, or the module of the
    /// scripting language is not loaded.
    MissingCommand(&'static str),
    /// The Redis user may not access the keys of this namespace.
    MissingKeyPermission(String),
    /// The server evicts keys when its memory is full, by this `maxmemory-policy`, and evicted limits start again from zero. This
    /// is a warning.
    Evicts(String),
    /// The server is a replica.
    Replica,
    /// The server is a node of a cluster, and the backend is not one of a cluster.
    ClusterNode,
    /// The server is a Sentinel.
    Sentinel,
    /// The version of the server, as it reports it, is older than 5.0.
    OldVersion(String),
    /// The server does not answer, or not as expected: for example, it is out of memory, or loads its data.
    Unavailable(BackendError),
}

impl ServerProblem {
    /// Returns whether the backend works in spite of the problem: `Evicts` and `MissingOptionalPermission`.
    pub fn is_warning(&self) -> bool {
        matches!(self.kind, ServerProblemKind::Evicts(_) | ServerProblemKind::MissingOptionalPermission(_))
    }
}

impl fmt::Display for ServerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis at {}: {}", self.server, self.kind)
    }
}

impl fmt::Display for ServerProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPermission(command) => {
                let upper = command.to_ascii_uppercase();
                write!(f, "the user lacks permission for {upper} (NOPERM); add +{command}")
            }
            Self::MissingOptionalPermission(command) => write!(
                f,
                "the user lacks permission for {} (NOPERM), so all but checks of sliding logs and sliding buckets may fail; add +{command}",
                command.to_ascii_uppercase()
            ),
            Self::MissingCommand(command) => {
                let upper = command.to_ascii_uppercase();
                write!(f, "unknown command {upper}: enable it; the backend needs it")
            }
            Self::MissingKeyPermission(namespace) => write!(
                f,
                "the user lacks permission for the keys of the namespace {namespace:?} (NOPERM); add ~{namespace}{{*"
            ),
            Self::Evicts(policy) => write!(
                f,
                "evicts keys when its memory is full (maxmemory-policy {policy}); set maxmemory-policy noeviction"
            ),
            Self::Replica => f.write_str("is a replica; connect to its primary"),
            Self::ClusterNode => f.write_str("is a node of a cluster; use RedisServers::cluster"),
            Self::Sentinel => f.write_str("is a Sentinel; use RedisServers::sentinel"),
            Self::OldVersion(version) => {
                write!(f, "version {version} is too old; it must be 5.0 or newer")
            }
            Self::Unavailable(error) => {
                write!(f, "{}", error.reason())?;
                // The error may have several lines.
                let Some(source) = error.source() else { return Ok(()) };
                write!(f, ": {}", source.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// Returns the texts of problems in one line.
pub(super) fn in_one_line(problems: &[ServerProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
