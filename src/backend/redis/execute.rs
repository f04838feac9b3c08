//! Execution of one command: on the server of its slot, with redirects and retries, but never again once it may have run.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    RedisBackend,
    error::unavailable,
    merge::{Place, is_mergeable},
    script::{self, Call, Script},
    topology::{Connection, Node, Redirect, ServerState, Topology},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
    guard::{LAST_TURNS, Pass, ServerAnswer, until},
};

/// The largest number of times that a command is sent which has not run.
const MAX_ATTEMPTS: usize = 6;

/// How long a check waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience<'a> {
    /// Until the caller drops it.
    Caller,
    /// Also after its deadline: a reply that comes late may contain a charge that must be rolled back. The flag is set while a
    /// command has no reply.
    Late(&'a AtomicBool),
}

/// A command for the server of one slot.
struct Operation<'a> {
    slot: u16,
    command: Command<'a>,
    /// After the deadline the script changes nothing.
    deadline: Option<Instant>,
    /// Whether the operation counts as an unanswered check if no reply comes.
    counts_unanswered: bool,
    /// The wait of a check, which needs a pass of its server. `None` for the change of a charge.
    wait: Option<CheckWait<'a>>,
    /// The check, if it may share a call with others.
    mergeable: Option<&'a Check>,
}

#[derive(Clone, Copy)]
struct CheckWait<'a> {
    deadline: Option<Instant>,
    patience: Patience<'a>,
}

impl CheckWait<'_> {
    /// Returns the deadline of a caller that waits until then. A check that begins later gets the answer of the server.
    fn end(&self) -> Option<Instant> {
        let waits = matches!(self.patience, Patience::Caller);
        self.deadline.filter(|deadline| waits && Instant::now() < *deadline)
    }
}

pub(super) enum Command<'a> {
    Script(&'a Script, &'a mut Call),
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
    reply.as_ref().is_err_and(|error| error.kind() == ServerErrorKind::NoScript.into())
}

/// Returns whether an error is a reply of the server, and not a lost reply.
pub(super) fn is_reply(error: &RedisError) -> bool {
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
    pub(super) async fn check_in_slot(
        &self,
        check: &Check,
        patience: Patience<'_>,
    ) -> Result<Decision, BackendError> {
        let mut call = Call::check(check, &self.names, self.generations.draw(), self.injected_micros());
        let charges = matches!(check.purpose(), Purpose::Charge | Purpose::Reserve | Purpose::Lease);
        // A peek after the deadline does no harm.
        let deadline = self.on_server(check.deadline()).filter(|_| check.purpose() != Purpose::Peek);
        // A single server, too, may show that it is in cluster mode.
        let needs_slots = self.topology.needs_slots() || self.is_cluster.load(Ordering::Relaxed);
        let slot = if needs_slots { call.slot() } else { 0 };
        let command = Command::Script(&self.scripts.check, &mut call);
        let wait = CheckWait { deadline: check.deadline(), patience };
        let wait = Some(wait).filter(|_| check.purpose() != Purpose::Overage);
        let can_merge = matches!(patience, Patience::Caller)
            && is_mergeable(check, matches!(self.topology, Topology::Server(_)));
        let mergeable = can_merge.then_some(check);
        let operation = Operation { slot, command, deadline, counts_unanswered: charges, wait, mergeable };
        let (reply, pass) = self.execute(operation).await?;
        let decision = script::decision(check, &reply);
        let decision = match pass {
            Some(pass) => pass.decided(check, decision),
            None => decision,
        };
        if charges && decision.as_ref().is_err_and(|error| error.reason() == Reason::BrokenReply) {
            // The script has run, and its outcome is unknown.
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }

    /// Refunds units whose keys are in one slot. Returns the instant, in microseconds of the server's clock.
    pub(super) async fn refund_in_slot(&self, refund: &Refund) -> Result<u64, BackendError> {
        let mut call = Call::refund(refund, &self.names, self.injected_micros());
        let (slot, deadline) = (call.slot(), self.on_server(refund.deadline()));
        let command = Command::Script(&self.scripts.refund, &mut call);
        script::changed_at(&self.change_in_slot(slot, command, deadline).await?)
    }

    /// Deletes keys that are in one slot.
    pub(super) async fn reset_in_slot(&self, pairs: &Check) -> Result<(), BackendError> {
        let mut call = Call::reset(pairs, &self.names, self.injected_micros());
        let (slot, deadline) = (call.slot(), self.on_server(pairs.deadline()));
        let command = Command::Script(&self.scripts.reset, &mut call);
        script::changed_at(&self.change_in_slot(slot, command, deadline).await?).map(drop)
    }

    /// Returns a deadline that the server compares with its own clock. `None` on an injected clock.
    fn on_server(&self, deadline: Option<Instant>) -> Option<Instant> {
        deadline.filter(|_| self.injected_micros().is_none())
    }

    /// Runs a command on the server of a slot, outside its circuit breaker.
    pub(super) async fn run_in_slot(&self, slot: u16, command: &Cmd) -> Result<Value, BackendError> {
        self.change_in_slot(slot, Command::Plain(command), None).await
    }

    async fn change_in_slot(
        &self,
        slot: u16,
        command: Command<'_>,
        deadline: Option<Instant>,
    ) -> Result<Value, BackendError> {
        let operation =
            Operation { slot, command, deadline, counts_unanswered: false, wait: None, mergeable: None };
        self.execute(operation).await.map(|(reply, _)| reply)
    }

    /// Sends a command to the server of its slot until a reply comes. It is sent again only after an error by which the server
    /// has not run it. The pass of a check is returned, because the caller knows whether the reply is valid.
    async fn execute(&self, operation: Operation<'_>) -> Result<(Value, Option<Pass>), BackendError> {
        let (mut pass, end) = (None, operation.wait.and_then(|wait| wait.end()));
        let mut turns = 0;
        let outcome = {
            let mut attempt = pin!(self.attempt(operation, &mut pass));
            // The caller wakes it at the deadline and in the last turns, and is about to drop it.
            poll_fn(|cx| match attempt.as_mut().poll(cx) {
                Poll::Pending if end.is_some_and(|end| Instant::now() >= end) => {
                    turns += 1;
                    if turns > LAST_TURNS { Poll::Ready(None) } else { Poll::Pending }
                }
                outcome => outcome.map(Some),
            })
            .await
        };
        match (outcome, pass) {
            (Some(Ok(reply)), pass) => Ok((reply, pass)),
            (Some(Err(error)), Some(pass)) => Err(pass.failed(error)),
            (Some(Err(error)), None) => Err(error),
            (None, Some(mut pass)) => Err(pass.time_out()),
            (None, None) => Err(BackendError::new(Reason::Timeout)),
        }
    }

    /// Sends a command until a reply comes. `pass` is that of the node that is asked.
    async fn attempt(
        &self,
        operation: Operation<'_>,
        pass: &mut Option<Pass>,
    ) -> Result<Value, BackendError> {
        let Operation { slot, mut command, deadline, counts_unanswered, wait, mut mergeable } = operation;
        let mut node = match self.topology.connected_owner(slot) {
            Some(node) => node,
            None => Box::pin(self.owner(slot, wait)).await?,
        };
        let mut failed: Option<Arc<ServerState>> = None;
        let mut last_error = BackendError::new(Reason::Other);
        for _ in 0..MAX_ATTEMPTS {
            match pass {
                // A call that has decided other checks has reported its outcome. The retry needs a report of its own.
                Some(pass) if pass.is_reported() => pass.renew()?,
                Some(_) => {}
                None => *pass = wait.map(|wait| node.guard().enter(wait.deadline)).transpose()?,
            }
            let connection = match node.open_connection() {
                Some(connection) => connection,
                None => Box::pin(by_deadline(wait, node.connection())).await?.map_err(unavailable)?,
            };
            if failed.take().is_some_and(|failed| Arc::ptr_eq(&failed, connection.server())) {
                break;
            }
            if let (Command::Script(_, call), Some(deadline)) = (&mut command, deadline) {
                call.set_deadline(connection.server().clock.lower_bound_at(deadline));
            }
            let place = mergeable.and_then(|_| self.merge_place(slot, &connection));
            let merges = place.as_ref().is_some_and(Place::merges);
            let merged = match (mergeable, &mut command, &mut *pass) {
                (Some(check), Command::Script(_, call), Some(pass)) if merges && !pass.is_probe() => {
                    Box::pin(self.send_merged(check, slot, call, pass, &connection)).await
                }
                _ => None,
            };
            let is_merged = merged.is_some();
            let mut sent = Sent { unanswered: (counts_unanswered && !is_merged).then_some(&self.unanswered) };
            let now = Instant::now();
            let reply = match (merged, wait) {
                (Some(reply), _) => reply,
                (None, Some(CheckWait { deadline, patience: Patience::Late(is_pending) })) => {
                    Box::pin(with_patience(deadline, is_pending, command.send(&connection, now), pass)).await
                }
                (None, _) => command.send(&connection, now).await,
            };
            drop(place);
            let received = Instant::now();
            if reply.as_ref().map_or_else(is_reply, |_| true) {
                sent.unanswered = None;
                if let Some(CheckWait { patience: Patience::Late(is_pending), .. }) = wait {
                    is_pending.store(false, Ordering::Relaxed);
                }
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
                (Err(error), _) if is_merged && is_of_several_keys(&error) => {
                    // The server has run nothing. It rejects the keys of the call, and not those of each check.
                    if error.kind() == ServerErrorKind::CrossSlot.into() {
                        self.is_cluster.store(true, Ordering::Relaxed);
                    }
                    mergeable = None;
                    last_error = unavailable(error);
                }
                (Err(error), _) => {
                    let redirect = self.topology.redirect(slot, connection.server(), &error);
                    let Some(redirect) = Box::pin(by_deadline(wait, redirect)).await? else {
                        return Err(unavailable(error));
                    };
                    let has_moved = is_redirect(&error);
                    last_error = unavailable(error);
                    let Redirect { node: next, needs_new_connection } = redirect.map_err(unavailable)?;
                    failed = needs_new_connection.then(|| connection.server().clone());
                    if let Some(pass) = pass.take_if(|pass| !pass.is_of(next.guard())) {
                        if has_moved {
                            // A node that redirects has answered.
                            pass.answered(ServerAnswer::Reads);
                        } else {
                            last_error = pass.failed(last_error);
                        }
                    }
                    node = next;
                }
            }
        }
        Err(last_error)
    }

    /// Returns the node that has the keys of a slot. Looking it up needs a pass of its own.
    async fn owner(&self, slot: u16, wait: Option<CheckWait<'_>>) -> Result<Node, BackendError> {
        if let Some(node) = self.topology.known_owner(slot).await.map_err(unavailable)? {
            return Ok(node);
        }
        let guard = self.topology.look_up_guard();
        let pass = wait.map(|wait| guard.enter(wait.deadline)).transpose()?;
        let looked_up = by_deadline(wait, self.topology.owner(slot)).await;
        match (looked_up.and_then(|owner| owner.map_err(unavailable)), pass) {
            (Ok(owner), Some(pass)) => {
                pass.answered(ServerAnswer::Works);
                Ok(owner)
            }
            (Err(error), Some(pass)) => Err(pass.failed(error)),
            (owner, None) => owner,
        }
    }

    /// Returns the error of a check of this slot that got no reply in time.
    pub(super) fn timeout(&self, slot: u16) -> BackendError {
        match self.topology.connected_owner(slot) {
            Some(node) => node.guard().timeout(),
            None => BackendError::new(Reason::Timeout),
        }
    }
}

/// Runs a step before anything is sent. A check that waits for late replies does not wait for such a step.
async fn by_deadline<T>(
    wait: Option<CheckWait<'_>>,
    step: impl Future<Output = T>,
) -> Result<T, BackendError> {
    match wait {
        Some(CheckWait { deadline: Some(deadline), patience: Patience::Late(_) }) => {
            until(deadline, step).await.ok_or_else(|| BackendError::new(Reason::Timeout))
        }
        _ => Ok(step.await),
    }
}

/// Waits for a reply that may come late. Then the guard hears of the deadline when it passes. The flag is set meanwhile.
async fn with_patience(
    deadline: Option<Instant>,
    is_pending: &AtomicBool,
    reply: impl Future<Output = RedisResult<Value>>,
    pass: &mut Option<Pass>,
) -> RedisResult<Value> {
    is_pending.store(true, Ordering::Relaxed);
    let Some(deadline) = deadline else { return reply.await };
    let mut reply = pin!(reply);
    if let Some(reply) = until(deadline, &mut reply).await {
        return reply;
    }
    if let Some(pass) = pass {
        pass.time_out();
    }
    reply.await
}

/// Returns whether a node has answered that another node has the slot.
fn is_redirect(error: &RedisError) -> bool {
    let kinds = [ServerErrorKind::Moved, ServerErrorKind::Ask, ServerErrorKind::TryAgain];
    kinds.into_iter().any(|kind| error.kind() == kind.into())
}

/// Returns whether a server rejects a call because its keys are in several slots, or on several nodes.
fn is_of_several_keys(error: &RedisError) -> bool {
    let kinds = [ServerErrorKind::CrossSlot, ServerErrorKind::TryAgain];
    kinds.into_iter().any(|kind| error.kind() == kind.into())
}
