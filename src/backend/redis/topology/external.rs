//! The caller's own connection. It may lead to a single server or to a cluster; the backend cannot see which.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};

use super::server_state::ServerState;
use crate::{backend::redis::slot::SLOTS, outage::Guard};

/// The caller's own connection, with the state of the server of each slot.
#[derive(Clone)]
pub(crate) struct External {
    connection: Arc<dyn Commands>,
    /// One for the connection: it does not report which server fails.
    guard: Arc<Guard>,
    /// By slot: this may be a cluster, and the connection does not report which server has replied.
    servers: Arc<[OnceLock<Arc<ServerState>>]>,
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
    pub(super) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let servers = (0..SLOTS).map(|_| OnceLock::new()).collect();
        Self {
            connection: Arc::new(connection),
            guard: Guard::new(Arc::default(), "custom connection"),
            servers,
        }
    }

    pub(super) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Returns the connection for the commands of a slot.
    pub(super) fn connection(&self, slot: u16) -> ExternalConnection {
        let server = self.servers.get(usize::from(slot));
        let server = server.map(|server| server.get_or_init(Arc::default).clone()).unwrap_or_default();
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
