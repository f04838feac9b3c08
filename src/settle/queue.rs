//! The queue of settlements and of returned leases, and the workers that process it.

use std::{collections::VecDeque, future::poll_fn, pin::pin, sync::Arc, task::Poll};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    change::{Change, Changed, PANICKED, latest},
    settled::{Settled, Settlement},
    settling::{Begun, DEADLINE, GRACE, Settling},
};
use crate::{
    backend::{DynBackend, tokens::TokenStore},
    check::{Invalidation, Refund},
    error::{BackendError, Reason},
    foreign::contain,
    guard::until,
    lock::Lock,
    now_or_later::NowOrLater,
    observe::{Counted, LimiterEvents},
};

/// The largest number of waiting returns: as many as pairs can be leased.
const MAX_RETURNS: usize = 1 << 16;

/// The queue of settlements. It does not know the limiter, so it can outlive it until it is empty.
pub(crate) struct SettlementQueue {
    backend: Arc<dyn DynBackend>,
    /// The largest number of waiting settlements.
    bound: usize,
    /// The largest number of settlements in progress: as many as checks may be in flight. With fewer, a round trip of 20 ms
    /// would limit the rate of settlements, but not that of checks, and the rest would be lost.
    max_workers: usize,
    waiting: Lock<Waiting>,
    /// Notified whenever a worker ends.
    idle: Notify,
    /// `None` if the backend has no tokens.
    pub(super) tokens: Option<Arc<dyn TokenStore>>,
    pub(super) events: Arc<LimiterEvents>,
}

#[derive(Default)]
struct Waiting {
    settlements: VecDeque<Job>,
    /// The returns of leased units. Many leases end at one instant, and must not take the places of settlements.
    returns: VecDeque<Job>,
    /// The number of workers that run or are about to. While there are jobs, there is at least one.
    workers: usize,
    /// How often jobs were taken that are about to be counted as lost. A drain waits for them.
    losing: usize,
    /// The latest deadline of all jobs so far. After it, no job changes anything.
    last_deadline: Option<Instant>,
}

/// One settlement. If it is dropped before it is complete, it is lost.
struct Job {
    /// `None` while it is in progress.
    change: Option<Change>,
    /// After this instant, the change is not made.
    deadline: Instant,
    /// `None` once the result is known.
    pending: Option<Pending>,
    queue: Arc<SettlementQueue>,
}

/// What waits for the result of a job.
struct Pending {
    /// The invalidation of the deny cache. `None` without a refund.
    invalidation: Option<Invalidation>,
    /// The result of the part that needed no waiting.
    begun: Result<u64, BackendError>,
    confirmation: Confirmation,
}

/// What learns of the result of a job.
enum Confirmation {
    Settlement(oneshot::Sender<Settled>, Option<Begun>),
    /// The return of this many leased units.
    Returned(u32),
}

/// A worker.
struct Worker {
    queue: Arc<SettlementQueue>,
    /// Whether the worker ended because the queue was empty. Otherwise, its runtime has ended.
    has_retired: bool,
}

impl SettlementQueue {
    pub(crate) fn new(
        backend: Arc<dyn DynBackend>,
        tokens: Option<Arc<dyn TokenStore>>,
        bound: usize,
        max_workers: usize,
        events: Arc<LimiterEvents>,
    ) -> Arc<Self> {
        Arc::new(Self {
            backend,
            bound,
            max_workers,
            waiting: Lock::default(),
            idle: Notify::new(),
            tokens,
            events,
        })
    }

    /// Waits until no worker runs, at most until the last deadline has passed. The jobs that wait for a runtime that does not run are then
    /// lost.
    pub(crate) async fn drain(&self) {
        loop {
            let mut confirmation = pin!(self.idle.notified());
            // From here on, no notification is missed.
            confirmation.as_mut().enable();
            let end = {
                let waiting = self.waiting.lock();
                if waiting.workers + waiting.losing == 0 {
                    return;
                }
                // Jobs that are being lost are soon counted.
                waiting.last_deadline.filter(|_| waiting.losing == 0).map(|deadline| deadline + GRACE)
            };
            if until(end, confirmation).await.is_none() {
                let late = self.waiting.lock().take_late(Instant::now());
                self.lose(late);
                let (waiting, now) = (self.waiting.lock(), Instant::now());
                // A job may have come meanwhile, and another drain may lose the late ones.
                if waiting.losing == 0 && waiting.last_deadline.is_none_or(|last| last + GRACE <= now) {
                    return;
                }
            }
        }
    }

    /// Counts jobs as lost that were taken from the queue.
    fn lose(&self, jobs: Option<Vec<Job>>) {
        if let Some(jobs) = jobs {
            contain(|| drop(jobs));
            self.waiting.lock().losing -= 1;
            contain(|| self.idle.notify_waiters());
        }
    }

    /// Applies the changes that need no waiting, and queues the rest.
    pub(super) fn settle(self: &Arc<Self>, mut change: Change, settling: Option<&Settling>) -> Settlement {
        let mut invalidation = change.refund.as_ref().map(Self::invalidate);
        let begun = change.make_now(&*self.backend);
        if let Some(mut done) = invalidation.take_if(|_| change.refund.is_none())
            && begun.is_ok()
        {
            done.made();
        }
        if change.refund.is_none() && change.overage.is_none() {
            return Settlement::now(self.settled(begun));
        }
        let (confirmation, settled) = oneshot::channel();
        let confirmation = Confirmation::Settlement(confirmation, settling.map(Settling::begin));
        self.enqueue(change, Pending { invalidation, begun, confirmation });
        Settlement(NowOrLater::Later(settled))
    }

    /// Returns leased units to the place of their charge.
    pub(crate) fn return_units(self: &Arc<Self>, refund: Refund, units: u32) {
        let invalidation = Some(Self::invalidate(&refund));
        let (change, confirmation) =
            (Change { refund: Some(refund), overage: None }, Confirmation::Returned(units));
        self.enqueue(change, Pending { invalidation, begun: Ok(0), confirmation });
    }

    /// Invalidates the denials of pairs that receive a refund. If the store then makes no decision, they hold until the refund is made.
    fn invalidate(refund: &Refund) -> Invalidation {
        let pairs = refund.pairs().iter().map(|pair| (&pair.key, &pair.policy));
        Invalidation::begin(refund.scope(), pairs, false)
    }

    fn enqueue(self: &Arc<Self>, change: Change, pending: Pending) {
        let is_return = matches!(pending.confirmation, Confirmation::Returned(_));
        let (deadline, queue) = (Instant::now() + DEADLINE, self.clone());
        let mut job = Job { change: Some(change), deadline, pending: Some(pending), queue };
        let Ok(runtime) = Handle::try_current() else {
            return job.confirm(Changed::failed(failed("a settlement that waits needs a tokio runtime")));
        };
        let mut waiting = self.waiting.lock();
        let (jobs, bound) = if is_return {
            (&mut waiting.returns, MAX_RETURNS)
        } else {
            (&mut waiting.settlements, self.bound)
        };
        if jobs.len() >= bound {
            drop(waiting);
            return job.confirm(Changed::failed(BackendError::new(Reason::Full)));
        }
        jobs.push_back(job);
        waiting.last_deadline = waiting.last_deadline.max(Some(deadline));
        let worker = (waiting.workers < self.max_workers).then(|| {
            waiting.workers += 1;
            Worker { queue: self.clone(), has_retired: false }
        });
        // A runtime that is ending drops the task at once, and with it the worker, which takes the lock.
        drop(waiting);
        if let Some(worker) = worker {
            runtime.spawn(worker.work());
        }
    }

    /// Returns the result of a settlement, from the instant of its changes. Counts it. A recorder that panics loses no result.
    pub(super) fn settled(&self, outcome: Result<u64, BackendError>) -> Settled {
        match outcome {
            Ok(at_micros) => {
                contain(|| self.events.count(Counted::Settled, 1));
                Settled::Done { at_micros }
            }
            Err(error) => {
                contain(|| self.events.settlement_lost(&error));
                Settled::Lost(error)
            }
        }
    }
}

impl Waiting {
    /// Takes the jobs whose deadlines have passed, for [`SettlementQueue::lose`].
    fn take_late(&mut self, now: Instant) -> Option<Vec<Job>> {
        self.take_jobs(|job| job.deadline <= now)
    }

    /// Removes a worker whose runtime has ended. If it was the last one, takes all jobs that wait, for [`SettlementQueue::lose`].
    fn end_worker(&mut self) -> Option<Vec<Job>> {
        self.workers -= 1;
        if self.workers == 0 { self.take_jobs(|_| true) } else { None }
    }

    /// Takes the first jobs that are lost. Returns `None` if there are none.
    fn take_jobs(&mut self, is_lost: impl Fn(&Job) -> bool) -> Option<Vec<Job>> {
        let mut lost = Vec::new();
        for jobs in [&mut self.settlements, &mut self.returns] {
            let number = jobs.iter().take_while(|job| is_lost(job)).count();
            lost.extend(jobs.drain(..number));
        }
        if lost.is_empty() {
            return None;
        }
        self.losing += 1;
        Some(lost)
    }
}

impl Worker {
    /// Processes settlements until the queue is empty.
    async fn work(mut self) {
        while let Some(job) = self.next() {
            job.run().await;
        }
    }

    /// Takes the next settlement. If there is none, the worker retires under the same lock.
    fn next(&mut self) -> Option<Job> {
        let mut waiting = self.queue.waiting.lock();
        let job = waiting.settlements.pop_front().or_else(|| waiting.returns.pop_front());
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
            // The runtime has ended. Without a worker, the waiting settlements are lost, and counted.
            let left = self.queue.waiting.lock().end_worker();
            self.queue.lose(left);
        }
        contain(|| self.queue.idle.notify_waiters());
    }
}

impl Job {
    async fn run(mut self) {
        let Some(change) = self.change.take() else { return };
        let mut work = Box::pin(change.make(self.queue.backend.clone(), self.deadline));
        let changed = poll_fn(|cx| {
            let polled = contain(|| work.as_mut().poll(cx));
            // A panic must not lose the settlements behind it.
            polled.unwrap_or_else(|| Poll::Ready(Changed::failed(failed(PANICKED))))
        });
        let changed = changed.await;
        self.confirm(changed);
    }

    fn confirm(&mut self, changed: Changed) {
        if let Some(pending) = self.pending.take() {
            // A waker or a recorder that panics must not lose the settlements behind it.
            contain(|| pending.confirm(&self.queue, changed));
        }
    }
}

impl Pending {
    fn confirm(self, queue: &SettlementQueue, Changed { is_refunded, at }: Changed) {
        let Self { invalidation, begun, confirmation } = self;
        // The invalidation comes first: the caller may use the refunded units at once.
        if let Some(mut invalidation) = invalidation
            && is_refunded
        {
            invalidation.made();
        }
        let outcome = latest(begun, at);
        match confirmation {
            Confirmation::Settlement(confirmation, _begun) => {
                // The receiver may have been dropped.
                let _ = confirmation.send(queue.settled(outcome));
            }
            Confirmation::Returned(units) => {
                let outcome = outcome.map_or(Counted::UnitsLost, |_| Counted::UnitsReturned);
                queue.events.count(outcome, units.into());
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.pending.is_some() {
            self.confirm(Changed::failed(failed("the runtime ended before the settlement")));
        }
    }
}

fn failed(why: &'static str) -> BackendError {
    BackendError::with_source(Reason::Other, why)
}
