//! The task of a batch: closes it, sends its call, and gives each check its reply.

use std::{
    iter::repeat_with,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::{Either, select};
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};

use super::{
    batch::{Batch, Caller, Checks, MergedReply, PendingReply, WaitingCheck},
    groups::{BatchGroups, GroupKey, Merger},
};
use crate::{
    backend::redis::{
        command::Command,
        error::is_reply,
        script::{
            Call, Scripts,
            merged::{Merged, server_time::CheckTime},
        },
        topology::Connection,
    },
    foreign::contain,
    guard::{CallReport, Pass, ServerAnswer, until},
};

/// How long a call without callers waits for its reply after its deadline. Until then, its checks count as in flight, unless the server
/// is silent.
const LATE_REPLY: Duration = Duration::from_secs(1);

/// The most calls of a connection that a thread gives to the task that writes them before this task runs. Thus the thread reads the first
/// replies while the server decides the other checks.
const MAX_UNWRITTEN: usize = 2;

/// How often a call lets the tasks that are ready run before it is sent nevertheless, because the others may be those of a blocked runtime.
const MAX_YIELDS: usize = 8;

/// A batch on its way. If it is dropped before it is written, its checks are given back.
struct Flight {
    batch: Arc<Batch>,
    groups: Arc<BatchGroups>,
    key: GroupKey,
    connection: Connection,
    scripts: Arc<Scripts>,
    opened: Instant,
    /// Whether the call waits until few others are unwritten.
    takes_turns: bool,
}

impl Merger {
    /// Joins the open batch of a group, or opens one. A check that may not share its call has a batch of its own. `in_flight` is the number
    /// of checks in flight.
    pub(crate) fn join(
        &self,
        key: GroupKey,
        call: &Arc<Call>,
        pass: &mut Pass,
        connection: &Connection,
        scripts: &Arc<Scripts>,
        in_flight: usize,
    ) -> PendingReply {
        let (groups, time) = (&self.groups, CheckTime::from_call(call));
        let max_different = self.max_different(&key, in_flight);
        let mut open = groups.open.lock();
        let joined = open.get(&key).filter(|batch| batch.has_room(time, max_different));
        let (batch, is_new) = match joined {
            Some(batch) => (batch.clone(), false),
            None => {
                let batch = Arc::<Batch>::default();
                if key.may_share {
                    open.insert(key.clone(), batch.clone());
                }
                (batch, true)
            }
        };
        let (pending, is_full) = PendingReply::join(&batch, call, time, pass);
        if is_full {
            open.remove(&key);
        }
        drop(open);
        if is_new {
            let (connection, scripts, groups) = (connection.clone(), scripts.clone(), groups.clone());
            let opened = Instant::now();
            let takes_turns = max_different.is_some();
            let flight = Flight { batch, groups, key, connection, scripts, opened, takes_turns };
            tokio::spawn(flight.run());
        }
        pending
    }
}

impl Flight {
    /// Waits until the tasks that are ready have run, and sends the checks that have joined by then.
    async fn run(self) {
        yield_now().await;
        let unwritten = Unwritten::begin(&self.connection.server().unwritten, self.takes_turns).await;
        self.groups.detach(&self.key, &self.batch);
        let mut checks = self.batch.write();
        if let Some(report) = &checks.report {
            report.has_waited(self.opened.elapsed());
        }
        let replies = match &mut checks.waiting[..] {
            [] => return,
            // The reply is the one that the check waits for.
            [WaitingCheck { call, caller, .. }] => {
                self.send_one(call, caller, &mut checks.report, unwritten).await
            }
            _ => self.send_all(&mut checks, unwritten).await,
        };
        self.batch.end();
        if let Some(replies) = replies {
            deliver(checks, replies.into_iter().map(Some));
        }
    }

    /// Sends the only check, as a call of the check script.
    async fn send_one(
        &self,
        call: &mut Arc<Call>,
        caller: &mut Caller,
        report: &mut Option<CallReport>,
        unwritten: Unwritten<'_>,
    ) -> Option<Vec<RedisResult<Value>>> {
        let command = Command::Script(&self.scripts.check, call);
        Some(vec![self.send(command, unwritten, pin!(caller.closed()), report).await?])
    }

    /// Sends all checks, as one call of the merged script.
    async fn send_all(
        &self,
        checks: &mut Checks,
        unwritten: Unwritten<'_>,
    ) -> Option<Vec<RedisResult<Value>>> {
        let mut merged = Merged::new(
            &checks.waiting.iter().map(|check| (&*check.call, check.time.identity())).collect::<Vec<_>>(),
        );
        let all_gone = async {
            for check in &mut checks.waiting {
                check.caller.closed().await;
            }
        };
        let command = Command::Script(&self.scripts.merged, &mut merged.call);
        let reply = self.send(command, unwritten, pin!(all_gone), &mut checks.report).await?;
        let to_all = |error: RedisError| vec![Err(error); checks.waiting.len()];
        Some(match reply.map(|reply| merged.replies(&reply)) {
            Ok(Some(replies)) => {
                // One outcome for the call. If no check was decided, the outcome of the first one is that of the call.
                if replies.has_decided
                    && let Some(report) = checks.report.take()
                {
                    contain(|| report.answered(ServerAnswer::from_write(replies.has_charged)));
                }
                // The server may have become a replica, which rejects only the checks that write.
                for error in replies.of_checks.iter().filter_map(|reply| reply.as_ref().err()) {
                    self.connection.disconnect_after(error);
                }
                replies.of_checks
            }
            Ok(None) => to_all((ErrorKind::UnexpectedReturnType, "invalid reply to merged checks").into()),
            Err(error) => to_all(error),
        })
    }

    /// Sends a command, and waits for the reply until all callers have gone. Returns `None` if they have.
    async fn send(
        &self,
        command: Command<'_>,
        unwritten: Unwritten<'_>,
        all_gone: Pin<&mut impl Future<Output = ()>>,
        report: &mut Option<CallReport>,
    ) -> Option<RedisResult<Value>> {
        // Each future is pinned once: an argument would be copied into the future of each function that it is given to.
        let sent = pin!(command.send(&self.connection, Instant::now()));
        let mut reply = pin!(unwritten.until_written(sent));
        if let Either::Left((reply, _)) = select(reply.as_mut(), all_gone).await {
            return Some(reply);
        }
        let report = report.take()?;
        // Whether the server is silent does not depend on how long the callers have waited.
        let end = self.batch.end_of_wait();
        if let Some(reply) = Box::pin(until(end, &mut reply)).await {
            if is_reply(&reply) {
                report.answered(ServerAnswer::Reads);
            }
            return None;
        }
        let (guard, has_failed) = report.time_out(end);
        if has_failed {
            // The places in flight are for checks that show whether the server is silent still.
            self.batch.end();
        }
        if Box::pin(timeout(LATE_REPLY, reply)).await.is_ok_and(|reply| is_reply(&reply)) {
            guard.answered_late();
        }
        None
    }
}

/// A call in the number of those that may not be written yet.
struct Unwritten<'a>(&'a AtomicUsize);

impl<'a> Unwritten<'a> {
    /// Counts a call. Before, if it takes turns, lets other tasks run until few calls are unwritten.
    async fn begin(calls: &'a AtomicUsize, takes_turns: bool) -> Self {
        let mut yields = 0;
        while takes_turns && calls.load(Ordering::Relaxed) >= MAX_UNWRITTEN && yields < MAX_YIELDS {
            yield_now().await;
            yields += 1;
        }
        calls.fetch_add(1, Ordering::Relaxed);
        Self(calls)
    }

    /// Waits for the reply to this call. It is written once the tasks that were ready have run.
    async fn until_written<T>(self, reply: Pin<&mut impl Future<Output = T>>) -> T {
        match select(reply, pin!(yield_now())).await {
            Either::Left((reply, _)) => reply,
            Either::Right(((), reply)) => {
                drop(self);
                reply.await
            }
        }
    }
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives each check its reply, and the right to report, if it is left, to the first one whose caller waits. A waker that panics does not
/// keep the replies from the others.
fn deliver(checks: Checks, replies: impl IntoIterator<Item = Option<RedisResult<Value>>>) {
    let Checks { waiting, mut report } = checks;
    for (WaitingCheck { caller, .. }, reply) in waiting.into_iter().zip(replies) {
        let merged = MergedReply { reply, report: report.take() };
        report = contain(|| caller.send(merged).err()).flatten().and_then(|merged| merged.report);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.groups.detach(&self.key, &self.batch);
        deliver(self.batch.take(), repeat_with(|| None));
    }
}
