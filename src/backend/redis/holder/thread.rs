//! The thread that releases, renews and restores units, and what it shares. It has a runtime and connections of its own, so that no blocked
//! runtime of the service stops a renewal.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::{runtime, sync::Notify, time::Instant};

use super::pairs::{HeldPairs, HoldCall};
use crate::{
    backend::{BackendError, redis::script::hold::HeldList},
    guard::until,
    lock::Lock,
    observe::{self, Throttle},
};

/// How long the thread sleeps if nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// For each pair of a call, what the store holds, or `None` if its changes were not made.
pub(crate) type HeldLists = Result<Vec<Option<HeldList>>, BackendError>;

/// Sends a call of a holder with this identity, over connections of the thread.
pub(crate) type SendCall =
    Box<dyn Fn(u64, HoldCall) -> Pin<Box<dyn Future<Output = (HoldCall, HeldLists)>>> + Send>;

/// What the clones of a backend, its thread and its units share.
pub(super) struct HolderState {
    /// A random number. A process that forks needs a new backend.
    pub(super) id: u64,
    pub(super) pairs: Lock<HeldPairs>,
    /// Notified when a call may be due.
    pub(super) changed: Notify,
    /// Notified when a call has ended.
    pub(super) completed: Notify,
    pub(super) is_closed: AtomicBool,
    pub(super) has_thread: Lock<bool>,
    /// The number of units that the store did not hold.
    pub(super) interrupted: AtomicU64,
    pub(super) events: Throttle,
}

/// Starts the thread.
pub(super) fn spawn(state: Arc<HolderState>, send: SendCall) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || runtime.block_on(run(&state, &send));
    thread::Builder::new().name("tsw-hold".to_owned()).spawn(run).map(drop)
}

async fn run(state: &HolderState, send: &SendCall) {
    let mut calls = FuturesUnordered::new();
    loop {
        let (due, next, is_empty) = {
            let mut pairs = state.pairs.lock();
            (pairs.due(Instant::now()), pairs.next_due(), pairs.is_empty())
        };
        calls.extend(due.into_iter().map(|call| send(state.id, call)));
        if is_empty && calls.is_empty() && state.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let completed = {
            let mut changed = pin!(state.changed.notified());
            let end = next.unwrap_or_else(|| Instant::now() + IDLE);
            let woken = poll_fn(|cx| match calls.poll_next_unpin(cx) {
                Poll::Ready(Some(completed)) => Poll::Ready(Some(completed)),
                _ => changed.as_mut().poll(cx).map(|()| None),
            });
            until(end, woken).await.flatten()
        };
        let Some((call, numbers)) = completed else { continue };
        let outcome = state.pairs.lock().complete(call, numbers);
        for (namespace, key, policy) in outcome.released {
            namespace.released(&key, &policy);
        }
        if outcome.interrupted > 0 {
            let before = state.interrupted.fetch_add(outcome.interrupted, Ordering::Relaxed);
            observe::interrupted_units(outcome.interrupted, before + outcome.interrupted, &state.events);
        }
        state.completed.notify_waiters();
    }
}
