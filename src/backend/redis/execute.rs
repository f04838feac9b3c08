//! Execution of one command: on the server of its slot, with redirects and retries, but never again once it may have run.

use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    RedisBackend,
    error::unavailable,
    script::{self, Call, Script},
    topology::Connection,
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
};

/// The largest number of times that a command is sent which has not run.
const MAX_ATTEMPTS: usize = 6;

/// A command for the server of one slot.
struct Operation<'a> {
    slot: u16,
    command: Command<'a>,
    /// After the deadline the script charges nothing.
    deadline: Option<Instant>,
    /// Whether the operation counts as an unanswered check if no reply comes.
    counts_unanswered: bool,
}

enum Command<'a> {
    Script(&'a Script, &'a mut Call),
    Plain(&'a Cmd),
}

impl Command<'_> {
    /// Sends the command. If the server does not know the script, loads it.
    async fn send(&self, connection: &Connection) -> RedisResult<Value> {
        let (script, call) = match self {
            Self::Script(script, call) => (script, call),
            Self::Plain(command) => return connection.send(command).await,
        };
        let is_unknown = |reply: &RedisResult<Value>| {
            reply.as_ref().is_err_and(|error| error.kind() == ServerErrorKind::NoScript.into())
        };
        let scripts = &connection.server().scripts;
        let mut load = None;
        for _ in 0..2 {
            let sent = Instant::now();
            let reply = connection.send(&script.by_hash(call)).await;
            if !is_unknown(&reply) {
                return reply;
            }
            // Nothing has run. Of all calls that find the script unknown, one sends its text.
            load = scripts.start_load(sent).await;
            if load.is_some() {
                break;
            }
        }
        let reply = connection.send(&script.by_text(call)).await;
        if reply.is_ok() {
            scripts.record_load();
        }
        drop(load);
        reply
    }
}

/// Returns whether an error is a reply of the server, and not a lost reply.
fn is_reply(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// A command that was sent. If it is dropped without a reply, it is counted, because its charge may stand.
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

impl RedisBackend {
    /// Decides a check whose keys are in one slot.
    pub(super) async fn check_in_slot(&self, check: &Check) -> Result<Decision, BackendError> {
        let mut call = Call::check(check, &self.names, self.generations.draw(), self.injected_micros());
        // An overage is charged even after the deadline, and a peek after it does no harm.
        let charges = matches!(check.purpose(), Purpose::Charge | Purpose::Reserve);
        let deadline = check.deadline().filter(|_| charges && self.injected_micros().is_none());
        let slot = call.slot();
        let command = Command::Script(&self.scripts.check, &mut call);
        let reply = self.execute(Operation { slot, command, deadline, counts_unanswered: charges }).await?;
        let decision = script::decision(check, &reply);
        if charges && decision.as_ref().is_err_and(|error| error.reason() == Reason::BrokenReply) {
            // The script has run, and its outcome is unknown.
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }

    /// Refunds units whose keys are in one slot. Returns the instant, in microseconds of the server's clock.
    pub(super) async fn refund_in_slot(&self, refund: &Refund) -> Result<u64, BackendError> {
        let mut call = Call::refund(refund, &self.names, self.injected_micros());
        let slot = call.slot();
        let command = Command::Script(&self.scripts.refund, &mut call);
        let operation = Operation { slot, command, deadline: None, counts_unanswered: false };
        script::refunded_at(&self.execute(operation).await?)
    }

    /// Deletes keys that are in one slot.
    pub(super) async fn reset_in_slot(&self, pairs: &Check) -> Result<(), BackendError> {
        let (slot, command) = script::reset(pairs, &self.names);
        let command = Command::Plain(&command);
        self.execute(Operation { slot, command, deadline: None, counts_unanswered: false }).await.map(drop)
    }

    /// Sends a command to the server of its slot until a reply comes. It is sent again only after an error by which the server
    /// has not run it.
    async fn execute(&self, operation: Operation<'_>) -> Result<Value, BackendError> {
        let Operation { slot, mut command, deadline, counts_unanswered } = operation;
        let mut connection = self.topology.connection(slot).await.map_err(unavailable)?;
        let mut last_error = BackendError::new(Reason::Other);
        for _ in 0..MAX_ATTEMPTS {
            if let (Command::Script(_, call), Some(deadline)) = (&mut command, deadline) {
                call.set_deadline(connection.server().clock.lower_bound_at(deadline));
            }
            let mut sent = Sent { unanswered: counts_unanswered.then_some(&self.unanswered) };
            let reply = command.send(&connection).await;
            let received = Instant::now();
            if reply.as_ref().map_or_else(is_reply, |_| true) {
                sent.unanswered = None;
            }
            drop(sent);
            match (reply, deadline) {
                (Ok(reply), Some(deadline)) => {
                    if let Some(micros) = script::clock_reading(&reply) {
                        connection.server().clock.record(micros, received);
                    }
                    if !script::is_deadline_exceeded(&reply) {
                        return Ok(reply);
                    }
                    // The lower bound of the clock may have been too low. The reply has raised it.
                    last_error = BackendError::new(Reason::DeadlineExceeded);
                    if deadline <= received {
                        break;
                    }
                }
                (Ok(reply), None) => return Ok(reply),
                (Err(error), _) => match self.topology.redirect(slot, &connection, &error).await {
                    Some(redirected) => {
                        connection = redirected.map_err(unavailable)?;
                        last_error = unavailable(error);
                    }
                    None => return Err(unavailable(error)),
                },
            }
        }
        Err(last_error)
    }
}
