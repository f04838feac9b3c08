//! The node that a command goes to: its guard, and the connection to it.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::{
    external::ExternalConnection,
    server::{Server, ServerConnection},
    server_state::ServerState,
};
use crate::guard::Guard;

/// The node that a command goes to.
pub(crate) enum Node {
    /// A server of the backend.
    Server {
        server: Server,
        /// Whether the slot is being migrated to this server.
        is_asking: bool,
    },
    /// The caller's own connection.
    External(ExternalConnection),
}

impl Node {
    pub(crate) fn new(server: Server) -> Self {
        Self::Server { server, is_asking: false }
    }

    /// Returns the circuit breaker and the load shedding of the node.
    pub(crate) fn guard(&self) -> &Arc<Guard> {
        match self {
            Self::Server { server, .. } => server.guard(),
            Self::External(connection) => &connection.guard,
        }
    }

    /// Returns the connection to the node, or `None` if there is none.
    pub(crate) fn open_connection(&self) -> Option<Connection> {
        match self {
            Self::Server { server, is_asking } => {
                let connection = server.open_connection()?;
                Some(Connection::Server(ServerConnection { is_asking: *is_asking, ..connection }))
            }
            Self::External(connection) => Some(Connection::External(connection.clone())),
        }
    }

    /// Returns the connection to the node. If there is none, connects.
    pub(crate) async fn connection(&self) -> RedisResult<Connection> {
        match self {
            Self::Server { server, is_asking } => {
                let connection = server.connection().await?;
                Ok(Connection::Server(ServerConnection { is_asking: *is_asking, ..connection }))
            }
            Self::External(connection) => Ok(Connection::External(connection.clone())),
        }
    }
}

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
            Self::External(connection) => connection.commands.send(command).await,
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
        matches!(self, Self::Server(connection) if connection.is_asking)
    }

    /// Returns the state of the server at the other end.
    pub(crate) fn server(&self) -> &Arc<ServerState> {
        match self {
            Self::Server(connection) => &connection.opened.state,
            Self::External(connection) => &connection.server,
        }
    }
}
