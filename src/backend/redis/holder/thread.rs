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
    backend::{BackendError, Reason, redis::script::hold::HeldList},
    foreign::contain,
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
pub(crate) type SendCall = Box<dyn Fn(u64, Arc<HoldCall>) -> BoxFuture<HeldLists> + Send>;

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

/// The work of the thread. If it is dropped, the next unit starts another thread.
struct HolderThread(Arc<HolderState>);

impl Drop for HolderThread {
    fn drop(&mut self) {
        *self.0.has_thread.lock() = false;
    }
}

async fn run(state: &Arc<HolderState>, send: &SendCall) {
    loop {
        // Before the pairs are read: once it is closed, no check acquires a unit.
        let is_closed = state.is_closed.load(Ordering::SeqCst);
        let (due, next, is_empty) = {
            let mut pairs = state.pairs.lock();
            (pairs.due(Instant::now()), pairs.next_due(), pairs.is_empty())
        };
        for call in due {
            let call = Arc::new(call);
            let (sent, state) = (tokio::spawn(send(state.id, call.clone())), state.clone());
            tokio::spawn(async move {
                // After a panic, its pairs are free for the next call.
                let panicked = |error| Err(BackendError::with_source(Reason::Other, error));
                let lists = sent.await.unwrap_or_else(panicked);
                state.complete(&call, lists);
            });
        }
        // A release that was given up has no call.
        contain(|| state.completed.notify_waiters());
        // A pair in a call is not removed.
        if is_empty && is_closed {
            return;
        }
        let end = next.unwrap_or_else(|| Instant::now() + IDLE);
        let _: Option<()> = until(end, state.changed.notified()).await;
    }
}

impl HolderState {
    /// Starts the thread, unless it runs.
    pub(super) fn start(self: &Arc<Self>, sender: impl FnOnce() -> SendCall) -> io::Result<()> {
        if *self.has_thread.lock() {
            return Ok(());
        }
        // A recorder learns of its connections, so no lock is held.
        let send = sender();
        let mut has_thread = self.has_thread.lock();
        if !*has_thread {
            let runtime = Arc::new(runtime::Builder::new_current_thread().enable_all().build()?);
            let (state, driven) = (self.clone(), runtime.clone());
            let run = move || {
                let thread = HolderThread(state);
                driven.block_on(run(&thread.0, &send));
            };
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
    fn complete(&self, call: &HoldCall, lists: HeldLists) {
        let HoldOutcome { released, interrupted } = self.pairs.lock().complete(call, &lists);
        contain(|| drop(lists));
        self.changed.notify_one();
        for (namespace, pair) in released {
            namespace.released(&pair.key, &pair.policy);
        }
        if interrupted > 0 {
            let before = self.interrupted.fetch_add(interrupted, Ordering::Relaxed);
            contain(|| observe::interrupted_units(interrupted, before + interrupted, &self.events));
        }
        self.completed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{self, Future},
        iter,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{
        backend::redis::keys::{KeyNames, Keys},
        check::{Check, Pair},
        foreign::hooked_waker::waker,
        key::PartitionKey,
        policy::Policy,
    };

    fn is_notified(notified: std::pin::Pin<&mut impl Future>) -> bool {
        notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Returns a sender whose calls have no reply.
    fn unanswered() -> SendCall {
        Box::new(|_, _| Box::pin(future::pending()))
    }

    /// Waits for a thread.
    fn wait_until(mut is_true: impl FnMut() -> bool) -> bool {
        (0..5_000).any(|_| {
            let is_true = is_true();
            if !is_true {
                thread::sleep(Duration::from_millis(1));
            }
            is_true
        })
    }

    /// Holds a unit for 30 s from now, and returns its keys and its number.
    fn hold_unit(state: &HolderState) -> (Arc<Keys>, u32) {
        let (policy, hold_time) = (Policy::in_flight("exports", 10).unwrap(), Duration::from_secs(30));
        let policy = policy.hold_time(hold_time).unwrap();
        let check = Check::new([Pair::new(PartitionKey::new("tenant", "acme"), policy, 1)]).unwrap();
        let pair = &check.pairs()[0];
        let keys =
            KeyNames::default().keys(check.namespace(), iter::once((&pair.key, &pair.policy)), Some(1));
        let (keys, mut pairs) = (Arc::new(keys), state.pairs.lock());
        let number = pairs.draw(&keys, 0, check.scope(), pair).unwrap().0.index;
        pairs.change(&keys, |pair| pair.confirm(number, 1, Instant::now(), hold_time));
        drop(pairs);
        (keys, number)
    }

    /// Returns the reply of a store that holds no unit of the pairs of a call.
    fn released(call: &HoldCall) -> Vec<Option<HeldList>> {
        call.pairs.iter().map(|_| Some(HeldList { units: 0, numbers: Vec::new() })).collect()
    }

    /// Otherwise, no unit would be renewed or released until the next one is acquired.
    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn panic_of_recorder_leaves_next_call() {
        use crate::foreign::{contain, hooked_recorder::HookedRecorder};

        let state = HolderState::default();
        hold_unit(&state);
        tokio::time::advance(Duration::from_secs(10)).await;
        let call = state.pairs.lock().due(Instant::now()).pop().unwrap();
        let mut completed = pin!(state.completed.notified());
        completed.as_mut().enable();

        let lost = Ok(vec![Some(HeldList { units: 0, numbers: Vec::new() })]);
        let recorder = HookedRecorder::new(|_| panic!("a recorder panics"));
        metrics::with_local_recorder(&recorder, || contain(|| state.complete(&call, lost)));

        assert_eq!(state.interrupted.load(Ordering::Relaxed), 1);
        assert!(is_notified(pin!(state.changed.notified())), "the thread restores the unit");
        assert!(is_notified(completed));
    }

    /// Otherwise, the pairs of the call would have no other one.
    #[test]
    fn call_that_panics_is_sent_again() {
        let (state, calls) = (Arc::new(HolderState::default()), Arc::new(AtomicU64::new(0)));
        let (keys, number) = hold_unit(&state);
        state.pairs.lock().change(&keys, |pair| pair.release(number, Instant::now()));
        let sent = calls.clone();
        let send = move |_, call: Arc<HoldCall>| -> BoxFuture<HeldLists> {
            let is_first = sent.fetch_add(1, Ordering::SeqCst) == 0;
            Box::pin(async move {
                assert!(!is_first, "the first call panics");
                Ok(released(&call))
            })
        };
        state.start(|| Box::new(send)).unwrap();
        assert!(wait_until(|| state.pairs.lock().is_empty()));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    /// Otherwise, a unit that is acquired just before the last limiter is dropped would be neither renewed nor released.
    #[test]
    fn thread_ends_after_last_unit_is_released() {
        let state = Arc::new(HolderState::default());
        let acquired = Arc::downgrade(&state);
        // It runs after the thread has seen no units.
        let acquire = waker(move || {
            let Some(state) = acquired.upgrade().filter(|state| !state.is_closed.load(Ordering::SeqCst))
            else {
                return;
            };
            let (keys, number) = hold_unit(&state);
            state.is_closed.store(true, Ordering::SeqCst);
            state.pairs.lock().change(&keys, |pair| pair.release(number, Instant::now()));
            state.changed.notify_one();
        });
        let mut completed = pin!(state.completed.notified());
        assert!(completed.as_mut().poll(&mut Context::from_waker(&acquire)).is_pending());
        let send =
            |_, call: Arc<HoldCall>| -> BoxFuture<HeldLists> { Box::pin(async move { Ok(released(&call)) }) };
        state.start(|| Box::new(send)).unwrap();
        assert!(wait_until(|| state.is_closed.load(Ordering::SeqCst) && !*state.has_thread.lock()));
        assert!(state.pairs.lock().is_empty());
    }

    /// A recorder that learns of the connections may acquire units.
    #[test]
    fn sender_may_start_thread() {
        let state = Arc::new(HolderState::default());
        let (first, second) = (state.clone(), state.clone());
        let start = move || {
            let sender = || {
                second.start(unanswered).unwrap();
                unanswered()
            };
            first.start(sender).unwrap();
        };
        let started = thread::spawn(start);
        assert!(wait_until(|| started.is_finished()), "it waits for itself");
        started.join().unwrap();
        assert!(*state.has_thread.lock());
        assert_eq!(Arc::strong_count(&state), 2, "one thread and this test");
    }

    #[test]
    fn thread_outlives_panic_of_waker_and_notes_its_end() {
        let state = Arc::new(HolderState::default());
        let woken = Arc::new(AtomicBool::new(false));
        let panics = {
            let woken = woken.clone();
            waker(move || {
                woken.store(true, Ordering::SeqCst);
                panic!("a waker panics");
            })
        };
        let mut drained = pin!(state.completed.notified());
        assert!(drained.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
        state.start(unanswered).unwrap();
        assert!(wait_until(|| woken.load(Ordering::SeqCst)));

        let mut next = pin!(state.completed.notified());
        next.as_mut().enable();
        state.changed.notify_one();
        assert!(wait_until(|| is_notified(next.as_mut())), "the thread has ended");
        assert!(*state.has_thread.lock());

        state.is_closed.store(true, Ordering::SeqCst);
        state.changed.notify_one();
        assert!(wait_until(|| !*state.has_thread.lock()));
    }
}
