//! The lease of one pair, and how many units to lease next. It knows no clock and no lock.

use std::{num::NonZeroU64, time::Duration};

use tokio::sync::watch;

use super::LocalMicros;
use crate::{
    check::{Pair, Receipt, RefundPair},
    decision::{Decision, Status, Wait},
    drift,
    key::PartitionKey,
    policy::Policy,
};

/// A lease takes at most this part of the store's remaining quota: an eighth. So the last units go to any process that asks.
const SHARE: u32 = 8;

/// How long nothing is leased after a lease request without an answer, and at most after an answer that came too late.
const PAUSE: LocalMicros = 1_000_000;

/// A lease is returned if nothing was granted from it for this time.
const IDLE: LocalMicros = 1_000_000;

/// A pair of a partition key and a leased policy.
pub(super) struct LeasedPair {
    /// As a table keeps it, of bounded size.
    pub(super) key: PartitionKey,
    policy: Policy,
    /// The length of a bucket.
    precision: LocalMicros,
    granted: Granted,
    held: Option<HeldUnits>,
    /// The store's remaining quota, as last stated.
    remaining: u32,
    /// The number of times that the lease was ended. A reply to an earlier request must not begin a lease.
    ends: u64,
    /// The lease request in flight, and its begin. Dropping it wakes the checks that wait for its end. The value is whether its answer
    /// came too late.
    request: Option<(watch::Sender<bool>, LocalMicros)>,
    /// The number of successive answers that came after the end of their bucket.
    pub(super) late: u32,
    /// Whether the task that returns units looks at this pair later.
    is_scheduled: bool,
    paused_until: LocalMicros,
    last_use: LocalMicros,
}

/// The units that this process was granted, by itself and by the store.
#[derive(Default)]
struct Granted {
    /// The end of the current period. A period is as long as a bucket.
    end: LocalMicros,
    current: u32,
    previous: u32,
}

/// Units that the store has charged, and that this process may grant.
struct HeldUnits {
    /// As the store knows it. A long key differs from that of the table.
    key: PartitionKey,
    receipt: Receipt,
    units: u32,
    /// The last instant at which a unit may be granted.
    until: LocalMicros,
    /// The instant of the last grant or of the lease.
    last_grant: LocalMicros,
    store: Reply,
    /// The smallest remaining quota that the store has stated since the lease began.
    lowest: u32,
}

/// The status of the store after a lease.
#[derive(Clone)]
struct Reply {
    /// In microseconds of the store's clock.
    at_micros: u64,
    received: LocalMicros,
    status: Status,
}

/// What the store has answered to one pair of a lease request.
pub(super) struct LeaseAnswer<'a> {
    /// As the store knows it.
    pub(super) key: &'a PartitionKey,
    pub(super) decision: &'a Decision,
    pub(super) status: &'a Status,
    pub(super) receipt: Receipt,
    /// The units beyond the cost.
    pub(super) units: u32,
    pub(super) sent: LocalMicros,
    pub(super) received: LocalMicros,
}

impl LeasedPair {
    pub(super) fn new(key: PartitionKey, policy: Policy) -> Self {
        Self {
            key,
            // A leased policy has buckets.
            precision: policy.properties().bucket_micros.map_or(0, NonZeroU64::get),
            policy,
            granted: Granted::default(),
            held: None,
            remaining: 0,
            ends: 0,
            request: None,
            late: 0,
            is_scheduled: false,
            paused_until: 0,
            last_use: 0,
        }
    }

    pub(super) fn is_of(&self, key: &PartitionKey, policy: &Policy) -> bool {
        self.key == *key && self.policy.counts_with(policy)
    }

    /// Applies what has changed since the last use: a lease whose bucket has ended, and another quota, end it. Returns its units.
    #[inline]
    pub(super) fn begin_use(&mut self, policy: &Policy, now: LocalMicros) -> Option<RefundPair> {
        self.last_use = now;
        let has_ended = self.held.as_ref().is_some_and(|held| now > held.until);
        if self.policy.quota_units() != policy.quota_units() {
            let leftover = self.end();
            self.policy = policy.clone();
            return leftover;
        }
        if has_ended { self.give_back() } else { None }
    }

    /// Grants units of the lease. Returns the status of the pair, the receipt, and the instant in microseconds of the store's clock,
    /// as a lower bound. Call it after [`begin_use`](Self::begin_use). If the lease has no room, grants nothing.
    #[inline]
    pub(super) fn grant(&mut self, pair: &Pair, now: LocalMicros) -> Option<(Status, Receipt, u64)> {
        let held = self.held.as_mut()?;
        held.units = held.units.checked_sub(pair.cost)?;
        held.last_grant = now;
        self.granted.add(self.precision, now, pair.cost);
        // The server's clock has counted at least this.
        let since = drift::min_elapsed_elsewhere(now.saturating_sub(held.store.received));
        let status = held.store.status_after(pair, held.lowest.saturating_add(held.units), since);
        Some((status, held.receipt, held.store.at_micros.saturating_add(since)))
    }

    /// Returns how many units to lease beyond a cost: as many as this process grants in a bucket, at most the bound of this policy,
    /// and at most a share of the store's remaining quota. `None` if this process would hold no units, or if nothing may be leased: under
    /// another quota than that of the last use, or after a failure.
    pub(super) fn wanted(&mut self, policy: &Policy, now: LocalMicros) -> Option<u32> {
        if self.request.is_some()
            || now < self.paused_until
            || policy.quota_units() != self.policy.quota_units()
        {
            return None;
        }
        self.granted.add(self.precision, now, 0);
        let bound = policy.lease().map_or(0, |lease| lease.units());
        let held = self.units();
        let rate = self.granted.current.max(self.granted.previous);
        let units = rate.min(self.remaining / SHARE).min(bound.saturating_sub(held));
        (units > 0 || held > 0).then_some(units)
    }

    /// Starts a lease request. Returns the number that [`answer`](Self::answer) compares.
    pub(super) fn begin_request(&mut self, now: LocalMicros) -> u64 {
        self.request = Some((watch::Sender::new(false), now));
        self.ends
    }

    /// Returns what ends with the lease request in flight, if it began at this instant or later.
    pub(super) fn request_since(&self, earliest: LocalMicros) -> Option<watch::Receiver<bool>> {
        let (ended, _) = self.request.as_ref().filter(|(_, begun)| *begun >= earliest)?;
        Some(ended.subscribe())
    }

    /// Returns whether no lease request is in flight, no units are held, and the pair was not used since this instant.
    pub(super) fn is_idle_since(&self, instant: LocalMicros) -> bool {
        self.request.is_none() && !self.is_scheduled && self.held.is_none() && self.last_use < instant
    }

    /// Learns what the store has decided for a check of this pair that was no lease request.
    pub(super) fn learn(&mut self, status: &Status, is_charged: bool, now: LocalMicros) {
        self.remaining = status.remaining();
        self.read(status);
        if is_charged {
            self.granted.add(self.precision, now, status.cost());
        }
    }

    /// Reads the remaining quota of any status of the store.
    pub(super) fn read(&mut self, status: &Status) {
        if let Some(held) = &mut self.held {
            held.lowest = held.lowest.min(status.remaining());
        }
    }

    /// Ends a lease request. Dropping the returned value wakes the checks that wait for it.
    #[must_use]
    pub(super) fn end_request(&mut self) -> Option<watch::Sender<bool>> {
        self.request.take().map(|(ended, _)| ended)
    }

    /// Leases nothing for a while, after a lease request without a valid answer.
    pub(super) fn pause(&mut self, now: LocalMicros) {
        self.paused_until = now + PAUSE;
    }

    /// Applies the answer of the store to a lease request. Begins a lease, unless the lease was ended since the request, or the bucket
    /// has ended. Returns units to return, if there are any.
    pub(super) fn answer(&mut self, answer: &LeaseAnswer<'_>, ends: u64) -> Option<RefundPair> {
        let (now, receipt) = (answer.received, answer.receipt);
        self.learn(answer.status, true, now);
        let until = last_grant(answer.sent, answer.decision.at_micros(), receipt.at_micros);
        let is_over = now > until;
        let took = answer.received.saturating_sub(answer.sent);
        // A request near the end of a bucket may be late by chance.
        if is_over && (self.late > 0 || took >= self.precision) {
            // Replies take about as long as buckets last. It is tried again, after 1, 2, 4, and more buckets.
            let pause = self.precision.saturating_mul(1 << self.late.min(20));
            self.paused_until = now + pause.min(PAUSE);
        }
        self.late = if is_over { self.late.saturating_add(1) } else { 0 };
        if answer.units == 0 {
            return None;
        }
        if is_over || self.ends != ends {
            return Some(self.leftover(answer.key.clone(), receipt, answer.units));
        }
        let store =
            Reply { at_micros: answer.decision.at_micros(), received: now, status: answer.status.clone() };
        if let Some(held) = self.held.as_mut().filter(|held| held.receipt == receipt) {
            // The same bucket: both bounds of its end are true.
            held.units = held.units.saturating_add(answer.units);
            held.until = held.until.max(until);
            held.store = store;
            return None;
        }
        let old = self.give_back();
        let (key, units, lowest) = (answer.key.clone(), answer.units, answer.status.remaining());
        self.held = Some(HeldUnits { key, receipt, units, until, last_grant: now, store, lowest });
        old
    }

    /// Returns the units that are left of the lease in this process.
    pub(super) fn units(&self) -> u32 {
        self.held.as_ref().map_or(0, |held| held.units)
    }

    /// Returns when to look at a new lease again. `None` if this is scheduled already, at the same instant or before.
    pub(super) fn schedule(&mut self) -> Option<LocalMicros> {
        let due = self.due().filter(|_| !self.is_scheduled)?;
        self.is_scheduled = true;
        Some(due)
    }

    /// Ends the lease if its bucket has ended, or if it is idle. Returns its units, and when to look at the lease again.
    pub(super) fn expire(&mut self, now: LocalMicros) -> (Option<RefundPair>, Option<LocalMicros>) {
        let is_over = self.due().is_some_and(|due| now >= due);
        let leftover = if is_over { self.give_back() } else { None };
        let due = self.due();
        self.is_scheduled = due.is_some();
        (leftover, due)
    }

    /// Returns the end of the bucket, or when the lease may be idle. `None` without a lease.
    fn due(&self) -> Option<LocalMicros> {
        let held = self.held.as_ref()?;
        Some(held.until.saturating_add(1).min(held.last_grant + IDLE))
    }

    /// Ends the lease, and every lease that was requested before. Returns its units.
    pub(super) fn end(&mut self) -> Option<RefundPair> {
        self.ends += 1;
        self.remaining = 0;
        self.give_back()
    }

    fn give_back(&mut self) -> Option<RefundPair> {
        let held = self.held.take()?;
        (held.units > 0).then(|| self.leftover(held.key, held.receipt, held.units))
    }

    fn leftover(&self, key: PartitionKey, receipt: Receipt, units: u32) -> RefundPair {
        RefundPair { key, policy: self.policy.clone(), receipt, units }
    }
}

impl Granted {
    #[inline]
    fn add(&mut self, period: LocalMicros, now: LocalMicros, units: u32) {
        if now >= self.end {
            self.begin_period(period.max(1), now);
        }
        self.current = self.current.saturating_add(units);
    }

    fn begin_period(&mut self, period: LocalMicros, now: LocalMicros) {
        self.previous = if now - self.end < period { self.current } else { 0 };
        (self.end, self.current) = (now - now % period + period, 0);
    }
}

impl Reply {
    /// Returns the status of a pair that was granted from a lease: `since` after the reply, with this remaining quota.
    fn status_after(&self, pair: &Pair, remaining: u32, since: LocalMicros) -> Status {
        let later = |wait: Duration| wait.saturating_sub(Duration::from_micros(since));
        let reset_after = later(self.status.reset_after());
        // If some usage has left since the reply, the next wait is not known. All usage has left at the reset.
        let next_after = match later(self.status.next_after()) {
            wait if wait.is_zero() => reset_after,
            wait => wait,
        };
        Status::new(pair, remaining, Wait::ZERO, next_after, reset_after)
    }
}

/// Returns the last local instant at which the server's clock has not reached the end of a bucket. The request was sent at `sent`, the
/// script ran at `at`, and the bucket ends at `end` of the server's clock. The clocks may drift apart.
fn last_grant(sent: LocalMicros, at: u64, end: u64) -> LocalMicros {
    sent.saturating_add(drift::min_elapsed_elsewhere(end.saturating_sub(at))).saturating_sub(1)
}
