//! The thread that releases, renews and restores units. It has a runtime and connections of its own, so that no blocked runtime of the
//! service stops a renewal.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::{
    runtime,
    time::{Instant, sleep_until, timeout_at},
};

use super::{HolderState, pairs::HoldCall};
use crate::backend::{
    BackendError, Reason,
    redis::{
        RedisBackend,
        command::Command,
        script::{
            Call,
            hold::{self, HeldNumber},
        },
    },
};

/// How long the thread sleeps if nothing is due.
const IDLE: Duration = Duration::from_secs(60);

type Lists = Result<Vec<Option<Vec<HeldNumber>>>, BackendError>;

/// Starts the thread. The backend has connections of its own.
pub(super) fn spawn(state: Arc<HolderState>, backend: RedisBackend) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || runtime.block_on(run(&state, &backend));
    thread::Builder::new().name("tsw-hold".to_owned()).spawn(run).map(drop)
}

async fn run(state: &HolderState, backend: &RedisBackend) {
    let mut calls = FuturesUnordered::new();
    loop {
        let due = state.pairs.lock().due(Instant::now());
        calls.extend(due.into_iter().map(|call| send(state.id, backend, call)));
        let (next, is_empty) = {
            let pairs = state.pairs.lock();
            (pairs.next_due(), pairs.is_empty())
        };
        if is_empty && calls.is_empty() && state.is_closed.load(Ordering::SeqCst) {
            return;
        }
        tokio::select! {
            Some((call, lists)) = calls.next() => {
                let outcome = state.pairs.lock().complete(call, lists);
                for (namespace, key, policy) in outcome.released {
                    namespace.released(&key, &policy);
                }
                if outcome.interrupted > 0 {
                    state.interrupted(outcome.interrupted);
                }
                state.completed.notify_waiters();
            }
            () = state.changed.notified() => {}
            () = sleep_until(next.unwrap_or_else(|| Instant::now() + IDLE)) => {}
        }
    }
}

async fn send(holder: u64, backend: &RedisBackend, call: HoldCall) -> (HoldCall, Lists) {
    let pairs = call.pairs.iter().map(|(_, keys, changes)| (keys, changes));
    let mut script = Call::hold(holder, pairs, backend.injected_micros());
    let end = call.sent + call.timeout;
    let command = Command::Script(&backend.scripts.hold, &mut script);
    let sent = backend.change_in_slot(call.slot, command, backend.on_server(Some(end)));
    let reply = timeout_at(end, sent).await.unwrap_or_else(|_| Err(BackendError::new(Reason::Timeout)));
    let lists = reply.and_then(|reply| hold::lists(&reply, call.pairs.len()));
    (call, lists)
}
