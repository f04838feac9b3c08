//! Asking a server: where the keys live, again where it was refused, and never again where it may have run.

use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    Line, Link, RedisBackend,
    error::unavailable,
    script::{self, Call, Script},
};
use crate::backend::{BackendError, Reason};

/// How often a question is put that is refused and may be answered elsewhere, or later.
const ATTEMPTS: usize = 6;

/// Something to ask the server that has the keys of a slot.
pub(super) struct Asked<'a> {
    pub(super) slot: u16,
    pub(super) question: Question<'a>,
    /// After it the script charges nothing.
    pub(super) deadline: Option<Instant>,
    /// Whether it is counted if it remains unanswered.
    pub(super) is_counted: bool,
}

pub(super) enum Question<'a> {
    Script(&'a Script, &'a mut Call),
    Plain(&'a Cmd),
}

impl Question<'_> {
    async fn put_to(&self, line: &impl Line) -> RedisResult<Value> {
        let (script, call) = match self {
            Self::Script(script, call) => (script, call),
            Self::Plain(command) => return line.send(command).await,
        };
        let is_unknown = |reply: &RedisResult<Value>| {
            reply.as_ref().is_err_and(|error| error.kind() == ServerErrorKind::NoScript.into())
        };
        let mut teacher = None;
        for _ in 0..2 {
            let sent = Instant::now();
            let reply = line.send(&script.by_hash(call)).await;
            if !is_unknown(&reply) {
                return reply;
            }
            // Nothing has run. The text is sent once, however many have found out that the server does not know it.
            teacher = line.node().teach(sent).await;
            if teacher.is_some() {
                break;
            }
        }
        let reply = line.send(&script.by_text(call)).await;
        if reply.is_ok() {
            line.node().note_taught();
        }
        drop(teacher);
        reply
    }
}

/// Whether an error is a server's answer, and not the loss of one.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// A check that was sent. Dropped before its answer is there, it is counted, for its charge may stand.
struct Sent<'a> {
    unanswered: Option<&'a AtomicU64>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.unanswered {
            unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<L: Link> RedisBackend<L> {
    /// Asks where the keys of this slot live, and where else they may, until the question is answered. It is put again only if
    /// it was refused and nothing has run.
    pub(super) async fn ask(&self, asked: Asked<'_>) -> Result<Value, BackendError> {
        let Asked { slot, mut question, deadline, is_counted } = asked;
        let mut line = self.link.line(slot).await.map_err(unavailable)?;
        let mut refusal = BackendError::new(Reason::Other);
        for _ in 0..ATTEMPTS {
            if let (Question::Script(_, call), Some(deadline)) = (&mut question, deadline) {
                call.end_at(line.node().clock_at(deadline));
            }
            let mut sent = Sent { unanswered: is_counted.then_some(&self.unanswered) };
            let reply = question.put_to(&line).await;
            let received = Instant::now();
            if reply.as_ref().map_or_else(is_answer, |_| true) {
                sent.unanswered = None;
            }
            drop(sent);
            match (reply, deadline) {
                (Ok(reply), Some(deadline)) => {
                    if let Some(clock) = script::clock(&reply) {
                        line.node().has_told(clock, received);
                    }
                    if !script::is_late(&reply) {
                        return Ok(reply);
                    }
                    // The clock may not have been known well enough. Now it is.
                    refusal = BackendError::new(Reason::Late);
                    if deadline <= received {
                        break;
                    }
                }
                (Ok(reply), None) => return Ok(reply),
                (Err(error), _) => match self.link.elsewhere(slot, &line, &error).await {
                    Some(other) => {
                        line = other.map_err(unavailable)?;
                        refusal = unavailable(error);
                    }
                    None => return Err(unavailable(error)),
                },
            }
        }
        Err(refusal)
    }
}
