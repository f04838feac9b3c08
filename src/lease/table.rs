//! The leases of a limiter.

use std::{
    borrow::Cow,
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    LocalMicros,
    clock::LocalClock,
    leased_pair::{Asked, Grant, LeaseAnswer, LeasedPair},
    return_timers::{ReturnTimers, TimedPair},
};
use crate::{
    check::{Check, MAX_PAIRS, Namespace, Pair, Purpose, Refund, RefundPair},
    decision::{Decision, Statuses},
    foreign::contain,
    guard::until,
    key::PartitionKey,
    lock::Lock,
    observe::{Counted, LimiterEvents},
    policy::Policy,
    settle::SettlementQueue,
};

/// The number of locks. All pairs of a partition key have the same one, so a check takes one lock.
const SHARDS: usize = 64;
/// The largest number of pairs in a shard. Further pairs are not leased.
const MAX_PAIRS_OF_SHARD: usize = 1_024;
/// A pair that was not used for this time makes room for another one. A full shard is searched at most this often.
const KEEP_IDLE: LocalMicros = 1_000_000;
/// A pair that was not used for two of its buckets leaves, at least and at most after these times. Before, its rate states how many units it
/// leases.
const FORGET_IDLE: [LocalMicros; 2] = [10_000_000, 60_000_000];
/// The idle pairs of one more shard are removed at most this often: those of all shards once in a second.
const SWEEP: LocalMicros = 1 << 14;

/// A number for each pair of a check.
pub(super) type OfPairs<T> = SmallVec<[T; MAX_PAIRS]>;

/// The units to lease in a request.
pub(super) struct Request {
    /// The units for each pair. Zero for a pair whose lease is large enough.
    pub(super) units: OfPairs<u32>,
    /// Identifies it among the requests of its shard.
    number: u64,
}

/// What to do with a check that the leases cannot grant.
pub(super) enum Step {
    /// Ask the store.
    Ask,
    /// Ask the store for a lease.
    Request(Request),
    /// Wait for the end of a lease request.
    Wait(watch::Receiver<bool>),
}

/// The leases of all limiters of this process.
static ALL: Lock<Vec<Weak<Leases>>> = Lock::new(Vec::new());

/// The leases of a limiter.
pub(crate) struct Leases {
    pub(super) clock: LocalClock,
    shards: Box<[Lock<Shard>]>,
    pub(super) timers: ReturnTimers,
    /// The runtime of the last task that returns units.
    pub(super) runtime: Lock<Option<Handle>>,
    namespace: Namespace,
    queue: Arc<SettlementQueue>,
    pub(super) events: Arc<LimiterEvents>,
    /// The permits of the checks that wait for lease requests.
    pub(super) waits: Semaphore,
    /// When the idle pairs of one more shard were removed.
    swept_at: AtomicU64,
    /// How many times this was done.
    swept: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Shard {
    entries: HashTable<LeasedPair>,
    /// The number of lease requests so far.
    requests: u64,
    searched: LocalMicros,
}

/// Ends the leases of the pairs of a check, those of all limiters of this process with its store and namespace. It ends them when it is
/// created and again when it is dropped, because a lease in between may have been charged before the change that it guards.
pub(crate) struct RevokeGuard(Check);

impl Leases {
    /// Creates the leases of a limiter. At most `max_waiting` checks wait for lease requests at once.
    pub(crate) fn new(
        namespace: Namespace,
        queue: Arc<SettlementQueue>,
        events: Arc<LimiterEvents>,
        max_waiting: usize,
    ) -> Arc<Self> {
        let leases = Arc::new(Self::on_clock(LocalClock::new(), namespace, queue, events, max_waiting));
        let mut all = ALL.lock();
        // Limiters are few and are rarely created, so a full scan is cheap.
        all.retain(|leases| leases.strong_count() > 0);
        all.push(Arc::downgrade(&leases));
        leases
    }

    pub(super) fn on_clock(
        clock: LocalClock,
        namespace: Namespace,
        queue: Arc<SettlementQueue>,
        events: Arc<LimiterEvents>,
        max_waiting: usize,
    ) -> Self {
        let shards = (0..SHARDS).map(|_| Lock::default()).collect();
        let waits = Semaphore::new(max_waiting.min(Semaphore::MAX_PERMITS));
        let timers = ReturnTimers::default();
        let (swept_at, swept) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self {
            clock,
            shards,
            timers,
            runtime: Lock::default(),
            namespace,
            queue,
            events,
            waits,
            swept_at,
            swept,
        }
    }

    /// Admits a check from leases, if every pair has leased units for it. Returns also whether to ask for units of the next bucket.
    pub(super) fn grant(&self, check: &Check) -> Option<(Decision, bool)> {
        let key = key_of(check)?;
        let now = self.clock.now();
        let granted = if let [pair] = check.pairs() {
            let (leftovers, granted) = self.shard(&key).grant_one(&key, pair, now);
            self.return_units(leftovers);
            let Grant { status, receipt, at_micros, asks_ahead } = granted?;
            let receipts = if check.purpose() == Purpose::Reserve { [receipt].into() } else { [].into() };
            (Decision::from_lease(at_micros, Statuses::from_iter([status]), receipts), asks_ahead)
        } else {
            let mut leftovers = OfPairs::new();
            let granted = self.shard(&key).grant(&key, check, now, &mut leftovers);
            self.return_units(leftovers);
            granted?
        };
        let units = check.pairs().iter().map(|pair| u64::from(pair.cost)).sum();
        self.events.count(Counted::UnitsGranted, units);
        Some(granted)
    }

    /// Begins requests for units of the next bucket, one for each pair of a check that needs them.
    pub(super) fn begin_ahead(&self, check: &Check) -> Vec<(Check, Request)> {
        let Some(key) = key_of(check) else { return Vec::new() };
        let now = self.clock.now();
        let mut replaced = OfPairs::new();
        let mut shard = self.shard(&key);
        let begin = |pair: &Pair| {
            let number = shard.next_number();
            let entry = shard.find(&key, &pair.policy)?;
            let units = entry.wanted_ahead(&pair.policy, now)?;
            replaced.extend(entry.begin_request(number, now));
            let request = Request { units: OfPairs::from_iter([units]), number };
            let pair = Pair::new(pair.key.clone(), pair.policy.clone(), units);
            Some((check.with_pairs([pair].into()).with_purpose(Purpose::LeaseAhead), request))
        };
        let begun = check.pairs().iter().filter_map(begin).collect();
        drop(shard);
        wake(replaced);
        begun
    }

    /// Begins a lease request for a check that the store is about to be asked, if one is due and none is in flight. No check waits for a
    /// request that began a deadline ago: its runtime does not run.
    pub(super) fn next_step(&self, check: &Check, deadline: Duration) -> Step {
        let Some(key) = key_of(check) else { return Step::Ask };
        let now = self.clock.now();
        self.sweep(now);
        let earliest = now.saturating_sub(deadline.as_micros() as LocalMicros);
        let mut replaced = OfPairs::new();
        let mut shard = self.shard(&key);
        let mut in_flight =
            check.pairs().iter().filter_map(|pair| shard.find(&key, &pair.policy)?.request_since(earliest));
        if let Some(request) = in_flight.next() {
            return Step::Wait(request);
        }
        let begun = shard.begin_request(&key, check, now, &mut replaced);
        drop(shard);
        wake(replaced);
        begun.map_or(Step::Ask, Step::Request)
    }

    /// Learns the decision of the store. If the check was a lease request, sent at this instant, begins the leases. Then returns
    /// the units that are held for each pair.
    pub(super) fn learn(
        self: &Arc<Self>,
        check: &Check,
        decision: &Decision,
        request: Option<(&Request, LocalMicros)>,
    ) -> OfPairs<u32> {
        // A cached denial is no statement of the store.
        let key = key_of(check).filter(|_| !decision.is_cached());
        let Some(key) = key else { return Default::default() };
        let (received, is_admitted) = (self.clock.now(), decision.is_admitted());
        let is_ahead = check.purpose() == Purpose::LeaseAhead;
        let leases: OfPairs<u32> = match check.pairs() {
            pairs if is_ahead => pairs.iter().map(|pair| pair.cost).collect(),
            _ => decision.leases().iter().copied().collect(),
        };
        let (mut leftovers, mut held, mut timers) = (OfPairs::new(), OfPairs::new(), OfPairs::new());
        let mut ended = OfPairs::new();
        let mut shard = self.shard(&key);
        for (i, (pair, status)) in check.pairs().iter().zip(decision.statuses()).enumerate() {
            let lease = leases.get(i).zip(decision.receipts().get(i)).filter(|_| is_admitted);
            let Some(entry) = shard.find(&key, &pair.policy) else {
                // Another request has replaced this one, and then another pair has taken its place.
                if let Some((&units, &receipt)) = lease.filter(|(units, _)| **units > 0) {
                    let (key, policy) = (pair.key.clone(), pair.policy.clone());
                    leftovers.push(RefundPair { key, policy, receipt, units });
                }
                continue;
            };
            let Some((request, sent)) = request else {
                entry.learn(status, is_admitted, received);
                continue;
            };
            let asked = entry.end_request(request.number);
            match lease {
                Some((&units, &receipt)) => {
                    let key = &pair.key;
                    let answer =
                        LeaseAnswer { key, decision, status, receipt, units, is_ahead, sent, received };
                    leftovers.extend(entry.answer(&answer, asked.as_ref()));
                    if let Some(asked) = asked.as_ref().filter(|_| entry.late > 0) {
                        // Its end wakes those who wait. Until then, nothing does, because the lock is held.
                        asked.ended.send_if_modified(|is_late| {
                            *is_late = true;
                            false
                        });
                    }
                    held.push(entry.units());
                    let at = entry.schedule();
                    timers.extend(at.map(|at| (at, (entry.key.clone(), pair.policy.clone()))));
                }
                _ => entry.learn(status, false, received),
            }
            ended.extend(asked);
        }
        drop(shard);
        // Code of users comes last, when the units are granted, queued and scheduled.
        self.schedule(timers);
        self.return_units(leftovers);
        wake(ended);
        if is_admitted {
            self.events.count(Counted::UnitsCharged, leases.into_iter().map(u64::from).sum());
        }
        held
    }

    /// Learns what remains, from a decision of the store for a check that takes and uses no leases.
    pub(super) fn read(&self, check: &Check, decision: &Decision) {
        if decision.is_cached() {
            return;
        }
        // A shadow pair may have a status that states nothing.
        for (pair, status) in decision.statuses_of(check).filter(|(pair, _)| !pair.is_shadow) {
            let key = pair.key.bounded();
            if let Some(entry) = self.shard(&key).find(&key, &pair.policy) {
                entry.read(status);
            }
        }
    }

    /// Ends a lease request without leases. If it was sent, nothing is leased for a while.
    pub(super) fn end_request(&self, check: &Check, request: &Request, is_sent: bool) {
        let Some(key) = key_of(check) else { return };
        let now = self.clock.now();
        let mut ended = OfPairs::new();
        let mut shard = self.shard(&key);
        for pair in check.pairs() {
            let Some(entry) = shard.find(&key, &pair.policy) else { continue };
            let asked = entry.end_request(request.number);
            if is_sent && asked.is_some() {
                entry.pause(now);
            }
            ended.extend(asked);
        }
        drop(shard);
        wake(ended);
    }

    /// Ends all leases. Waits for the lease requests in flight, at most this long, so that their units are queued.
    pub(crate) async fn drain(&self, at_most: Duration) {
        let (mut leftovers, mut requests) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            for entry in &mut shard.lock().entries {
                requests.extend(entry.request_since(0));
                leftovers.extend(entry.end());
            }
        }
        self.return_units(leftovers);
        // Outside a runtime, a lease request runs only while its caller polls it.
        if Handle::try_current().is_err() {
            return;
        }
        let end = Instant::now() + at_most;
        for mut request in requests {
            // An error means that the request has ended.
            let _ = until(end, request.changed()).await;
        }
    }

    /// Returns the units of a lease whose bucket has ended, or that is idle, and notes when to look at the pair again.
    pub(super) fn expire(&self, pair: TimedPair, now: LocalMicros) {
        let (key, policy) = &pair;
        let found = self.shard(key).find(key, policy).map(|entry| entry.expire(now));
        let Some((leftovers, at)) = found else { return };
        if let Some(at) = at {
            self.timers.add(at, pair);
        }
        self.return_units(leftovers);
    }

    /// Removes the idle pairs of the next shard, from time to time. Otherwise, those of a flood of keys would stay.
    fn sweep(&self, now: LocalMicros) {
        let last = self.swept_at.load(Ordering::Relaxed);
        if now < last + SWEEP {
            return;
        }
        if self.swept_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let next = self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let [least, most] = FORGET_IDLE;
            let keep = |entry: &LeasedPair| entry.two_buckets().clamp(least, most);
            self.shards[next].lock().remove_idle(now, keep);
        }
    }

    fn return_units(&self, leftovers: impl IntoIterator<Item = RefundPair>) {
        let mut leftovers = leftovers.into_iter().peekable();
        if leftovers.peek().is_none() {
            return;
        }
        // Outside a runtime, that of the task which returns units returns these, too.
        let is_outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let runtime = if is_outside { self.runtime.lock().clone() } else { None };
        let _entered = runtime.as_ref().map(Handle::enter);
        for pair in leftovers {
            let units = pair.units;
            self.queue.return_units(Refund::from_pairs(self.namespace.clone(), [pair]), units);
        }
    }

    /// Returns the number of pairs, and of those for which there is memory.
    #[cfg(test)]
    pub(super) fn pairs(&self) -> [usize; 2] {
        let sizes = self.shards.iter().map(|shard| {
            let entries = &shard.lock().entries;
            [entries.len(), entries.capacity()]
        });
        sizes.fold([0, 0], |[pairs, room], [more, more_room]| [pairs + more, room + more_room])
    }

    fn shard(&self, key: &PartitionKey) -> MutexGuard<'_, Shard> {
        // The table uses the upper seven bits of the hash and the lower ones.
        self.shards[(key.hash_code() >> 32) as usize % SHARDS].lock()
    }
}

impl Shard {
    /// Returns the entry of a pair.
    fn find(&mut self, key: &PartitionKey, policy: &Policy) -> Option<&mut LeasedPair> {
        self.entries.find_mut(key.hash_code(), |entry| entry.is_of(key, policy))
    }

    /// Grants units of one pair, if it has leased units for them. Returns the units of leases that have ended, and the grant.
    #[inline]
    fn grant_one(
        &mut self,
        key: &PartitionKey,
        pair: &Pair,
        now: LocalMicros,
    ) -> (Vec<RefundPair>, Option<Grant>) {
        match self.find(key, &pair.policy) {
            Some(entry) => (entry.begin_use(&pair.policy, now), entry.grant(pair, now)),
            None => {
                self.insert(key, &pair.policy, now);
                (Vec::new(), None)
            }
        }
    }

    /// Admits a check if every pair has leased units for it. Otherwise, grants nothing.
    fn grant(
        &mut self,
        key: &PartitionKey,
        check: &Check,
        now: LocalMicros,
        leftovers: &mut OfPairs<RefundPair>,
    ) -> Option<(Decision, bool)> {
        let mut has_room = true;
        for Pair { policy, cost, .. } in check.pairs() {
            let Some(entry) = self.find(key, policy) else {
                self.insert(key, policy, now);
                has_room = false;
                continue;
            };
            leftovers.extend(entry.begin_use(policy, now));
            has_room &= entry.has_room(*cost, now);
        }
        if !has_room {
            return None;
        }
        let (mut statuses, mut receipts, mut at_micros, mut asks_ahead) =
            (Statuses::new(), Vec::new(), 0, false);
        for pair in check.pairs() {
            let granted = self.find(key, &pair.policy)?.grant(pair, now)?;
            statuses.push(granted.status);
            receipts.push(granted.receipt);
            at_micros = at_micros.max(granted.at_micros);
            asks_ahead |= granted.asks_ahead;
        }
        if check.purpose() != Purpose::Reserve {
            receipts.clear();
        }
        Some((Decision::from_lease(at_micros, statuses, receipts.into()), asks_ahead))
    }

    /// Begins a lease request, if every pair would have leased units after it.
    fn begin_request(
        &mut self,
        key: &PartitionKey,
        check: &Check,
        now: LocalMicros,
        replaced: &mut OfPairs<Asked>,
    ) -> Option<Request> {
        let mut wanted = OfPairs::new();
        for Pair { policy, .. } in check.pairs() {
            wanted.push(self.find(key, policy)?.wanted(policy, now)?);
        }
        if wanted.iter().all(|units| *units == 0) {
            return None;
        }
        let number = self.next_number();
        for Pair { policy, .. } in check.pairs() {
            replaced.extend(self.find(key, policy)?.begin_request(number, now));
        }
        Some(Request { units: wanted, number })
    }

    fn next_number(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Removes the pairs that are idle for the time that `keep` returns, and frees memory if most of it is unused.
    fn remove_idle(&mut self, now: LocalMicros, keep: impl Fn(&LeasedPair) -> LocalMicros) {
        self.entries.retain(|entry| !entry.is_idle_since(now.saturating_sub(keep(entry))));
        if self.entries.capacity() > 28 && self.entries.len() < self.entries.capacity() / 8 {
            self.entries.shrink_to(self.entries.len() * 2, |entry| entry.key.hash_code());
        }
    }

    /// Adds the entry of a pair, if there is room.
    fn insert(&mut self, key: &PartitionKey, policy: &Policy, now: LocalMicros) {
        if self.entries.len() >= MAX_PAIRS_OF_SHARD {
            if now < self.searched + KEEP_IDLE {
                return;
            }
            self.searched = now;
            self.remove_idle(now, |_| KEEP_IDLE);
        }
        if self.entries.len() < MAX_PAIRS_OF_SHARD {
            let entry = LeasedPair::new(key.clone(), policy.clone(), now);
            self.entries.insert_unique(key.hash_code(), entry, |entry| entry.key.hash_code());
        }
    }
}

impl RevokeGuard {
    pub(crate) fn new(check: Check) -> Self {
        let guard = Self(check);
        guard.end_now();
        guard
    }

    fn end_now(&self) {
        let all = ALL.lock().clone();
        for leases in all.iter().filter_map(Weak::upgrade) {
            if !leases.namespace.is_in_same_store(self.0.scope()) {
                continue;
            }
            let mut leftovers = OfPairs::new();
            for pair in self.0.pairs() {
                let key = pair.key.bounded();
                leftovers.extend(
                    leases.shard(&key).find(&key, &pair.policy).map(LeasedPair::end).into_iter().flatten(),
                );
            }
            leases.return_units(leftovers);
        }
    }
}

impl Drop for RevokeGuard {
    fn drop(&mut self) {
        self.end_now();
    }
}

/// Wakes the checks that wait for requests which have ended or were replaced. A waker may run code of its own, so no lock is held, and its
/// panic keeps no other check waiting.
fn wake(ended: OfPairs<Asked>) {
    for asked in ended {
        contain(|| drop(asked));
    }
}

/// Returns the partition key of a check as the table keeps it.
fn key_of(check: &Check) -> Option<Cow<'_, PartitionKey>> {
    check.pairs().first().map(|pair| pair.key.bounded())
}
