//! How long a check waits, and what happens to a reply that comes late.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{RedisResult, Value};
use tokio::time::Instant;

use super::error::is_reply;
use crate::{
    backend::{BackendError, Reason},
    decision::Decision,
    guard::{Pass, until},
};

/// How long a check waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience<'a> {
    /// Until the caller drops it.
    Caller,
    /// Also after its deadline: a reply that comes late may contain a charge that must be rolled back. The flag is set while a
    /// command has no reply.
    Late(&'a AtomicBool),
}

/// The wait of a check.
#[derive(Clone, Copy)]
pub(super) struct CheckWait<'a> {
    pub(super) deadline: Option<Instant>,
    pub(super) patience: Patience<'a>,
}

impl CheckWait<'_> {
    /// Returns the deadline of a caller that waits until then. A check that begins later gets the answer of the server.
    pub(super) fn end(&self) -> Option<Instant> {
        let waits = matches!(self.patience, Patience::Caller);
        self.deadline.filter(|deadline| waits && Instant::now() < *deadline)
    }
}

/// A reply that a check has not waited for.
pub(super) struct Late {
    pub(super) reply: Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>,
    /// Whether a command was sent that has no reply yet.
    pub(super) is_pending: Arc<AtomicBool>,
}

/// Runs a step before anything is sent. A check that waits for late replies does not wait for such a step.
pub(super) async fn by_deadline<T>(
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

/// Waits for a reply that may come late. Then the guard hears of the deadline when it passes. The flag is set until the server has
/// replied.
pub(super) async fn with_patience(
    deadline: Option<Instant>,
    is_pending: &AtomicBool,
    reply: impl Future<Output = RedisResult<Value>>,
    pass: &mut Option<Pass>,
) -> RedisResult<Value> {
    is_pending.store(true, Ordering::Relaxed);
    let mut reply = pin!(reply);
    let reply = match until(deadline, &mut reply).await {
        Some(reply) => reply,
        None => {
            if let Some(pass) = pass {
                pass.time_out();
            }
            reply.await
        }
    };
    if is_reply(&reply) {
        is_pending.store(false, Ordering::Relaxed);
    }
    reply
}
