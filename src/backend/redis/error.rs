//! Errors of the server and of the client crate, and the [`Reason`] of each.

use std::{error::Error, fmt};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::problem::{self, ServerProblem};
use crate::{
    backend::{BackendError, Reason},
    error::ConfigError,
};

/// An error of the first connection to Redis. `Debug` writes the same text as `Display`, so that a `main` that returns the error
/// prints what is wrong.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub enum ConnectError {
    /// The configuration is invalid: a URL, a certificate, the hash secret, or a namespace.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server does not answer, or rejects the connection.
    #[error("Redis at {address}: {}", in_one_line(source))]
    #[non_exhaustive]
    Unreachable {
        /// The address, without user and password.
        address: String,
        /// The error of the connection.
        source: BackendError,
    },
    /// The server answers, and the backend cannot use it: for example, a permission is missing.
    #[error("{}", problem::in_one_line(problems))]
    #[non_exhaustive]
    Unusable {
        /// All problems, including warnings.
        problems: Vec<ServerProblem>,
    },
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the text of an error of the connection in one line. The client crate's text for an invalid reply has several lines and
/// no useful detail.
fn in_one_line(error: &BackendError) -> String {
    match redis_error(error) {
        Some(error) if error.kind() == ErrorKind::Parse => {
            "invalid reply: the server does not speak the Redis protocol".to_owned()
        }
        Some(error) => {
            let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            // The server may have stated its reason, which the client crate loses.
            if error.is_connection_dropped() && !error.is_connection_refusal() {
                format!("{text}: the server may be at its `maxclients`, be in protected mode, or expect TLS")
            } else {
                text
            }
        }
        None => error.reason().to_string(),
    }
}

/// Returns whether a server has answered with one of these errors.
pub(super) fn has_kind(error: &RedisError, kinds: &[ServerErrorKind]) -> bool {
    kinds.iter().any(|kind| error.kind() == (*kind).into())
}

/// Returns the error of the client crate, if there is one.
pub(super) fn redis_error(error: &BackendError) -> Option<&RedisError> {
    error.source()?.downcast_ref()
}

/// Returns the error of a new connection without the arguments of its first command. A server that does not know this command states them
/// in its error, and they contain the password.
pub(super) fn without_arguments(error: RedisError) -> RedisError {
    if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
        return (ErrorKind::RESP3NotSupported, "the server does not know the first command of a connection")
            .into();
    }
    error
}

/// Returns whether an error, by which nothing has run, requires a new connection: the server is no longer a primary, or the
/// connection is no longer authenticated.
pub(super) fn requires_reconnect(error: &RedisError) -> bool {
    is_readonly(error) || matches!(error.code(), Some("MASTERDOWN" | "NOAUTH"))
}

/// Returns whether the server is a replica, or has become one.
pub(super) fn is_readonly(error: &RedisError) -> bool {
    // Redis before 7 wraps the error of a script's command in its own text.
    error.code() == Some("READONLY") || error.detail().is_some_and(|detail| detail.contains("-READONLY "))
}

/// Returns whether the server does not know a command, or a script has called one that it does not know.
pub(super) fn is_unknown_command(error: &RedisError) -> bool {
    // "unknown command", "Unknown Redis command called from script". Another server has its own name in the second text, or none.
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.contains("unknown")
        && (detail.contains("unknown command") || detail.contains("command called from"))
}

/// Returns an error with its reason.
pub(super) fn unavailable(error: RedisError) -> BackendError {
    BackendError::with_source(reason(&error), error)
}

fn reason(error: &RedisError) -> Reason {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => Reason::Timeout,
        // The Sentinels name no primary that is up, or one that is none yet.
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel => {
            Reason::Connection
        }
        ErrorKind::AuthenticationFailed => Reason::NoPermission,
        // A reply that ends early has no kind of its own.
        ErrorKind::Parse if error.detail().is_some_and(|detail| detail.contains("end of input")) => {
            Reason::Connection
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Reason::BrokenReply,
        ErrorKind::Server(ServerErrorKind::CrossSlot) => Reason::CrossSlot,
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask,
        ) => Reason::Busy,
        _ => code_reason(error),
    }
}

/// Returns the reason of any other error by its code. The error of a script may have its code inside the
/// text, because older servers wrap it.
fn code_reason(error: &RedisError) -> Reason {
    const REASONS: [(&str, Reason); 12] = [
        ("FOREIGNVALUE", Reason::ForeignValue),
        ("WRONGTYPE", Reason::ForeignValue),
        ("OOM", Reason::OutOfMemory),
        ("NOPERM", Reason::NoPermission),
        ("NOAUTH", Reason::NoPermission),
        ("WRONGPASS", Reason::NoPermission),
        ("READONLY", Reason::ReadOnly),
        // The server cannot write to its disk, or has too few replicas.
        ("MISCONF", Reason::ReadOnly),
        ("NOREPLICAS", Reason::ReadOnly),
        ("BUSY", Reason::Busy),
        // A command that a script may not call has no code, and its text depends on the server.
        ("can't run this command or subcommand", Reason::NoPermission),
        ("ACL failure in script", Reason::NoPermission),
    ];
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let by_code = REASONS.iter().find(|(name, _)| code == *name);
    let found = by_code.or_else(|| REASONS.iter().find(|(name, _)| detail.contains(name)));
    found.map_or(Reason::Other, |(_, reason)| *reason)
}

/// Returns whether the server has replied, also with an error.
pub(super) fn is_reply(reply: &RedisResult<Value>) -> bool {
    let is_of_server =
        |error: &RedisError| matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    reply.as_ref().map_or_else(is_of_server, |_| true)
}
