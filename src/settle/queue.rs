//! Settlements that wait for a backend, and who works them off.

use std::{
    collections::VecDeque,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
};

use super::{Settled, Settlement};
use crate::{
    backend::{BackendError, Reason, memory::MemoryBackend},
    check::Refund,
    deny_cache::{Denials, Invalidation},
    engine::{Change, Engine},
    observe::{self, Warnings},
};

/// How many settlements are under way at once.
const WORKERS: usize = 8;

/// Settlements that wait. It knows nothing of the limiter, so that it can outlive it until it is empty.
pub(crate) struct Queue {
    engine: Arc<dyn Engine>,
    deadline: Duration,
    /// What does not hold any more when units go back.
    denials: Option<Arc<Denials>>,
    /// How many may wait.
    bound: usize,
    waiting: Mutex<Waiting>,
    /// Told whenever a worker ends.
    idle: Notify,
    lost: AtomicU64,
    warnings: Arc<Warnings>,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Those that run, or are about to. While there are jobs there is one.
    workers: usize,
}

/// One settlement. Dropped before it is done, wherever that happens, it is lost.
struct Job {
    /// None when it is under way.
    change: Option<Change>,
    /// What is not known any more when it is done. None where nothing goes back.
    invalidate: Option<Invalidation>,
    /// What became of the part that could be done at once.
    begun: Result<(), BackendError>,
    /// None when the outcome is told.
    told: Option<oneshot::Sender<Settled>>,
    queue: Arc<Queue>,
}

/// A place among the workers.
struct Worker {
    queue: Arc<Queue>,
    /// Whether the place was given back, for nothing waited. If it is not, the task has ended before its time.
    has_retired: bool,
}

impl Queue {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        deadline: Duration,
        bound: usize,
        denials: Option<Arc<Denials>>,
        warnings: Arc<Warnings>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            deadline,
            denials,
            bound,
            waiting: Mutex::default(),
            idle: Notify::new(),
            lost: AtomicU64::new(0),
            warnings,
        })
    }

    pub(super) fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until nobody works.
    pub(crate) async fn drain(&self) {
        loop {
            let mut told = pin!(self.idle.notified());
            // From here on nothing is missed.
            told.as_mut().enable();
            if self.waiting().workers == 0 {
                return;
            }
            told.await;
        }
    }

    /// Does what the backend can do at once, and has the rest done.
    pub(super) fn settle(self: &Arc<Self>, mut change: Change) -> Settlement {
        let invalidate = self.invalidate(change.refund.as_ref());
        let outcome = self.engine.change_now(&mut change);
        let invalidate = invalidate.filter(|_| change.refund.is_some());
        if change.refund.is_none() && change.overage.is_none() {
            return Settlement::now(self.settled(outcome));
        }
        let (told, settled) = oneshot::channel();
        let (change, told, queue) = (Some(change), Some(told), self.clone());
        self.enqueue(Job { change, invalidate, begun: outcome, told, queue });
        Settlement::waiting(settled)
    }

    /// Does in the memory of this process what was charged there.
    pub(super) fn settle_at_once(&self, memory: &MemoryBackend, mut change: Change) -> Settlement {
        Settlement::now(self.settled(memory.change_now(&mut change)))
    }

    /// Forgets the denials of pairs that get units back, now and when that is done.
    fn invalidate(&self, refund: Option<&Refund>) -> Option<Invalidation> {
        let denials = self.denials.as_ref()?;
        Some(denials.invalidate(refund?.pairs().iter().map(|pair| (&pair.key, &pair.policy))))
    }

    fn enqueue(self: &Arc<Self>, job: Job) {
        let Ok(runtime) = Handle::try_current() else {
            return job.end(Err(failed("a settlement that waits needs tokio")));
        };
        let mut waiting = self.waiting();
        if waiting.jobs.len() >= self.bound {
            drop(waiting);
            return job.end(Err(BackendError::new(Reason::Full)));
        }
        waiting.jobs.push_back(job);
        let worker = (waiting.workers < WORKERS).then(|| {
            waiting.workers += 1;
            Worker { queue: self.clone(), has_retired: false }
        });
        // A runtime that is ending drops the task at once, and so the worker, who needs the lock.
        drop(waiting);
        if let Some(worker) = worker {
            runtime.spawn(worker.work());
        }
    }

    fn settled(&self, outcome: Result<(), BackendError>) -> Settled {
        match outcome {
            Ok(()) => Settled::Done,
            Err(error) => {
                self.lose(&error);
                Settled::Lost(error)
            }
        }
    }

    fn lose(&self, error: &BackendError) {
        let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        // More and more rarely: an outage must not fill the log.
        if lost.is_power_of_two() {
            observe::settlements_lost(lost, error);
        }
    }

    // Nothing that holds the lock can panic half-way.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// One settlement after the other, until none waits.
    async fn work(mut self) {
        while let Some(job) = self.next() {
            job.run().await;
        }
    }

    /// The next one. If there is none, the place is given back before anybody could count on it.
    fn next(&mut self) -> Option<Job> {
        let mut waiting = self.queue.waiting();
        let job = waiting.jobs.pop_front();
        if job.is_none() {
            waiting.workers -= 1;
            self.has_retired = true;
        }
        job
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.has_retired {
            let mut waiting = self.queue.waiting();
            waiting.workers -= 1;
            // The runtime has ended. What nobody is left to do is lost now, and not forgotten.
            let left = if waiting.workers == 0 { std::mem::take(&mut waiting.jobs) } else { VecDeque::new() };
            drop(waiting);
            drop(left);
        }
        self.queue.idle.notify_waiters();
    }
}

impl Job {
    async fn run(mut self) {
        let Some(change) = self.change.take() else { return };
        let mut work = self.queue.engine.clone().change(change, self.queue.deadline);
        let outcome = poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
            // Those that wait behind it must not be lost with it.
            polled.unwrap_or_else(|_| Poll::Ready(Err(failed("the backend has panicked"))))
        });
        let outcome = outcome.await;
        self.end(outcome);
    }

    fn end(mut self, outcome: Result<(), BackendError>) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Result<(), BackendError>) {
        if let Some(told) = self.told.take() {
            // Whoever hears of it may use what has gone back.
            self.invalidate = None;
            let begun = std::mem::replace(&mut self.begun, Ok(()));
            // Perhaps nobody waits to hear it.
            let _ = told.send(self.queue.settled(begun.and(outcome)));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.told.is_some() {
            self.tell(Err(failed("the runtime has ended before the settlement")));
        }
    }
}

fn failed(why: &'static str) -> BackendError {
    BackendError::with_source(Reason::Other, why)
}
