//! Ways to a server, or to the servers of a cluster, and what is known of each of them.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
};

use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};

use super::slots::SLOTS;

mod cluster;
mod managed;
mod node;
mod sentinel;
mod server;

pub use managed::Managed;
pub use node::Node;

/// A way to where keys live.
pub trait Link: Clone + Send + Sync + 'static {
    /// A connection to one server.
    type Line: Line;

    /// The connection to the server that has the keys of this slot.
    fn line(&self, slot: u16) -> impl Future<Output = RedisResult<Self::Line>> + Send;

    /// Where to send a command that a server has refused with this error and has not run: somewhere else, or to the same
    /// again. None if there is no better place. `line` is where it was sent.
    fn elsewhere(
        &self,
        slot: u16,
        line: &Self::Line,
        error: &RedisError,
    ) -> impl Future<Output = Option<RedisResult<Self::Line>>> + Send;

    /// The server's address and database, if they are known here.
    fn store(&self) -> Option<String> {
        None
    }
}

/// A connection to one server.
pub trait Line: Send + Sync {
    /// Sends the command once; never again, for it may have run. A reply that is an error is an `Err`.
    fn send(&self, command: &Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

    /// What is known of the server.
    #[doc(hidden)]
    fn node(&self) -> &Node;
}

/// The user's own connection.
#[derive(Clone)]
pub struct Own<C> {
    connection: C,
    /// By slot, for this may be a cluster, and which server answers is not to be seen from here.
    nodes: Arc<[OnceLock<Arc<Node>>]>,
}

/// The user's own connection, on its way to one slot.
pub struct OwnLine<C> {
    connection: C,
    node: Arc<Node>,
}

impl<C> Own<C> {
    pub(super) fn new(connection: C) -> Self {
        Self { connection, nodes: (0..SLOTS).map(|_| OnceLock::new()).collect() }
    }
}

impl<C> Link for Own<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Line = OwnLine<C>;

    async fn line(&self, slot: u16) -> RedisResult<Self::Line> {
        let node = self.nodes.get(usize::from(slot)).map(|node| node.get_or_init(Arc::default).clone());
        Ok(OwnLine { connection: self.connection.clone(), node: node.unwrap_or_default() })
    }

    async fn elsewhere(
        &self,
        slot: u16,
        _: &Self::Line,
        error: &RedisError,
    ) -> Option<RedisResult<Self::Line>> {
        // A cluster's client looks for the new place by itself.
        let has_moved = error.kind() == ServerErrorKind::Moved.into();
        if has_moved { Some(self.line(slot).await) } else { None }
    }
}

impl<C> Line for OwnLine<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error)
    }

    fn node(&self) -> &Node {
        &self.node
    }
}

impl<C> fmt::Debug for Own<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own(..)")
    }
}
