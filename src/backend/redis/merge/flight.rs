//! The task of a batch: closes it, sends its call, and gives each check its reply.

use std::{iter::zip, pin::pin, sync::Arc};

use futures_util::future::{Either, select};
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::{task::yield_now, time::Instant};

use super::{
    GroupKey, Groups,
    batch::{Batch, Caller, Checks, Outcome},
};
use crate::{
    backend::redis::{
        execute::Command,
        script::{Scripts, merged::Merged},
        topology::Connection,
    },
    outage::Answer,
};

/// A batch on its way. If it is dropped before it is written, its checks are given back.
pub(super) struct Flight {
    pub(super) batch: Arc<Batch>,
    pub(super) groups: Arc<Groups>,
    pub(super) key: GroupKey,
    pub(super) connection: Connection,
    pub(super) scripts: Arc<Scripts>,
}

impl Flight {
    /// Waits until the tasks that are ready have run, and sends the checks that have joined by then.
    pub(super) async fn run(self) {
        yield_now().await;
        self.groups.detach(&self.key, &self.batch);
        let mut checks = self.batch.write();
        let calls: Vec<_> = checks.calls.iter().collect();
        let replies = match calls[..] {
            [] => return,
            // The reply is the one that the check waits for.
            [_] => self.send_one(&mut checks).await,
            _ => {
                let merged = Merged::new(&calls);
                self.send_all(merged, &mut checks).await
            }
        };
        match replies {
            Some(replies) => deliver(checks, replies),
            // The call ends with its last caller.
            None => {
                if let Some(report) = checks.report.filter(|_| self.batch.has_timed_out()) {
                    report.time_out();
                }
            }
        }
    }

    async fn send_one(&self, checks: &mut Checks) -> Option<Vec<RedisResult<Value>>> {
        let Checks { calls, callers, .. } = checks;
        let command = Command::Script(&self.scripts.check, calls.first_mut()?);
        Some(vec![while_awaited(command.send(&self.connection, Instant::now()), callers).await?])
    }

    async fn send_all(&self, mut merged: Merged, checks: &mut Checks) -> Option<Vec<RedisResult<Value>>> {
        let command = Command::Script(&self.scripts.merged, merged.call());
        let reply =
            while_awaited(command.send(&self.connection, Instant::now()), &mut checks.callers).await?;
        let to_all = |error: RedisError| vec![Err(error); checks.calls.len()];
        Some(match reply.map(|reply| merged.replies(&reply)) {
            Ok(Some(replies)) => {
                // One outcome for the call. If no check was decided, the outcome of the first one is that of the call.
                if replies.has_decided
                    && let Some(report) = checks.report.take()
                {
                    report.answered(if replies.has_charged { Answer::Works } else { Answer::Reads });
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
}

/// Gives each check its reply, and the right to report, if it is left, to the first one whose caller waits.
fn deliver(checks: Checks, replies: Vec<RedisResult<Value>>) {
    let Checks { calls, callers, mut report } = checks;
    for ((call, caller), reply) in zip(calls, callers).zip(replies) {
        let outcome = Outcome { reply: Some(reply), call, report: report.take() };
        report = caller.send(outcome).err().and_then(|outcome| outcome.report);
    }
}

/// Runs a future as long as a caller waits. Returns `None` if all callers have gone.
async fn while_awaited<T>(future: impl Future<Output = T>, callers: &mut [Caller]) -> Option<T> {
    let all_gone = async {
        for caller in callers {
            caller.closed().await;
        }
    };
    match select(pin!(future), pin!(all_gone)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.groups.detach(&self.key, &self.batch);
        let Checks { calls, callers, mut report } = self.batch.take();
        for (call, caller) in zip(calls, callers) {
            let outcome = Outcome { reply: None, call, report: report.take() };
            report = caller.send(outcome).err().and_then(|outcome| outcome.report);
        }
    }
}
