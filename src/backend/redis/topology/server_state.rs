//! The state of one server, as far as its replies show it.

use std::sync::{OnceLock, atomic::AtomicUsize};

use super::{clock::ServerClock, pending::PendingCommands, script_cache::ScriptCache};

/// The state of one server. It lasts as long as the connection.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// The server's clock.
    pub(crate) clock: ServerClock,
    /// The server's script cache.
    pub(crate) scripts: ScriptCache,
    /// The number of the connection, from the first check that may be merged. Connections of a backend usually have different ones.
    pub(crate) number: OnceLock<usize>,
    /// The calls of merged checks that may not be written yet.
    pub(crate) unwritten: AtomicUsize,
    /// The commands without a reply.
    pub(super) pending: PendingCommands,
}
