//! A batch: the checks of one merged call, and how each of them waits for its reply.

use std::{
    io, mem,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    backend::redis::{
        error::is_reply,
        script::{
            Call,
            merged::server_time::{CallTime, CheckTime},
        },
    },
    guard::{CallReport, Pass, Permit},
    lock::Lock,
    observe::unanswered,
};

/// The largest number of checks in one call. If their keys can hold many records, there are fewer.
const MAX_CHECKS: usize = 64;

/// How long a server may take to answer a call of checks without a deadline.
const NO_DEADLINE: Duration = Duration::from_secs(60);

/// The checks of one call.
#[derive(Default)]
pub(super) struct Batch(Lock<BatchState>);

#[derive(Default)]
struct BatchState {
    checks: Checks,
    time: CallTime,
    /// Whether the call was given to the connection. From then on, a check that is dropped may have run.
    is_written: bool,
    /// The latest deadline of the checks, or now, if one has waited until its deadline. `None` if no check has a deadline.
    end_of_wait: Option<Instant>,
    /// Those of the checks that were dropped after the call was written: the server still has to answer them.
    permits: Vec<Permit>,
}

/// Checks whose callers wait.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) waiting: Vec<WaitingCheck>,
    /// The right to report the outcome of the call.
    pub(super) report: Option<CallReport>,
}

/// A check whose caller waits.
pub(super) struct WaitingCheck {
    pub(super) call: Arc<Call>,
    pub(super) time: CheckTime,
    pub(super) caller: Caller,
}

pub(super) type Caller = oneshot::Sender<MergedReply>;

/// What a caller gets.
pub(crate) struct MergedReply {
    /// The reply to its check, or `None` if nothing was sent.
    pub(crate) reply: Option<RedisResult<Value>>,
    /// The right to report the outcome, if the call has not reported it.
    pub(crate) report: Option<CallReport>,
}

/// A caller that waits for its reply. If it is dropped before the call is written, its check is not sent.
pub(crate) struct PendingReply {
    batch: Arc<Batch>,
    reply: oneshot::Receiver<MergedReply>,
}

/// Counts a check that is dropped without a reply.
struct Unanswered<'a> {
    pending: PendingReply,
    count: &'a AtomicU64,
    pass: &'a mut Pass,
    is_answered: bool,
}

impl Batch {
    /// Returns whether a check may join: whether the call then has at most so many checks that differ, and stays short, however many
    /// records its keys hold.
    pub(super) fn has_room(&self, check: CheckTime, max_different: Option<usize>) -> bool {
        self.0.lock().time.has_room(check, max_different)
    }

    /// Returns the checks whose callers wait, and marks the call as written.
    pub(super) fn write(&self) -> Checks {
        let mut state = self.0.lock();
        state.is_written = true;
        let mut checks = mem::take(&mut state.checks);
        checks.waiting.retain(|check| !check.caller.is_closed());
        checks
    }

    /// Returns the checks, if the call was not written.
    pub(super) fn take(&self) -> Checks {
        mem::take(&mut self.0.lock().checks)
    }

    /// Returns how long the call waits for its reply after its callers have gone, before this is a failure of the server.
    pub(super) fn end_of_wait(&self) -> Instant {
        self.0.lock().end_of_wait.unwrap_or_else(|| Instant::now() + NO_DEADLINE)
    }

    /// Ends the call: none of its checks is in flight at the server any longer.
    pub(super) fn end(&self) {
        self.0.lock().permits.clear();
    }
}

impl PendingReply {
    /// Adds a check to a batch. Also returns whether the batch is full now. The first check of a batch gives it the right to report.
    pub(super) fn join(
        batch: &Arc<Batch>,
        call: &Arc<Call>,
        time: CheckTime,
        pass: &mut Pass,
    ) -> (Self, bool) {
        let (caller, reply) = oneshot::channel();
        let check = WaitingCheck { call: call.clone(), time, caller };
        let mut state = batch.0.lock();
        let report = pass.take_report();
        state.end_of_wait = state.end_of_wait.max(pass.deadline);
        state.time.add(time);
        let checks = &mut state.checks;
        checks.report = checks.report.take().or(report);
        checks.waiting.push(check);
        let is_full = checks.waiting.len() >= MAX_CHECKS;
        drop(state);
        (Self { batch: batch.clone(), reply }, is_full)
    }

    /// Waits for the reply. Returns `None` if the runtime has shut down before the call was written, and an error if it did so afterwards.
    /// Counts the check if it was written and gets no reply.
    pub(crate) async fn outcome(self, count: &AtomicU64, pass: &mut Pass) -> Option<RedisResult<Value>> {
        let mut unanswered = Unanswered { pending: self, count, pass, is_answered: false };
        let Ok(MergedReply { reply, report }) = (&mut unanswered.pending.reply).await else {
            let text = "the runtime of a merged call has shut down";
            return Some(Err(io::Error::new(io::ErrorKind::ConnectionAborted, text).into()));
        };
        unanswered.is_answered = reply.as_ref().is_none_or(is_reply);
        if let Some(report) = report {
            unanswered.pass.give_report(report);
        }
        reply
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        // Under the lock, a check is either removed from the call or counted.
        let mut state = self.pending.batch.0.lock();
        self.pending.reply.close();
        if self.pass.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            state.end_of_wait = self.pass.deadline;
        }
        if state.is_written {
            state.permits.extend(self.pass.permit.take());
            // The recorder is not asked under the lock.
            drop(state);
            unanswered(self.count);
        }
    }
}
