//! Execution of one command: on the server of its slot, with redirects and retries, but never again once it may have run.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    RedisBackend,
    command::Command,
    error::{has_kind, is_reply, unavailable},
    holder::{HeldLists, HoldCall, Holder, SendCall},
    merge::{GroupKey, PendingReply, is_batchable, is_mergeable},
    patience::{CheckWait, Patience, by_deadline, with_patience},
    script::{self, Call},
    topology::{Cluster, Connection, Node, ServerState, Topology},
};
use crate::{
    backend::{BackendError, Reason},
    check::{Check, Purpose, Refund},
    decision::Decision,
    guard::{LAST_TURNS, Pass, ServerAnswer},
    observe::unanswered,
};

/// The largest number of times that a command is sent which has not run.
const MAX_ATTEMPTS: usize = 6;

/// The pause before a change of a charge is sent again.
const CHANGE_PAUSE: Duration = Duration::from_millis(100);

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
    /// The check, if a batch may send it.
    batchable: Option<&'a Check>,
    /// The clock in a reply that has changed nothing, in microseconds.
    clock: Option<u64>,
    /// Whether the command was sent, and no reply shows that it has not run.
    may_have_run: bool,
}

impl<'a> Operation<'a> {
    /// Returns the operation of a command that is no check.
    fn without_wait(slot: u16, command: Command<'a>, deadline: Option<Instant>) -> Self {
        Self {
            slot,
            command,
            deadline,
            counts_unanswered: false,
            wait: None,
            batchable: None,
            clock: None,
            may_have_run: false,
        }
    }
}

/// A command that was sent. If it is dropped without a reply, it is counted, because its charge may stand.
struct SentCommand<'a> {
    unanswered: Option<&'a AtomicU64>,
}

impl Drop for SentCommand<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.unanswered {
            unanswered(count);
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
        // A single server, too, may show that it is in cluster mode.
        let needs_slots = self.topology.needs_slots() || self.is_cluster.load(Ordering::Relaxed);
        let in_group = |slot| if needs_slots { slot } else { 0 };
        let acquired = self.holder.acquire(check, &self.names, in_group, || self.call_sender())?;
        let (acquisition, numbers) = acquired.unzip();
        // Boxed, because few checks have one.
        let numbers = numbers.map(Box::new);
        let (generation, at_micros) = (self.generations.draw(), self.injected_micros());
        let mut call = Call::check(check, &self.names, generation, acquisition, at_micros);
        let charges =
            !matches!(check.purpose(), Purpose::Peek | Purpose::Overage | Purpose::LeaveAtMost { .. });
        // A peek after the deadline does no harm.
        let deadline = self.on_server(check.deadline()).filter(|_| check.purpose() != Purpose::Peek);
        let slot = if needs_slots { call.slot() } else { 0 };
        let command = Command::Script(&self.scripts.check, &mut call);
        let wait = CheckWait { deadline: check.deadline(), patience };
        let wait = Some(wait).filter(|_| check.purpose() != Purpose::Overage);
        let batchable = (matches!(patience, Patience::Caller) && is_batchable(check)).then_some(check);
        let operation = Operation::without_wait(slot, command, deadline);
        let mut operation = Operation { counts_unanswered: charges, wait, batchable, ..operation };
        let executed = match check.purpose() {
            Purpose::Overage => Box::pin(self.change(&mut operation, check.deadline())).await,
            _ => self.execute(&mut operation).await,
        };
        let decision = match executed {
            Ok((reply, pass)) => {
                let decision = script::decision(check, &reply);
                if charges && decision.as_ref().is_err_and(|error| error.reason() == Reason::BrokenReply) {
                    // The script has run, and its outcome is unknown.
                    unanswered(&self.unanswered);
                }
                match pass {
                    Some(pass) => pass.decided(check, decision),
                    None => decision,
                }
            }
            Err(error) => Err(error),
        };
        match numbers {
            Some(numbers) => numbers.complete(check, decision),
            None => decision,
        }
    }

    /// Refunds units whose keys are in one slot. Returns the instant, in microseconds of the server's clock.
    pub(super) async fn refund_in_slot(&self, refund: &Refund) -> Result<u64, BackendError> {
        let mut call = Call::refund(refund, &self.names, self.injected_micros());
        let (slot, deadline) = (call.slot(), self.on_server(refund.deadline()));
        let command = Command::Script(&self.scripts.refund, &mut call);
        script::changed_at(&self.repeat_in_slot(slot, command, deadline, refund.deadline()).await?)
    }

    /// Deletes keys that are in one slot.
    pub(super) async fn reset_in_slot(&self, pairs: &Check) -> Result<(), BackendError> {
        let mut call = Call::reset(pairs, &self.names, self.injected_micros());
        let (slot, deadline) = (call.slot(), self.on_server(pairs.deadline()));
        let command = Command::Script(&self.scripts.reset, &mut call);
        script::changed_at(&self.change_in_slot(slot, command, deadline).await?).map(drop)
    }

    /// Returns what sends the calls of the holder, over connections of its own.
    fn call_sender(&self) -> SendCall {
        // It holds no units.
        let (topology, holder) = (self.topology.with_own_connections(), Arc::new(Holder::random()));
        let backend = Self { topology, holder, ..self.clone() };
        Box::new(move |holder, call| Box::pin(backend.clone().change_held(holder, call)))
    }

    /// Changes what a holder holds of some pairs.
    async fn change_held(self, holder: u64, call: Arc<HoldCall>) -> HeldLists {
        let mut script = Call::hold(holder, &call.pairs, self.injected_micros());
        let command = Command::Script(&self.scripts.hold, &mut script);
        let change = self.change_in_slot(call.slot, command, self.on_server(Some(call.end)));
        let reply = timeout_at(call.end, change).await;
        let reply = reply.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
        reply.and_then(|reply| script::hold::lists(&reply, call.pairs.len()))
    }

    /// Returns a deadline that the server compares with its own clock. `None` on an injected clock.
    pub(super) fn on_server(&self, deadline: Option<Instant>) -> Option<Instant> {
        deadline.filter(|_| self.injected_micros().is_none())
    }

    /// Runs a command on the server of a slot, outside its circuit breaker.
    pub(super) async fn run_in_slot(&self, slot: u16, command: &Cmd) -> Result<Value, BackendError> {
        self.change_in_slot(slot, Command::Plain(command), None).await
    }

    pub(super) async fn change_in_slot(
        &self,
        slot: u16,
        command: Command<'_>,
        deadline: Option<Instant>,
    ) -> Result<Value, BackendError> {
        let mut operation = Operation::without_wait(slot, command, deadline);
        self.execute(&mut operation).await.map(|(reply, _)| reply)
    }

    /// Runs a change as [`change`](Self::change) does.
    pub(super) async fn repeat_in_slot(
        &self,
        slot: u16,
        command: Command<'_>,
        deadline: Option<Instant>,
        end: Option<Instant>,
    ) -> Result<Value, BackendError> {
        let mut operation = Operation::without_wait(slot, command, deadline);
        self.change(&mut operation, end).await.map(|(reply, _)| reply)
    }

    /// Changes a charge. Until this instant, it is repeated after errors by which it has not run: a server that cannot be reached or is busy,
    /// such as after a restart or while a replica takes over.
    async fn change(
        &self,
        operation: &mut Operation<'_>,
        end: Option<Instant>,
    ) -> Result<(Value, Option<Pass>), BackendError> {
        let mut permit = None;
        loop {
            let outcome = self.execute(operation).await;
            let has_run = |error: &BackendError| operation.may_have_run && error.reason() != Reason::Busy;
            let is_over = end.is_none_or(|end| Instant::now() + CHANGE_PAUSE >= end);
            if outcome.as_ref().map_or_else(has_run, |_| true) || is_over || Handle::try_current().is_err() {
                return outcome;
            }
            // Many of them must not take the place of those for other servers.
            permit = permit.or_else(|| self.repeats.try_acquire().ok());
            if permit.is_none() {
                return outcome;
            }
            sleep(CHANGE_PAUSE).await;
            operation.may_have_run = false;
        }
    }

    /// Sends a command to the server of its slot until a reply comes. It is sent again only after an error by which the server
    /// has not run it. The pass of a check is returned, because the caller knows whether the reply is valid.
    async fn execute(&self, operation: &mut Operation<'_>) -> Result<(Value, Option<Pass>), BackendError> {
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
        operation: &mut Operation<'_>,
        pass: &mut Option<Pass>,
    ) -> Result<Value, BackendError> {
        let Operation { slot, deadline, wait, .. } = *operation;
        let mut node = match self.topology.connected_owner(slot) {
            Ok(node) => node,
            Err(cluster) => Box::pin(owner(cluster, slot, wait, pass)).await?,
        };
        let (mut failed, mut last_error) = (None::<Arc<ServerState>>, None);
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
            let (reply, is_batched) = self.send(operation, pass, &connection).await;
            let received = Instant::now();
            match reply {
                Ok(reply) => {
                    if !matches!(operation.command, Command::Script(..)) {
                        return Ok(reply);
                    }
                    let clock = script::clock_reading(&reply);
                    if let Some(micros) = clock {
                        connection.server().clock.record(micros, received);
                    }
                    if !script::is_deadline_exceeded(&reply) {
                        return Ok(reply);
                    }
                    // The lower bound of the clock may have been too low, or the calendar periods were those of another instant. The
                    // reply has corrected both.
                    (operation.clock, last_error) =
                        (clock, Some(BackendError::new(Reason::DeadlineExceeded)));
                    if deadline.is_some_and(|deadline| deadline <= received) {
                        break;
                    }
                }
                Err(error) if is_batched && is_of_several_keys(&error) => {
                    // The server has run nothing. It rejects the keys of the call, and not those of each check.
                    if has_kind(&error, &[ServerErrorKind::CrossSlot]) {
                        self.is_cluster.store(true, Ordering::Relaxed);
                    }
                    operation.batchable = None;
                    last_error = Some(unavailable(error));
                }
                Err(error) => {
                    // Unless another node has the slot, only another connection helps.
                    failed = (!is_redirect(&error)).then(|| connection.server().clone());
                    let server = connection.server();
                    (node, last_error) = Box::pin(self.redirect(operation, pass, server, error)).await?;
                }
            }
        }
        Err(last_error.unwrap_or_else(|| BackendError::new(Reason::Other)))
    }

    /// Sends a command once. Also returns whether a batch has sent it, with others or alone.
    async fn send(
        &self,
        operation: &mut Operation<'_>,
        pass: &mut Option<Pass>,
        connection: &Connection,
    ) -> (RedisResult<Value>, bool) {
        operation.may_have_run = true;
        let Operation { slot, command, deadline, counts_unanswered, wait, batchable, clock, .. } = operation;
        if let Command::Script(_, call) = &mut *command {
            // A batch may still share the call that it has answered.
            let call = Arc::make_mut(call);
            let server_clock = &connection.server().clock;
            if let Some(deadline) = *deadline {
                call.set_deadline(server_clock.lower_bound_at(deadline));
            }
            call.set_periods(|| clock.unwrap_or_else(|| server_clock.estimate()));
        }
        let counted = batchable.and_then(|_| self.merger.count(*slot, connection));
        let in_flight = counted.as_ref().and_then(|counted| counted.in_flight);
        let pending = match (*batchable, &*command, &mut *pass, in_flight) {
            (Some(check), Command::Script(_, call), Some(pass), Some(in_flight)) if !pass.is_probe() => {
                self.join_batch(check, *slot, call, pass, connection, in_flight)
            }
            _ => None,
        };
        if let (Some(pending), Some(pass)) = (pending, &mut *pass)
            && let Some(reply) = pending.outcome(&self.unanswered, pass).await
        {
            return (reply, true);
        }
        let mut sent = SentCommand { unanswered: counts_unanswered.then_some(&self.unanswered) };
        let now = Instant::now();
        let reply = match *wait {
            Some(CheckWait { deadline, patience: Patience::Late(is_pending) }) => {
                Box::pin(with_patience(deadline, is_pending, command.send(connection, now), pass)).await
            }
            // Boxed, because a check that is merged has no use for its memory.
            _ => Box::pin(command.send(connection, now)).await,
        };
        if is_reply(&reply) {
            sent.unanswered = None;
        }
        (reply, false)
    }

    /// Joins a batch. Returns `None` if there is no runtime to send it.
    fn join_batch(
        &self,
        check: &Check,
        slot: u16,
        call: &Arc<Call>,
        pass: &mut Pass,
        connection: &Connection,
        in_flight: usize,
    ) -> Option<PendingReply> {
        let may_share = is_mergeable(check, matches!(self.topology, Topology::Server(_)));
        let key = GroupKey::new(check, may_share, slot, connection, self.injected_micros())?;
        Some(self.merger.join(key, call, pass, connection, &self.scripts, in_flight))
    }

    /// Returns the node for a retry after this error, and the error of the attempt, which is the last one so far. If the node is another one,
    /// ends the pass.
    async fn redirect(
        &self,
        operation: &mut Operation<'_>,
        pass: &mut Option<Pass>,
        failed: &Arc<ServerState>,
        error: RedisError,
    ) -> Result<(Node, Option<BackendError>), BackendError> {
        let Operation { slot, wait, .. } = *operation;
        let redirect = by_deadline(wait, self.topology.redirect(slot, failed, &error)).await?;
        let has_moved = is_redirect(&error);
        let mut error = unavailable(error);
        let Some(node) = redirect else { return Err(error) };
        // It has not run.
        operation.may_have_run = false;
        let node = node.map_err(unavailable)?;
        if let Some(pass) = pass.take_if(|pass| !Arc::ptr_eq(&pass.guard, node.guard())) {
            if has_moved {
                // A node that redirects has answered.
                pass.answered(ServerAnswer::Reads);
            } else {
                error = pass.failed(error);
            }
        }
        Ok((node, Some(error)))
    }

    /// Returns the error of a check in one slot that got no reply in time.
    pub(super) fn timeout(&self, check: &Check) -> BackendError {
        let slot = check.pairs().first().map(|pair| self.names.slot(&pair.key));
        let node = slot.and_then(|slot| self.topology.connected_owner(slot).ok());
        node.map_or_else(|| BackendError::new(Reason::Timeout), |node| node.guard().timeout())
    }
}

/// Returns the node of a cluster that has the keys of a slot. Looking it up needs a pass of its own. The caller reports the pass if the
/// look-up fails, or if the caller drops the look-up at the deadline.
async fn owner(
    cluster: &Cluster,
    slot: u16,
    wait: Option<CheckWait<'_>>,
    pass: &mut Option<Pass>,
) -> Result<Node, BackendError> {
    if let Some(server) = cluster.known_owner(slot).await.map_err(unavailable)? {
        return Ok(Node::new(server));
    }
    *pass = wait.map(|wait| cluster.guard().enter(wait.deadline)).transpose()?;
    let owner = by_deadline(wait, cluster.owner(slot)).await?.map_err(unavailable)?;
    if let Some(pass) = pass.take() {
        pass.answered(ServerAnswer::Works);
    }
    Ok(Node::new(owner))
}

/// Returns whether a node has answered that another node has the slot.
fn is_redirect(error: &RedisError) -> bool {
    has_kind(error, &[ServerErrorKind::Moved, ServerErrorKind::Ask, ServerErrorKind::TryAgain])
}

/// Returns whether a server rejects a call because its keys are in several slots, or on several nodes.
fn is_of_several_keys(error: &RedisError) -> bool {
    has_kind(error, &[ServerErrorKind::CrossSlot, ServerErrorKind::TryAgain])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;

    /// Each check allocates its future. For a larger one, the allocator of glibc does far more work: it keeps freed memory at hand up to
    /// 1,032 bytes, of which the caller needs some.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn future_of_check_is_small() {
        fn size<'a, F: Future>(_: impl Fn(&'a RedisBackend, &'a Check) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(<RedisBackend as Backend>::check);
        assert!(size <= 960, "{size} bytes");
    }
}
