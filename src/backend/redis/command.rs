//! A command of the backend, as it is sent once.

use std::sync::Arc;

use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    error::has_kind,
    script::{Call, Script},
    topology::Connection,
};

/// A command for one server.
pub(super) enum Command<'a> {
    /// A script, and its call, which a batch may share.
    Script(&'a Script, &'a mut Arc<Call>),
    Plain(&'a Cmd),
}

impl Command<'_> {
    /// Sends the command now. If the server does not know the script, loads it.
    pub(super) async fn send(&self, connection: &Connection, now: Instant) -> RedisResult<Value> {
        let command = match self {
            Self::Script(script, call) => &script.by_hash(call),
            Self::Plain(command) => *command,
        };
        let reply = connection.send(command, now).await;
        match self {
            Self::Script(script, call) if is_unknown_script(&reply) => {
                Box::pin(send_unknown(script, call, connection, now)).await
            }
            _ => reply,
        }
    }
}

/// Sends a script that the server did not know at this instant. Loads it, unless another call does.
async fn send_unknown(
    script: &Script,
    call: &Call,
    connection: &Connection,
    mut sent: Instant,
) -> RedisResult<Value> {
    let scripts = &connection.server().scripts;
    // Nothing has run. Of all calls that find the script unknown, one sends its text.
    let mut load = scripts.start_load(sent).await;
    // Twice another call may load it: one that is stuck, and the one that replaces it.
    for _ in 0..2 {
        if load.is_some() {
            break;
        }
        sent = Instant::now();
        let reply = connection.send(&script.by_hash(call), sent).await;
        if !is_unknown_script(&reply) {
            return reply;
        }
        load = scripts.start_load(sent).await;
    }
    let reply = connection.send(&script.by_text(call), Instant::now()).await;
    if reply.is_ok() {
        scripts.record_load();
    }
    drop(load);
    reply
}

fn is_unknown_script(reply: &RedisResult<Value>) -> bool {
    reply.as_ref().is_err_and(|error| has_kind(error, &[ServerErrorKind::NoScript]))
}
