//! The caller's own connection. It may lead to a single server or to a cluster; only its type or the caller may say which.

use std::{
    any::TypeId,
    sync::{Arc, OnceLock},
};

use redis::{
    Cmd, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use super::server_state::ServerState;
use crate::{backend::redis::slot::SLOTS, guard::Guard};

/// The caller's own connection, with the state of the server of each slot.
#[derive(Clone)]
pub(crate) struct External {
    commands: Arc<dyn Commands>,
    /// One for the connection: it does not report which server fails.
    pub(super) guard: Arc<Guard>,
    /// The states of the servers behind the connection. One server, by the type of the connection or by the caller, or one for each
    /// slot: this may be a cluster, and the connection does not report which server has replied.
    servers: Arc<[OnceLock<Arc<ServerState>>]>,
}

/// The caller's own connection, for the commands of one slot.
#[derive(Clone)]
pub(crate) struct ExternalConnection {
    pub(super) commands: Arc<dyn Commands>,
    pub(super) guard: Arc<Guard>,
    pub(super) server: Arc<ServerState>,
}

/// An object-safe connection. It is cloned for each command, because sending needs `&mut`.
pub(super) trait Commands: Send + Sync {
    /// Sends a command once.
    fn send<'a>(&self, command: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C> Commands for C
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await?.extract_error() })
    }
}

impl External {
    /// Returns a connection that may lead to a cluster, unless its type leads to one server.
    pub(crate) fn new<C: ConnectionLike + Clone + Send + Sync + 'static>(connection: C) -> Self {
        let types = [
            TypeId::of::<MultiplexedConnection>(),
            #[cfg(feature = "redis-1")]
            TypeId::of::<redis::aio::ConnectionManager>(),
        ];
        let is_one_server = types.contains(&TypeId::of::<C>());
        Self::with_servers(connection, if is_one_server { 1 } else { SLOTS })
    }

    /// Returns a connection that leads to one server.
    pub(crate) fn one_server(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::with_servers(connection, 1)
    }

    fn with_servers(connection: impl Commands + 'static, servers: u16) -> Self {
        let guard = Guard::new(Arc::default(), "custom connection");
        guard.register();
        let servers = (0..servers).map(|_| OnceLock::new()).collect();
        Self { commands: Arc::new(connection), guard, servers }
    }

    /// Returns whether the commands of different slots may go to different servers.
    pub(super) fn has_slots(&self) -> bool {
        self.servers.len() > 1
    }

    /// Returns the connection for the commands of a slot.
    pub(super) fn connection(&self, slot: u16) -> ExternalConnection {
        let server = self.servers[usize::from(slot) % self.servers.len()].get_or_init(Arc::default).clone();
        ExternalConnection { commands: self.commands.clone(), guard: self.guard.clone(), server }
    }
}
