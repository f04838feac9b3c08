//! A connection to one server: the backend's own or the caller's.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::{external::ExternalConnection, server::ServerConnection, server_state::ServerState};

/// A connection to one server. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    /// The backend's own.
    Server(ServerConnection),
    /// The caller's own.
    External(ExternalConnection),
}

impl Connection {
    /// Sends a command once, now. The connection never sends it again, because it may have run. An error reply is an `Err`.
    pub(crate) async fn send(&self, command: &Cmd, now: Instant) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => connection.send(command, now).await,
            Self::External(connection) => connection.send(command).await,
        }
    }

    /// Disconnects if an error in a reply requires a new connection. The caller's own connection decides for itself.
    pub(crate) fn disconnect_after(&self, error: &RedisError) {
        if let Self::Server(connection) = self {
            connection.disconnect_after(error);
        }
    }

    /// Returns whether each command needs ASKING before it.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self, Self::Server(connection) if connection.is_asking())
    }

    /// Returns the state of the server at the other end.
    pub(crate) fn server(&self) -> &Arc<ServerState> {
        match self {
            Self::Server(connection) => connection.server(),
            Self::External(connection) => &connection.server,
        }
    }
}
