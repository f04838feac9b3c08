//! Which reason an error of the client crate or of the server is.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{
    backend::{BackendError, Reason},
    error::ConfigError,
};

/// A Redis that cannot be used from the start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub enum ConnectError {
    /// The URL does not parse.
    #[error(transparent)]
    Url(#[from] ConfigError),
    /// The server cannot be reached, or refuses.
    #[error("Redis at {address}: {}", in_one_line(source))]
    Unreachable {
        /// The address, without user and password.
        address: String,
        /// Why.
        source: RedisError,
    },
}

/// What the client crate says of a reply that it cannot parse takes several lines and helps nobody.
fn in_one_line(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::Parse => "what answers there does not speak the Redis protocol".to_owned(),
        _ => error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

pub(super) fn unavailable(error: RedisError) -> BackendError {
    BackendError::with_source(reason(&error), error)
}

fn reason(error: &RedisError) -> Reason {
    match error.kind() {
        ErrorKind::Io if error.is_timeout() => Reason::Timeout,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => Reason::Connection,
        ErrorKind::AuthenticationFailed => Reason::NoPermission,
        // A reply that was cut off has no kind of its own.
        ErrorKind::Parse if error.detail().is_some_and(|detail| detail.contains("end of input")) => {
            Reason::Connection
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Reason::BrokenReply,
        ErrorKind::Server(kind) => server_reason(kind, error),
        _ => code_reason(error),
    }
}

/// Whether a server that was a primary when we connected no longer is: its address may lead elsewhere now. Redis before 7
/// wraps what a command of a script answers in a text of its own.
pub(super) fn is_demotion(error: &RedisError) -> bool {
    let is_wrapped = || error.detail().is_some_and(|detail| detail.contains("-READONLY "));
    reason(error) == Reason::ReadOnly
        && (error.kind() == ServerErrorKind::ReadOnly.into()
            || error.code() == Some("READONLY")
            || is_wrapped())
}

fn server_reason(kind: ServerErrorKind, error: &RedisError) -> Reason {
    match kind {
        ServerErrorKind::ReadOnly => Reason::ReadOnly,
        ServerErrorKind::NoPerm => Reason::NoPermission,
        ServerErrorKind::CrossSlot => Reason::CrossSlot,
        ServerErrorKind::BusyLoading
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::Moved
        | ServerErrorKind::Ask => Reason::Busy,
        _ => code_reason(error),
    }
}

/// Errors that have no kind of their own, by their code; and those that a script raised, which older servers wrap in a
/// text of their own.
fn code_reason(error: &RedisError) -> Reason {
    const REASONS: [(&str, Reason); 12] = [
        ("FOREIGNVALUE", Reason::ForeignValue),
        ("WRONGTYPE", Reason::ForeignValue),
        ("OOM", Reason::OutOfMemory),
        ("NOPERM", Reason::NoPermission),
        ("NOAUTH", Reason::NoPermission),
        ("WRONGPASS", Reason::NoPermission),
        ("READONLY", Reason::ReadOnly),
        // It cannot write to its disk, or has too few replicas.
        ("MISCONF", Reason::ReadOnly),
        ("NOREPLICAS", Reason::ReadOnly),
        ("BUSY", Reason::Busy),
        // What a script may not call has no code, and words that differ from server to server.
        ("can't run this command or subcommand", Reason::NoPermission),
        ("ACL failure in script", Reason::NoPermission),
    ];
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let by_code = REASONS.iter().find(|(name, _)| code == *name);
    let found = by_code.or_else(|| REASONS.iter().find(|(name, _)| detail.contains(name)));
    found.map_or(Reason::Other, |(_, reason)| *reason)
}
