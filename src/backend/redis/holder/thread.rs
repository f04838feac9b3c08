//! The thread that releases, renews and restores units, and what it shares. It has a runtime and connections of its own, so that no blocked
//! runtime of the service stops a renewal.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime, sync::Notify, time::Instant};

use super::pairs::{HeldPairs, HoldCall, HoldOutcome};
use crate::{
    backend::{BackendError, redis::script::hold::HeldList},
    guard::until,
    lock::Lock,
    now_or_later::BoxFuture,
    observe::{self, Throttle},
};

/// How long the thread sleeps if nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// For each pair of a call, what the store holds, or `None` if its changes were not made.
pub(crate) type HeldLists = Result<Vec<Option<HeldList>>, BackendError>;

/// Sends a call of a holder with this identity, over connections of the thread.
pub(crate) type SendCall = Box<dyn Fn(u64, HoldCall) -> BoxFuture<(HoldCall, HeldLists)> + Send>;

/// What the clones of a backend, its thread and its units share.
#[derive(Default)]
pub(super) struct HolderState {
    /// A random number. A process that forks needs a new backend.
    pub(super) id: u64,
    pub(super) pairs: Lock<HeldPairs>,
    /// Notified when a call may be due.
    pub(super) changed: Notify,
    /// Notified when a call has ended, and when releases may have been given up.
    pub(super) completed: Notify,
    pub(super) is_closed: AtomicBool,
    pub(super) has_thread: Lock<bool>,
    /// The number of units that the store did not hold.
    pub(super) interrupted: AtomicU64,
    pub(super) events: Throttle,
}

async fn run(state: &Arc<HolderState>, send: &SendCall) {
    loop {
        let (due, next, is_empty) = {
            let mut pairs = state.pairs.lock();
            (pairs.due(Instant::now()), pairs.next_due(), pairs.is_empty())
        };
        // A release that was given up has no call.
        state.completed.notify_waiters();
        for call in due {
            let (call, state) = (send(state.id, call), state.clone());
            tokio::spawn(async move {
                let (call, lists) = call.await;
                state.complete(call, lists);
            });
        }
        // A pair in a call is not removed.
        if is_empty && state.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let end = next.unwrap_or_else(|| Instant::now() + IDLE);
        let _: Option<()> = until(end, state.changed.notified()).await;
    }
}

impl HolderState {
    /// Starts the thread, unless it runs.
    pub(super) fn start(self: &Arc<Self>, sender: impl FnOnce() -> SendCall) -> io::Result<()> {
        let mut has_thread = self.has_thread.lock();
        if !*has_thread {
            let runtime = Arc::new(runtime::Builder::new_current_thread().enable_all().build()?);
            let (state, send, driven) = (self.clone(), sender(), runtime.clone());
            let run = move || driven.block_on(run(&state, &send));
            let started = thread::Builder::new().name("tsw-hold".to_owned()).spawn(run);
            // Without a thread, this one has the runtime, and must not wait until it ends.
            if let Some(runtime) = Arc::into_inner(runtime) {
                runtime.shutdown_background();
            }
            started?;
            *has_thread = true;
        }
        Ok(())
    }

    /// Learns the outcome of a call.
    fn complete(&self, call: HoldCall, lists: HeldLists) {
        let HoldOutcome { released, interrupted } = self.pairs.lock().complete(call, lists);
        for (namespace, pair) in released {
            namespace.released(&pair.key, &pair.policy);
        }
        if interrupted > 0 {
            let before = self.interrupted.fetch_add(interrupted, Ordering::Relaxed);
            observe::interrupted_units(interrupted, before + interrupted, &self.events);
        }
        self.completed.notify_waiters();
        self.changed.notify_one();
    }
}
