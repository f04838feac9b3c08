//! The node that a command goes to: its guard, and how to connect to it.

use std::sync::Arc;

use redis::RedisResult;

use super::{connection::Connection, external::ExternalConnection, server::Server};
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

/// The node for a retry.
pub(crate) struct Redirect {
    pub(crate) node: Node,
    /// Whether the retry can succeed only on another connection than the one that has failed.
    pub(crate) needs_new_connection: bool,
}

impl Node {
    pub(super) fn new(server: Server) -> Self {
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
                Some(Connection::Server(if *is_asking { connection.asking() } else { connection }))
            }
            Self::External(connection) => Some(Connection::External(connection.clone())),
        }
    }

    /// Returns the connection to the node. If there is none, connects.
    pub(crate) async fn connection(&self) -> RedisResult<Connection> {
        match self {
            Self::Server { server, is_asking } => {
                let connection = server.connection().await?;
                Ok(Connection::Server(if *is_asking { connection.asking() } else { connection }))
            }
            Self::External(connection) => Ok(Connection::External(connection.clone())),
        }
    }
}

impl Redirect {
    pub(super) fn to(node: Node) -> Self {
        Self { node, needs_new_connection: false }
    }

    pub(super) fn reconnect(node: Node) -> Self {
        Self { node, needs_new_connection: true }
    }
}
