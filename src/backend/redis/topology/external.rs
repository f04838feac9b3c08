//! The caller's own connection. It may lead to a single server or to a cluster; only its type or the caller may say which.

use std::{
    any::TypeId,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use redis::{
    Cmd, RedisError, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, ConnectionManager, MultiplexedConnection},
};

use super::server_state::ServerState;
use crate::{backend::redis::slot::SLOTS, guard::Guard};

/// The caller's own connection, with the state of the server of each slot.
#[derive(Clone)]
pub(crate) struct External {
    connection: Arc<dyn Commands>,
    /// One for the connection: it does not report which server fails.
    guard: Arc<Guard>,
    servers: ServerStates,
}

/// The states of the servers behind the connection.
#[derive(Clone)]
enum ServerStates {
    /// One server, by the type of the connection or by the caller.
    One(Arc<ServerState>),
    /// By slot: this may be a cluster, and the connection does not report which server has replied.
    BySlot(Arc<[OnceLock<Arc<ServerState>>]>),
}

/// The caller's own connection, for the commands of one slot.
#[derive(Clone)]
pub(crate) struct ExternalConnection {
    connection: Arc<dyn Commands>,
    pub(super) guard: Arc<Guard>,
    pub(super) server: Arc<ServerState>,
}

/// An object-safe connection. It is cloned for each command, because sending needs `&mut`.
trait Commands: Send + Sync {
    fn send<'a>(&self, command: &'a Cmd) -> Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;
}

impl<C> Commands for C
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await })
    }
}

impl External {
    /// Returns a connection that may lead to a cluster, unless its type leads to one server.
    pub(super) fn new<C: ConnectionLike + Clone + Send + Sync + 'static>(connection: C) -> Self {
        let types = [TypeId::of::<MultiplexedConnection>(), TypeId::of::<ConnectionManager>()];
        if types.contains(&TypeId::of::<C>()) {
            return Self::one_server(connection);
        }
        Self::with_servers(connection, ServerStates::BySlot((0..SLOTS).map(|_| OnceLock::new()).collect()))
    }

    /// Returns a connection that leads to one server.
    pub(super) fn one_server(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::with_servers(connection, ServerStates::One(Arc::default()))
    }

    fn with_servers(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
        servers: ServerStates,
    ) -> Self {
        let guard = Guard::new(Arc::default(), "custom connection");
        Self { connection: Arc::new(connection), guard, servers }
    }

    /// Returns whether the commands of different slots may go to different servers.
    pub(super) fn has_slots(&self) -> bool {
        matches!(self.servers, ServerStates::BySlot(_))
    }

    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Returns the connection for the commands of a slot.
    pub(super) fn connection(&self, slot: u16) -> ExternalConnection {
        let server = match &self.servers {
            ServerStates::One(server) => server.clone(),
            ServerStates::BySlot(servers) => {
                let server = servers.get(usize::from(slot));
                server.map(|server| server.get_or_init(Arc::default).clone()).unwrap_or_default()
            }
        };
        ExternalConnection { connection: self.connection.clone(), guard: self.guard.clone(), server }
    }

    /// Returns the connection for a retry after this error. None if a retry cannot succeed.
    pub(super) fn redirect(&self, slot: u16, error: &RedisError) -> Option<ExternalConnection> {
        // A cluster client finds the new owner of a slot by itself.
        (error.kind() == ServerErrorKind::Moved.into()).then(|| self.connection(slot))
    }
}

impl ExternalConnection {
    /// Sends a command once.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.send(command).await.and_then(Value::extract_error)
    }
}
