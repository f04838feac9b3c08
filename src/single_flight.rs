//! Single flight: one caller makes an attempt, the others wait for its outcome, and an attempt that is stuck is replaced.
//!
//! An attempt belongs to a future or to a runtime. If that is not driven, the attempt never ends. Therefore it has a time limit,
//! after which the next caller replaces it.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::broadcast,
    time::{Instant, timeout_at},
};

use crate::{foreign::contain, lock::Lock};

/// The time after its limit in which an attempt is not replaced yet. An attempt that is driven ends at its limit by itself, and a
/// busy machine wakes it with a delay.
const GRACE: Duration = Duration::from_millis(50);

/// Attempts of which one at a time is current. `T` is the outcome of an attempt.
#[derive(Debug)]
pub(crate) struct SingleFlight<T> {
    limit: Duration,
    attempts: Arc<Lock<Attempts<T>>>,
}

#[derive(Debug)]
struct Attempts<T> {
    /// The number of attempts so far. It identifies the last of them.
    count: u64,
    current: Option<Current<T>>,
}

#[derive(Debug)]
struct Current<T> {
    id: u64,
    /// The instant from which the attempt may be replaced.
    until: Instant,
    /// A `broadcast` wakes its waiters in the order in which they came. A `watch` does not, and a simulated network must repeat
    /// a run exactly. The waiters wake when the outcome is sent, and when this is dropped.
    outcome: broadcast::Sender<T>,
}

/// The right to make an attempt. Dropping it ends the attempt without an outcome.
#[derive(Debug)]
pub(crate) struct Attempt<T> {
    id: u64,
    attempts: Arc<Lock<Attempts<T>>>,
}

/// A caller that waits for an attempt. Wait or drop it without locks: if the attempt has replaced another one, this wakes the waiters of
/// that one, and a waker may run code of its own.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    until: Instant,
    outcome: broadcast::Receiver<T>,
    replaced: Option<Current<T>>,
}

impl<T: Clone> SingleFlight<T> {
    /// Returns a single flight whose attempts may be replaced after this limit.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, attempts: Arc::new(Lock::new(Attempts { count: 0, current: None })) }
    }

    /// Starts an attempt. Returns None if one is in progress within its limit. The caller may hold a lock only if no attempt has waiters.
    pub(crate) fn start(&self) -> Option<Attempt<T>> {
        self.join().0
    }

    /// Returns a waiter for the attempt in progress. None if there is none within its limit.
    pub(crate) fn current(&self) -> Option<Waiter<T>> {
        self.attempts.lock().current_at(Instant::now()).map(Current::waiter)
    }

    /// Starts an attempt, unless one is in progress within its limit. Returns the attempt if this call has started it, and a
    /// waiter for the attempt that is current now. The waiters of a replaced attempt wake without an outcome, when the returned one
    /// waits or is dropped.
    pub(crate) fn join(&self) -> (Option<Attempt<T>>, Waiter<T>) {
        let now = Instant::now();
        let mut attempts = self.attempts.lock();
        if let Some(current) = attempts.current_at(now) {
            return (None, current.waiter());
        }
        attempts.count += 1;
        let (id, until) = (attempts.count, now + self.limit + GRACE);
        let (outcome, receiver) = broadcast::channel(1);
        let replaced = attempts.current.replace(Current { id, until, outcome });
        let attempt = Attempt { id, attempts: self.attempts.clone() };
        (Some(attempt), Waiter { until, outcome: receiver, replaced })
    }
}

impl<T> Attempts<T> {
    fn current_at(&self, now: Instant) -> Option<&Current<T>> {
        self.current.as_ref().filter(|current| now < current.until)
    }
}

impl<T> Current<T> {
    fn waiter(&self) -> Waiter<T> {
        Waiter { until: self.until, outcome: self.outcome.subscribe(), replaced: None }
    }
}

impl<T> Attempt<T> {
    /// Returns whether the attempt is current. If not, another attempt has replaced it, and may have ended since.
    pub(crate) fn is_current(&self) -> bool {
        self.attempts.lock().current.as_ref().is_some_and(|current| current.id == self.id)
    }

    /// Ends the attempt, and sends its outcome to its waiters. Does nothing if the attempt has been replaced.
    pub(crate) fn finish(self, outcome: T) {
        if let Some(current) = self.end() {
            // Every waiter may have gone.
            let _ = current.outcome.send(outcome);
        }
    }

    fn end(&self) -> Option<Current<T>> {
        self.attempts.lock().current.take_if(|current| current.id == self.id)
    }
}

impl<T> Drop for Attempt<T> {
    fn drop(&mut self) {
        // After `finish` there is nothing to end.
        contain(|| drop(self.end()));
    }
}

impl<T: Clone> Waiter<T> {
    /// Waits for the outcome. Returns None if the attempt has ended without one, has been replaced, or has reached its limit.
    /// Then the caller joins again.
    pub(crate) async fn outcome(mut self) -> Option<T> {
        drop(self.replaced.take());
        timeout_at(self.until, self.outcome.recv()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        sync::atomic::{AtomicBool, Ordering},
        task::Context,
    };

    use tokio::{task::yield_now, time::advance};

    use super::*;
    use crate::foreign::hooked_waker::waker;

    const LIMIT: Duration = Duration::from_secs(1);

    fn flight() -> SingleFlight<u32> {
        SingleFlight::new(LIMIT)
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_get_the_outcome_of_one_attempt() {
        let flight = flight();
        let (attempt, first) = flight.join();
        let (none, second) = flight.join();
        assert!(none.is_none() && flight.start().is_none(), "an attempt is in progress");
        attempt.expect("the first caller makes the attempt").finish(7);
        assert_eq!((first.outcome().await, second.outcome().await), (Some(7), Some(7)));
        assert!(flight.start().is_some(), "the attempt has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_attempt_wakes_waiters_without_outcome() {
        let flight = flight();
        let (attempt, waiter) = flight.join();
        drop(attempt);
        let start = Instant::now();
        assert_eq!(waiter.outcome().await, None);
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(flight.start().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_beyond_its_limit_is_replaced() {
        let flight = flight();
        let (stuck, waiter) = flight.join();
        let stuck = stuck.expect("an attempt");
        advance(LIMIT).await;
        assert!(flight.start().is_none(), "an attempt that is driven ends at its limit");
        let start = Instant::now();
        assert_eq!(waiter.outcome().await, None);
        assert!(start.elapsed() <= GRACE + Duration::from_millis(1), "{:?}", start.elapsed());

        let (new, waiter) = flight.join();
        assert!(!stuck.is_current());
        // The late outcome reaches no waiter, and does not end the new attempt.
        stuck.finish(1);
        assert!(flight.start().is_none());
        new.expect("a new attempt").finish(2);
        assert_eq!(waiter.outcome().await, Some(2));
    }

    /// The caller that joins may hold a lock, and a waker may run a future that takes it.
    #[tokio::test(start_paused = true)]
    async fn waiters_of_replaced_attempt_wake_without_lock_of_caller() {
        let (flight, woken) = (flight(), Arc::new(AtomicBool::new(false)));
        let (_stuck, waiter) = flight.join();
        let flag = woken.clone();
        let waker = waker(move || flag.store(true, Ordering::SeqCst));
        let mut outcome = pin!(waiter.outcome());
        assert!(outcome.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        advance(LIMIT + GRACE).await;
        // Its own time limit has woken it.
        woken.store(false, Ordering::SeqCst);
        let (_attempt, new) = flight.join();
        assert!(!woken.load(Ordering::SeqCst));
        drop(new);
        assert!(woken.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_wake_in_the_order_of_their_arrival() {
        let flight = flight();
        let order = Arc::new(Lock::new(Vec::new()));
        let (mut attempt, _) = flight.join();
        for waiter in 0..20 {
            let ((_, wait), order) = (flight.join(), order.clone());
            tokio::spawn(async move {
                wait.outcome().await;
                order.lock().push(waiter);
            });
            yield_now().await;
        }
        attempt.take().expect("an attempt").finish(0);
        yield_now().await;
        assert_eq!(*order.lock(), Vec::from_iter(0..20));
    }
}
