//! The queues of requests that wait: one queue for each set of pairs, in the order of arrival.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::rejection::Rejection;
use crate::{
    check::{Check, Pair, ReleaseSignal},
    foreign::contain,
    guard::until,
    key::PartitionKey,
    lock::Lock,
    policy::{Algorithm, Policy},
};

/// All queues of a limiter. An empty queue is removed.
pub(super) struct Waiters {
    max: usize,
    max_per_key: usize,
    queues: Lock<Queues>,
}

#[derive(Default)]
struct Queues {
    by_key: HashMap<QueueKey, WaitQueue>,
    /// The entries of the queues of each key, whatever their quotas are.
    of_key: HashMap<CountedKey, usize>,
    /// The entries that wait. The others are first in their queue and ask.
    waiting: usize,
    /// The number of the next ticket.
    next: u64,
}

/// What the requests of a queue have in common: all pairs, and so when a cost fits. Requests with a headroom or the quota of an earlier
/// table do not hold up those that may have room.
type QueueKey = Arc<[(PartitionKey, Box<str>, u32, u32, Option<Duration>, Algorithm)]>;

/// What the queues of a key have in common: the partition key of every pair, the name of its policy and the units of its headroom. A
/// tier may be the client's choice, and a headroom is not: batch requests take no places of interactive ones.
type CountedKey = Arc<[(PartitionKey, Box<str>, u32)]>;

struct WaitQueue {
    /// Ordered by ticket. The first one asks the store or sleeps until it asks again. All others wait for their turn.
    entries: VecDeque<QueuedRequest>,
    /// The units of all entries, for each pair.
    units: Box<[u64]>,
    /// When the first entry asks again, unless a release wakes it before. `None` while it asks.
    asks_at: Option<(Instant, Arc<ReleaseSignal>)>,
    /// No entry that waits for its turn gives up before. `None` if no entry gives up.
    earliest_end: Option<Instant>,
}

struct QueuedRequest {
    ticket: u64,
    /// The cost and the policy of each pair.
    costs: Box<[(u32, Policy)]>,
    /// When this entry gives up, or `None` if it waits without a bound.
    end: Option<Instant>,
    /// Whether this entry waits or has waited.
    waits: bool,
    /// Whether it was the first of its queue, and the queues of its key were full.
    is_beyond_bound: bool,
    /// `None` if it is the turn of this entry.
    wake: Option<oneshot::Sender<Wakeup>>,
}

/// What ends the wait of an entry behind others.
enum Wakeup {
    /// It is its turn to ask the store.
    Turn,
    /// Its turn comes after its end. The duration is a lower bound of the wait.
    TooLong(Duration),
}

/// A key in a queue. Dropping it leaves the queue, and gives the turn to the next entry.
pub(super) struct QueueTicket {
    waiters: Arc<Waiters>,
    key: QueueKey,
    counted: CountedKey,
    number: u64,
    woken: Option<oneshot::Receiver<Wakeup>>,
}

impl Waiters {
    pub(super) fn new(max: usize, max_per_key: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_key, queues: Lock::default() })
    }

    /// Returns how many requests are in all queues.
    pub(super) fn count(&self) -> usize {
        self.queues.lock().entries()
    }

    /// Joins the queue of the pairs of this check at its end. If the queue is empty, it is the turn of the request, which does not
    /// wait yet.
    ///
    /// # Errors
    ///
    /// Returns a rejection if the request would wait and a bound on waiting requests is reached, or if the turn cannot come
    /// before `end`.
    pub(super) fn join(
        self: &Arc<Self>,
        check: &Check,
        end: Option<Instant>,
    ) -> Result<QueueTicket, Rejection> {
        // No request waits for a shadow pair.
        let pairs = || check.pairs().iter().filter(|pair| !pair.is_shadow);
        let in_common = |Pair { key, policy, .. }: &Pair| {
            let [quota, reserve] = [policy.quota_units(), policy.reserve()];
            (key.clone(), policy.name().into(), quota, reserve, policy.window(), policy.algorithm())
        };
        let key: QueueKey = pairs().map(in_common).collect();
        let of_key = |Pair { key, policy, .. }: &Pair| (key.clone(), policy.name().into(), policy.reserve());
        let counted: CountedKey = pairs().map(of_key).collect();
        let costs: Box<[_]> = pairs().map(|pair| (pair.cost, pair.policy.clone())).collect();
        let mut queues = self.queues.lock();
        let (mut wake, mut woken) = (None, None);
        let is_full = queues.of_key.get(&counted).is_some_and(|entries| *entries >= self.max_per_key);
        if let Some(queue) = queues.by_key.get(&key) {
            if is_full {
                return Err(Rejection::TooManyWaiting { max: self.max_per_key, is_per_key: true });
            }
            if queues.waiting >= self.max {
                return Err(Rejection::TooManyWaiting { max: self.max, is_per_key: false });
            }
            let now = Instant::now();
            let units = queue.units.iter().zip(&costs).map(|(units, (cost, _))| units + u64::from(*cost));
            queue
                .admits_before(end, now, units, &costs)
                .map_err(|at_least| Rejection::WaitTooLong { at_least })?;
            let channel = oneshot::channel();
            (wake, woken) = (Some(channel.0), Some(channel.1));
        }
        let number = queues.next;
        queues.next += 1;
        *queues.of_key.entry(counted.clone()).or_default() += 1;
        let waits = wake.is_some();
        queues.waiting += usize::from(waits);
        let queue = queues.by_key.entry(key.clone()).or_insert_with(|| WaitQueue {
            entries: VecDeque::new(),
            units: vec![0; costs.len()].into(),
            asks_at: None,
            earliest_end: None,
        });
        queue.earliest_end = earlier(queue.earliest_end, end);
        add(&mut queue.units, &costs);
        queue.entries.push_back(QueuedRequest {
            ticket: number,
            costs,
            end,
            waits,
            is_beyond_bound: is_full,
            wake,
        });
        drop(queues);
        Ok(QueueTicket { waiters: self.clone(), key, counted, number, woken })
    }
}

impl Queues {
    /// Returns the number of entries of all queues.
    fn entries(&self) -> usize {
        self.of_key.values().sum()
    }

    /// Counts entries that have left a queue of this key.
    fn left(&mut self, counted: &CountedKey, entries: usize) {
        if let Some(of_key) = self.of_key.get_mut(counted) {
            *of_key -= entries;
            if *of_key == 0 {
                self.of_key.remove(counted);
            }
        }
    }
}

impl WaitQueue {
    /// Returns an error with a lower bound of the wait, if an entry cannot be admitted before `end`. `units` are those that the
    /// queue needs for each pair until the entry is admitted, its own included.
    fn admits_before(
        &self,
        end: Option<Instant>,
        now: Instant,
        units: impl IntoIterator<Item = u64>,
        costs: &[(u32, Policy)],
    ) -> Result<(), Duration> {
        let Some(end) = end else { return Ok(()) };
        // The entries ahead are admitted from this instant on.
        let sleeps = self.asks_at.as_ref().filter(|(_, signal)| !signal.is_released());
        let from = sleeps.map_or(Duration::ZERO, |(at, _)| at.saturating_duration_since(now));
        let waits = units.into_iter().zip(costs).map(|(units, (_, policy))| least_wait(units, policy));
        let least = from.saturating_add(waits.max().unwrap_or_default());
        if now.checked_add(least).is_some_and(|at| at <= end) { Ok(()) } else { Err(least) }
    }
}

/// Returns a lower bound of the time in which a policy admits this many units, the last ones included.
fn least_wait(units: u64, policy: &Policy) -> Duration {
    let quotas = units.div_ceil(policy.quota_units().into());
    let windows = quotas.saturating_sub(policy.properties().quotas_in_window);
    Duration::from_micros(policy.window_micros().saturating_mul(windows))
}

/// Returns the earlier of two ends. `None` is no end.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

fn add(units: &mut [u64], costs: &[(u32, Policy)]) {
    for (units, (cost, _)) in units.iter_mut().zip(costs) {
        *units += u64::from(*cost);
    }
}

fn subtract(units: &mut [u64], costs: &[(u32, Policy)]) {
    for (units, (cost, _)) in units.iter_mut().zip(costs) {
        *units -= u64::from(*cost);
    }
}

impl QueueTicket {
    /// Waits until it is the turn of this entry, at most until `end`.
    pub(super) async fn turn(&mut self, end: Option<Instant>) -> Result<(), Rejection> {
        let Some(woken) = self.woken.take() else { return Ok(()) };
        match until(end, woken).await {
            Some(Ok(Wakeup::Turn)) => Ok(()),
            Some(Ok(Wakeup::TooLong(at_least))) => Err(Rejection::WaitTooLong { at_least }),
            // The sender is dropped only with this ticket.
            Some(Err(_)) | None => Err(Rejection::WaitTooLong { at_least: self.least_wait() }),
        }
    }

    /// Returns whether others of the queue were ahead of this entry when it joined, and it has not waited for its turn yet.
    pub(super) fn is_behind_others(&self) -> bool {
        self.woken.is_some()
    }

    /// States that the first entry, which this must be, asks the store now.
    pub(super) fn asks(&self) {
        if let Some(queue) = self.waiters.queues.lock().by_key.get_mut(&self.key) {
            queue.asks_at = None;
        }
    }

    /// States that the first entry, which this must be, sleeps until it asks again, or until a release. Entries behind it give up if they
    /// cannot be admitted before their end. Returns whether it may sleep: not if it has not waited yet and too many requests wait.
    pub(super) fn sleeps_until(&self, at: Instant, signal: &Arc<ReleaseSignal>) -> bool {
        let mut too_long = Vec::new();
        let mut guard = self.waiters.queues.lock();
        let queues = &mut *guard;
        let Some(queue) = queues.by_key.get_mut(&self.key) else { return false };
        if let Some(first) = queue.entries.front_mut().filter(|first| !first.waits) {
            let of_key = queues.of_key.get(&self.counted).copied().unwrap_or_default();
            let is_full = first.is_beyond_bound && of_key > self.waiters.max_per_key;
            if queues.waiting >= self.waiters.max || is_full {
                return false;
            }
            first.waits = true;
            queues.waiting += 1;
        }
        queue.asks_at = Some((at, signal.clone()));
        let now = Instant::now();
        // Usually, all are admitted before the first of them gives up. Then the length of the queue makes no difference.
        let costs = queue.entries.front().map_or(&[][..], |first| &first.costs);
        if queue.admits_before(queue.earliest_end, now, queue.units.iter().copied(), costs).is_ok() {
            return true;
        }
        let mut units = vec![0; queue.units.len()];
        let mut entries = std::mem::take(&mut queue.entries);
        let mut earliest_end = None;
        entries.retain_mut(|entry| {
            add(&mut units, &entry.costs);
            if entry.wake.is_some()
                && let Err(at_least) =
                    queue.admits_before(entry.end, now, units.iter().copied(), &entry.costs)
            {
                subtract(&mut units, &entry.costs);
                subtract(&mut queue.units, &entry.costs);
                too_long.extend(entry.wake.take().map(|wake| (wake, at_least)));
                return false;
            }
            if entry.wake.is_some() {
                earliest_end = earlier(earliest_end, entry.end);
            }
            true
        });
        (queue.entries, queue.earliest_end) = (entries, earliest_end);
        queues.left(&self.counted, too_long.len());
        queues.waiting -= too_long.len();
        drop(guard);
        // A waker may run code of its own, so the lock is free.
        for (wake, at_least) in too_long {
            // If the request has left meanwhile, the message is lost.
            contain(|| wake.send(Wakeup::TooLong(at_least)));
        }
        true
    }

    /// Returns a lower bound of the remaining wait.
    fn least_wait(&self) -> Duration {
        let queues = self.waiters.queues.lock();
        let Some(queue) = queues.by_key.get(&self.key) else { return Duration::ZERO };
        let mut units = vec![0; queue.units.len()];
        let now = Instant::now();
        for entry in &queue.entries {
            add(&mut units, &entry.costs);
            if entry.ticket == self.number {
                return queue.admits_before(Some(now), now, units, &entry.costs).err().unwrap_or_default();
            }
        }
        Duration::ZERO
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut guard = self.waiters.queues.lock();
        let queues = &mut *guard;
        let Some(queue) = queues.by_key.get_mut(&self.key) else { return };
        // The queue has removed the entry if its turn would come after its end.
        let Ok(i) = queue.entries.binary_search_by_key(&self.number, |entry| entry.ticket) else { return };
        let removed = queue.entries.remove(i);
        removed.iter().for_each(|entry| subtract(&mut queue.units, &entry.costs));
        let mut next = None;
        match queue.entries.front_mut() {
            None => drop(queues.by_key.remove(&self.key)),
            Some(first) if i == 0 => {
                next = first.wake.take();
                queue.asks_at = None;
            }
            Some(_) => {}
        }
        if let Some(entry) = removed {
            queues.left(&self.counted, 1);
            queues.waiting -= usize::from(entry.waits);
        }
        drop(guard);
        if let Some(next) = next {
            // If the next request leaves meanwhile, its ticket gives the turn to the one behind it.
            contain(|| next.send(Wakeup::Turn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn check(user: &str, cost: u32) -> Check {
        let policy = Policy::new("ten", 10, SECOND).unwrap();
        Check::new([Pair::new(PartitionKey::new("user", user), policy, cost)]).unwrap()
    }

    fn in_seconds(seconds: u32) -> Option<Instant> {
        Some(Instant::now() + seconds * SECOND)
    }

    #[test]
    fn empty_queue_is_removed() {
        let waiters = Waiters::new(10, 10);
        let tickets: Vec<_> =
            ["a", "b", "a", "c"].map(|user| waiters.join(&check(user, 1), None).ok().unwrap()).into();
        let counts = || {
            let queues = waiters.queues.lock();
            (queues.entries(), queues.waiting, queues.by_key.len())
        };
        assert_eq!(counts(), (4, 1, 3));
        assert!(tickets[1].sleeps_until(Instant::now(), &Arc::default()));
        assert_eq!(counts(), (4, 2, 3));
        drop(tickets);
        assert_eq!(counts(), (0, 0, 0));
    }

    #[test]
    fn units_ahead_bound_wait_from_below() {
        let policy = |algorithm| Policy::new("ten", 10, SECOND).unwrap().with_algorithm(algorithm).unwrap();
        let buckets = Algorithm::SlidingBuckets { precision: SECOND / 10 };
        for (algorithm, windows) in [
            (Algorithm::SlidingLog, [0, 0, 0, 1, 1, 2]),
            (buckets, [0, 0, 0, 1, 1, 2]),
            (Algorithm::SlidingCounter, [0, 0, 0, 0, 0, 1]),
            (Algorithm::FixedWindow, [0, 0, 0, 0, 0, 1]),
            (Algorithm::TokenBucket { rate: crate::policy::Rate::per_second(10) }, [0, 0, 0, 0, 0, 1]),
        ] {
            let waits = [0, 1, 10, 11, 20, 21].map(|units| least_wait(units, &policy(algorithm)));
            assert_eq!(waits, windows.map(|windows| windows * SECOND), "{algorithm:?}");
        }
        // A gate counts no units.
        assert_eq!(least_wait(u64::MAX, &Policy::gate("api").unwrap()), Duration::ZERO);
        // It does not overflow.
        let longest = Policy::new("p", 1, 366 * 24 * 3600 * SECOND).unwrap();
        assert!(least_wait(u64::MAX, &longest) > least_wait(1 << 40, &longest) / 2);
    }

    #[test]
    fn request_that_would_wait_needs_room_in_both_bounds() {
        let waiters = Waiters::new(3, 2);
        let join = |user| match waiters.join(&check(user, 1), None) {
            Ok(ticket) => Ok(ticket),
            Err(Rejection::TooManyWaiting { max, is_per_key }) => Err((max, is_per_key)),
            Err(rejection) => panic!("{rejection:?}"),
        };
        let first = join("a").unwrap();
        let second = join("a").unwrap();
        assert_eq!(join("a").err(), Some((2, true)));
        let asks = join("b").unwrap();
        assert!(first.sleeps_until(Instant::now(), &Arc::default()));
        let third = join("b").unwrap();
        // Three wait: both of `a`, and the second of `b`.
        let new = join("c").expect("the queue of c is empty");
        assert_eq!(join("c").err(), Some((3, false)));
        assert!(!new.sleeps_until(Instant::now(), &Arc::default()), "no room to wait");
        assert!(!asks.sleeps_until(Instant::now(), &Arc::default()), "no room to wait");
        drop(asks);
        assert!(third.sleeps_until(Instant::now(), &Arc::default()), "it waits already");
        assert_eq!(join("c").err(), Some((3, false)));
        drop(second);
        assert!(new.sleeps_until(Instant::now(), &Arc::default()));
    }

    #[test]
    fn queues_of_one_key_share_its_bound() {
        let waiters = Waiters::new(10, 2);
        let join = |policy: &Policy| {
            let pair = Pair::new(PartitionKey::new("user", "a"), policy.clone(), 1);
            waiters.join(&Check::new([pair]).unwrap(), None).map_err(|rejection| match rejection {
                Rejection::TooManyWaiting { max, is_per_key: true } => max,
                _ => panic!("{rejection:?}"),
            })
        };
        let [ten, five] = [10, 5].map(|quota| Policy::new("p", quota, SECOND).unwrap());
        let first = join(&ten).unwrap();
        let second = join(&ten).unwrap();
        let other = join(&five).expect("it asks first");
        assert_eq!(join(&five).err(), Some(2));
        assert!(!other.sleeps_until(Instant::now(), &Arc::default()), "it came after the two");
        assert!(first.sleeps_until(Instant::now(), &Arc::default()));
        // A client cannot choose a headroom, so its requests have places of their own.
        let half = ten.headroom_percent(50).unwrap();
        let of_headroom = [join(&half).unwrap(), join(&half).unwrap()];
        assert!(of_headroom[0].sleeps_until(Instant::now(), &Arc::default()));
        drop((first, second));
        assert!(other.sleeps_until(Instant::now(), &Arc::default()));
        drop((other, of_headroom));
        assert_eq!((waiters.count(), waiters.queues.lock().of_key.len()), (0, 0));
    }

    /// Entries that leave together are counted where they joined.
    #[tokio::test(start_paused = true)]
    async fn ended_waits_give_their_places_back() {
        let waiters = Waiters::new(10, 10);
        let join = |policy: &Policy, end| {
            let pair = Pair::new(PartitionKey::new("user", "a"), policy.clone(), 1);
            waiters.join(&Check::new([pair]).unwrap(), end).ok().unwrap()
        };
        let five = Policy::new("p", 5, SECOND).unwrap();
        // The same quota, of which a headroom keeps the rest.
        let half = Policy::new("p", 10, SECOND).unwrap().headroom_percent(50).unwrap();
        let [head, of_half] = [&five, &half].map(|policy| join(policy, None));
        let late = [&half, &five, &half, &five].map(|policy| join(policy, in_seconds(3)));
        for first in [&head, &of_half] {
            assert!(first.sleeps_until(Instant::now() + 5 * SECOND, &Arc::default()));
        }
        assert_eq!((waiters.count(), waiters.queues.lock().waiting), (2, 2));
        drop((head, of_half, late));
        assert_eq!((waiters.count(), waiters.queues.lock().waiting), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn sleeping_head_ends_hopeless_waits() {
        let waiters = Waiters::new(10, 10);
        let head = waiters.join(&check("a", 4), None).ok().unwrap();
        let ends = [(3, in_seconds(5)), (3, in_seconds(2)), (3, in_seconds(5)), (1, None)];
        let mut tickets: Vec<_> =
            ends.map(|(cost, end)| waiters.join(&check("a", cost), end).ok().unwrap()).into();
        assert!(head.sleeps_until(Instant::now() + 5 * SECOND, &Arc::default()));
        assert_eq!(
            (waiters.count(), waiters.queues.lock().waiting),
            (4, 4),
            "the third entry still fits in the quota at 5 s"
        );
        let outcome = tickets[1].turn(in_seconds(2)).await;
        let Err(Rejection::WaitTooLong { at_least }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(at_least, 5 * SECOND);
        // With its own, 15 units are needed, so it needs a second window.
        let outcome = waiters.join(&check("a", 4), in_seconds(5)).err();
        let Some(Rejection::WaitTooLong { at_least }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(at_least, 6 * SECOND);
        assert!(waiters.join(&check("a", 4), in_seconds(6)).is_ok());
        assert!(waiters.join(&check("b", 4), in_seconds(0)).is_ok(), "another key has another queue");
    }

    /// The waits of a queue are compared with the earliest end, and one by one only if that is too early.
    #[tokio::test(start_paused = true)]
    async fn every_sleep_of_head_ends_hopeless_waits() {
        let waiters = Waiters::new(10, 10);
        let mut tickets: Vec<_> = [(10, 1), (10, 9), (10, 3), (10, 4)]
            .map(|(cost, end)| waiters.join(&check("a", cost), in_seconds(end)).ok().unwrap())
            .into();
        let left_after = |head: &QueueTicket, seconds: u32| {
            assert!(head.sleeps_until(Instant::now() + seconds * SECOND, &Arc::default()));
            waiters.count()
        };
        assert_eq!(left_after(&tickets[0], 1), 4, "the last one is admitted after 4 s");
        assert_eq!(
            left_after(&tickets[0], 2),
            3,
            "the third one would be admitted after 4 s, and now the last one is"
        );
        assert!(matches!(tickets[2].turn(None).await, Err(Rejection::WaitTooLong { .. })));
        drop(tickets.remove(0));
        assert_eq!(left_after(&tickets[0], 8), 1);
    }
}
