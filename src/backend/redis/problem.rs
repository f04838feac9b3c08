//! The problems that the verification of a Redis finds.

use std::{error::Error, fmt};

use crate::backend::BackendError;

/// A problem of a Redis server, which [`RedisBackend::verify`](crate::RedisBackend::verify) has found.
///
/// `server` is the address of the server, without user and password.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub enum ServerProblem {
    /// The Redis user may not call a command that every check may need.
    #[non_exhaustive]
    MissingPermission {
        /// The server.
        server: String,
        /// The command, in lower case, as in an ACL rule.
        command: &'static str,
    },
    /// The Redis user may not call a command that only [`SlidingCounter`](crate::Algorithm::SlidingCounter) and
    /// [`FixedWindow`](crate::Algorithm::FixedWindow) need. This is a warning.
    #[non_exhaustive]
    MissingOptionalPermission {
        /// The server.
        server: String,
        /// The command, in lower case, as in an ACL rule.
        command: &'static str,
    },
    /// The server does not know a command: it is disabled or renamed, a proxy does not support it, or the module of the scripting
    /// language is not loaded.
    #[non_exhaustive]
    MissingCommand {
        /// The server.
        server: String,
        /// The command, in lower case.
        command: &'static str,
    },
    /// The Redis user may not access the keys of the namespace.
    #[non_exhaustive]
    MissingKeyPermission {
        /// The server.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The server evicts keys when its memory is full, and evicted limits start again from zero. This is a warning.
    #[non_exhaustive]
    Evicts {
        /// The server.
        server: String,
        /// The value of `maxmemory-policy`.
        policy: String,
    },
    /// The server is a replica.
    #[non_exhaustive]
    Replica {
        /// The server.
        server: String,
    },
    /// The server is a node of a cluster, and the backend is not one of a cluster.
    #[non_exhaustive]
    ClusterNode {
        /// The server.
        server: String,
    },
    /// The server is a Sentinel.
    #[non_exhaustive]
    Sentinel {
        /// The server.
        server: String,
    },
    /// The version of the server is older than 5.0.
    #[non_exhaustive]
    OldVersion {
        /// The server.
        server: String,
        /// The version, as the server reports it.
        version: String,
    },
    /// The server does not answer, or not as expected: for example, it is out of memory, or loads its data.
    #[non_exhaustive]
    Unavailable {
        /// The server.
        server: String,
        /// The error.
        error: BackendError,
    },
}

impl ServerProblem {
    /// Returns whether the backend works in spite of the problem: `Evicts` and `MissingOptionalPermission`.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::Evicts { .. } | Self::MissingOptionalPermission { .. })
    }
}

impl fmt::Display for ServerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPermission { server, command } => write!(
                f,
                "Redis at {server}: the user lacks permission for {} (NOPERM); add +{command}",
                command.to_ascii_uppercase()
            ),
            Self::MissingOptionalPermission { server, command } => write!(
                f,
                "Redis at {server}: the user lacks permission for {} (NOPERM), so sliding counters and fixed windows fail; add +{command}",
                command.to_ascii_uppercase()
            ),
            Self::MissingCommand { server, command } => write!(
                f,
                "Redis at {server}: unknown command {}: enable it; the backend needs it",
                command.to_ascii_uppercase()
            ),
            Self::MissingKeyPermission { server, namespace } => write!(
                f,
                "Redis at {server}: the user lacks permission for the keys of the namespace {namespace:?} (NOPERM); add ~{namespace}:*"
            ),
            Self::Evicts { server, policy } => write!(
                f,
                "Redis at {server}: evicts keys when its memory is full (maxmemory-policy {policy}); set maxmemory-policy noeviction"
            ),
            Self::Replica { server } => {
                write!(f, "Redis at {server}: is a replica; connect to its primary")
            }
            Self::ClusterNode { server } => {
                write!(f, "Redis at {server}: is a node of a cluster; use RedisServers::cluster")
            }
            Self::Sentinel { server } => {
                write!(f, "Redis at {server}: is a Sentinel; use RedisServers::sentinel")
            }
            Self::OldVersion { server, version } => {
                write!(f, "Redis at {server}: version {version} is too old; it must be 5.0 or newer")
            }
            Self::Unavailable { server, error } => {
                write!(f, "Redis at {server}: {}", error.reason())?;
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
