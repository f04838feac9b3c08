//! The lease of one pair, and how many units to lease next. It knows no clock and no lock.

use std::{mem, num::NonZeroU64, time::Duration};

use tokio::sync::watch;

use super::LocalMicros;
use crate::{
    check::{Pair, Receipt, RefundPair},
    decision::{Decision, Status, Wait},
    drift,
    key::PartitionKey,
    policy::{Lease, Policy},
};

/// A lease takes at most this part of the store's remaining quota: an eighth. So the last units go to any process that asks.
const SHARE: u32 = 8;

/// How long nothing is leased after a lease request without an answer, and at most after an answer that came too late.
const PAUSE: LocalMicros = 1_000_000;

/// A lease request without an answer for this time may be of a runtime that does not run. Then another one replaces it. Few limiters have a
/// longer deadline.
const STUCK: LocalMicros = 10_000_000;

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
    /// Units of a later bucket. They become those that are held when the bucket of these ends.
    next: Option<HeldUnits>,
    /// The instant of the last grant, or of a lease that began without another one.
    last_grant: LocalMicros,
    /// From this instant on, a grant asks for units of the next bucket.
    ahead_at: LocalMicros,
    /// If fewer units are left, a grant asks for units of the next bucket as well.
    low: u32,
    /// The time that the last answer took.
    took: LocalMicros,
    /// The store's remaining quota, as last stated.
    remaining: u32,
    /// The lease request in flight. The answer to any other one begins no lease.
    request: Option<Asked>,
    /// The number of successive answers that came after the end of their bucket.
    pub(super) late: u32,
    /// Whether the task that returns units looks at this pair later.
    is_scheduled: bool,
    paused_until: LocalMicros,
    last_use: LocalMicros,
}

/// A lease request in flight.
pub(super) struct Asked {
    number: u64,
    begun: LocalMicros,
    /// Whether the lease was ended since the request, so that its answer must not begin one.
    is_void: bool,
    /// Dropping it wakes the checks that wait for the end of the request. The value is whether its answer came too late.
    pub(super) ended: watch::Sender<bool>,
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

/// A grant of one pair.
pub(super) struct Grant {
    pub(super) status: Status,
    pub(super) receipt: Receipt,
    /// The instant in microseconds of the store's clock, as a lower bound.
    pub(super) at_micros: u64,
    /// Whether to ask for units of the next bucket.
    pub(super) asks_ahead: bool,
}

/// What the store has answered to one pair of a lease request.
pub(super) struct LeaseAnswer<'a> {
    /// As the store knows it.
    pub(super) key: &'a PartitionKey,
    pub(super) decision: &'a Decision,
    pub(super) status: &'a Status,
    pub(super) receipt: Receipt,
    /// The leased units: those beyond the cost, or all if no check has asked for them.
    pub(super) units: u32,
    pub(super) is_ahead: bool,
    pub(super) sent: LocalMicros,
    pub(super) received: LocalMicros,
}

impl LeasedPair {
    pub(super) fn new(key: PartitionKey, policy: Policy, now: LocalMicros) -> Self {
        Self {
            key,
            // A leased policy has buckets.
            precision: policy.properties().bucket_micros.map_or(0, NonZeroU64::get),
            policy,
            granted: Granted::default(),
            held: None,
            next: None,
            last_grant: 0,
            ahead_at: LocalMicros::MAX,
            low: 0,
            took: 0,
            remaining: 0,
            request: None,
            late: 0,
            is_scheduled: false,
            paused_until: 0,
            last_use: now,
        }
    }

    pub(super) fn is_of(&self, key: &PartitionKey, policy: &Policy) -> bool {
        self.key == *key && self.policy.counts_with(policy)
    }

    /// Applies what has changed since the last use: a lease whose bucket has ended, and another quota, end it. Returns its units.
    #[inline]
    pub(super) fn begin_use(&mut self, policy: &Policy, now: LocalMicros) -> Vec<RefundPair> {
        self.last_use = now;
        if self.policy.quota_units() != policy.quota_units() {
            let leftovers = self.end();
            self.policy = policy.clone();
            return leftovers;
        }
        self.end_buckets(now)
    }

    /// Grants units of the lease. Call it after [`begin_use`](Self::begin_use). If the lease has no room, grants nothing.
    #[inline]
    pub(super) fn grant(&mut self, pair: &Pair, now: LocalMicros) -> Option<Grant> {
        let left = self.units().saturating_sub(pair.cost);
        let has_room = |held: &&mut HeldUnits| held.has_room(pair.cost, now);
        let held = self.held.as_mut().filter(has_room).or(self.next.as_mut().filter(has_room))?;
        held.units -= pair.cost;
        // The server's clock has counted at least this.
        let since = drift::min_elapsed_elsewhere(now.saturating_sub(held.store.received));
        // The units of a next bucket, of any process, leave one bucket later.
        let later = if is_ahead(&pair.policy) { self.precision } else { 0 };
        let status = held.store.status_after(pair, held.lowest.saturating_add(left), since, later);
        let (receipt, at_micros) = (held.receipt, held.store.at_micros.saturating_add(since));
        self.last_grant = now;
        self.granted.add(self.precision, now, pair.cost);
        Some(Grant { status, receipt, at_micros, asks_ahead: self.asks_ahead(&pair.policy, now) })
    }

    /// Returns whether units of the next bucket are due.
    #[inline]
    fn asks_ahead(&self, policy: &Policy, now: LocalMicros) -> bool {
        (now >= self.ahead_at || self.units() < self.low) && !self.is_asking(now) && is_ahead(policy)
    }

    /// Returns whether the lease has room for a cost.
    pub(super) fn has_room(&self, cost: u32, now: LocalMicros) -> bool {
        self.leases().any(|held| held.has_room(cost, now))
    }

    /// Returns how many units to lease beyond a cost: as many as this process grants in a bucket, at most the bound of this policy,
    /// and at most a share of the store's remaining quota. `None` if this process would hold no units, or if nothing may be leased: under
    /// another quota than that of the last use, or after a failure.
    pub(super) fn wanted(&mut self, policy: &Policy, now: LocalMicros) -> Option<u32> {
        let (held, rate) = (self.units(), self.rate(now));
        let units = self.at_most(rate, policy, now)?;
        (units > 0 || held > 0).then_some(units)
    }

    /// Returns how many units of the next bucket to lease, at least 1: as many as make twice the units that this process grants in a bucket.
    /// `None` if none are due, if it holds enough, if it has not granted units in two successive periods, or if too few remain. Until an
    /// answer comes or the bucket ends, no grant asks again.
    pub(super) fn wanted_ahead(&mut self, policy: &Policy, now: LocalMicros) -> Option<u32> {
        // Another pair of the check may have asked.
        if !self.asks_ahead(policy, now) {
            return None;
        }
        self.ahead_at = LocalMicros::MAX;
        let (rate, held) = (self.rate(now), self.units());
        let least = if held < self.low {
            mem::take(&mut self.low)
        } else if self.next.as_ref().is_some_and(|next| next.units >= rate) {
            return None;
        } else {
            1
        };
        let is_steady = self.granted.current > 0 && self.granted.previous > 0;
        let units = self.at_most(rate.saturating_mul(2).saturating_sub(held), policy, now)?;
        (is_steady && units >= least).then_some(units)
    }

    /// Returns the units that this process grants in a period.
    fn rate(&mut self, now: LocalMicros) -> u32 {
        self.granted.add(self.precision, now, 0);
        self.granted.current.max(self.granted.previous)
    }

    /// Returns these units, or as many as may be leased of them. `None` if nothing may be leased.
    fn at_most(&self, units: u32, policy: &Policy, now: LocalMicros) -> Option<u32> {
        if self.is_asking(now) || now < self.paused_until || policy.quota_units() != self.policy.quota_units()
        {
            return None;
        }
        let (bound, held) = (policy.lease().map_or(0, Lease::units), self.units());
        Some(units.min(self.remaining / SHARE).min(bound.saturating_sub(held)))
    }

    /// Returns whether a lease request is in flight that began less than [`STUCK`] ago.
    fn is_asking(&self, now: LocalMicros) -> bool {
        self.request.as_ref().is_some_and(|asked| now < asked.begun + STUCK)
    }

    /// Starts the lease request of this number. Returns the one that it replaces because it is stuck.
    #[must_use]
    pub(super) fn begin_request(&mut self, number: u64, now: LocalMicros) -> Option<Asked> {
        let ended = watch::Sender::new(false);
        self.request.replace(Asked { number, begun: now, is_void: false, ended })
    }

    /// Returns what ends with the lease request in flight, if it began at this instant or later.
    pub(super) fn request_since(&self, earliest: LocalMicros) -> Option<watch::Receiver<bool>> {
        let asked = self.request.as_ref().filter(|asked| asked.begun >= earliest)?;
        Some(asked.ended.subscribe())
    }

    /// Returns whether no lease request is in flight, no units are held, and the pair was not used since this instant.
    pub(super) fn is_idle_since(&self, instant: LocalMicros) -> bool {
        self.request.is_none() && !self.is_scheduled && self.held.is_none() && self.last_use < instant
    }

    /// Returns the length of two buckets: how long the last use counts in the rate.
    pub(super) fn two_buckets(&self) -> LocalMicros {
        self.precision.saturating_mul(2)
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
        for held in [&mut self.held, &mut self.next].into_iter().flatten() {
            held.lowest = held.lowest.min(status.remaining());
        }
    }

    /// Ends the lease request of this number. `None` if another one has replaced it. Dropping the returned value wakes the checks that
    /// wait for it.
    #[must_use]
    pub(super) fn end_request(&mut self, number: u64) -> Option<Asked> {
        self.request.take_if(|asked| asked.number == number)
    }

    /// Leases nothing for a while, after a lease request without a valid answer.
    pub(super) fn pause(&mut self, now: LocalMicros) {
        self.paused_until = now + PAUSE;
    }

    /// Applies the answer of the store to a lease request. Begins a lease, unless the lease was ended since the request, another request has
    /// replaced it, or the bucket has ended. Returns units to return, if there are any.
    pub(super) fn answer(&mut self, answer: &LeaseAnswer<'_>, asked: Option<&Asked>) -> Vec<RefundPair> {
        let (now, receipt) = (answer.received, answer.receipt);
        self.learn(answer.status, !answer.is_ahead, now);
        let Some(asked) = asked else {
            let (key, policy) = (answer.key.clone(), self.policy.clone());
            let returned =
                (answer.units > 0).then(|| RefundPair { key, policy, receipt, units: answer.units });
            return returned.into_iter().collect();
        };
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
        self.took = took;
        let mut leftovers = self.end_buckets(now);
        if answer.units == 0 {
            return leftovers;
        }
        let store =
            Reply { at_micros: answer.decision.at_micros(), received: now, status: answer.status.clone() };
        let (key, units, lowest) = (answer.key.clone(), answer.units, answer.status.remaining());
        let new = HeldUnits { key, receipt, units, until, store, lowest };
        if is_over || asked.is_void {
            leftovers.extend(self.leftover(new));
            return leftovers;
        }
        let leases = [&mut self.held, &mut self.next];
        let same = leases.into_iter().flatten().find(|held| held.receipt == receipt);
        let old = if let Some(held) = same {
            // The same bucket. After a forward step of the server's clock, the later bound of its end is beyond the end.
            held.units = held.units.saturating_add(units);
            held.until = held.until.min(until);
            held.store = new.store;
            if self.ahead_at != LocalMicros::MAX {
                self.set_ahead();
            }
            None
        } else if self.held.as_ref().is_some_and(|held| held.until < until) {
            self.next.replace(new)
        } else {
            self.last_grant = now;
            let old = self.held.replace(new);
            self.set_ahead();
            old
        };
        // A grant asks early enough that the units which are left last until the answer, even at twice the rate.
        let during_answer = u64::from(self.rate(now)).saturating_mul(2 * took) / self.precision.max(1);
        self.low = u32::try_from(during_answer).unwrap_or(u32::MAX).saturating_add(2);
        leftovers.extend(old.and_then(|old| self.leftover(old)));
        leftovers
    }

    /// Sets when a grant asks for units of the bucket after that of the lease: in its last half, or earlier if answers take longer.
    fn set_ahead(&mut self) {
        let lead = self.took.max(self.precision / 2);
        self.ahead_at = self.held.as_ref().map_or(LocalMicros::MAX, |held| held.until.saturating_sub(lead));
    }

    /// Returns the units that are left of the lease in this process.
    #[inline]
    pub(super) fn units(&self) -> u32 {
        self.leases().fold(0, |units, held| units.saturating_add(held.units))
    }

    fn leases(&self) -> impl Iterator<Item = &HeldUnits> {
        [&self.held, &self.next].into_iter().flatten()
    }

    /// Returns when to look at a new lease again. `None` if this is scheduled already.
    pub(super) fn schedule(&mut self) -> Option<LocalMicros> {
        let due = self.due().filter(|_| !self.is_scheduled)?;
        self.is_scheduled = true;
        Some(due)
    }

    /// Ends the lease if its bucket has ended, or if it is idle. Returns its units, and when to look at the lease again.
    pub(super) fn expire(&mut self, now: LocalMicros) -> (Vec<RefundPair>, Option<LocalMicros>) {
        let is_idle = now >= self.last_grant + IDLE;
        let leftovers = if is_idle { self.give_back() } else { self.end_buckets(now) };
        let due = self.due();
        self.is_scheduled = due.is_some();
        (leftovers, due)
    }

    /// Returns the end of the bucket, or when the lease may be idle. `None` without a lease.
    fn due(&self) -> Option<LocalMicros> {
        let held = self.held.as_ref()?;
        Some(held.until.saturating_add(1).min(self.last_grant + IDLE))
    }

    /// Ends the lease, and every lease that was requested before. Returns its units.
    pub(super) fn end(&mut self) -> Vec<RefundPair> {
        if let Some(asked) = &mut self.request {
            asked.is_void = true;
        }
        self.remaining = 0;
        self.give_back()
    }

    fn give_back(&mut self) -> Vec<RefundPair> {
        let leases = [self.held.take(), self.next.take()];
        leases.into_iter().flatten().filter_map(|held| self.leftover(held)).collect()
    }

    /// Ends the leases whose buckets have ended. Returns their units.
    #[inline]
    fn end_buckets(&mut self, now: LocalMicros) -> Vec<RefundPair> {
        let mut leftovers = Vec::new();
        while let Some(ended) = self.held.take_if(|held| now > held.until) {
            leftovers.extend(self.leftover(ended));
            self.held = self.next.take();
            self.set_ahead();
        }
        leftovers
    }

    fn leftover(&self, HeldUnits { key, receipt, units, .. }: HeldUnits) -> Option<RefundPair> {
        (units > 0).then(|| RefundPair { key, policy: self.policy.clone(), receipt, units })
    }
}

/// Returns whether leases of a policy are requested before they are needed.
fn is_ahead(policy: &Policy) -> bool {
    policy.lease().is_some_and(Lease::is_ahead)
}

impl HeldUnits {
    fn has_room(&self, cost: u32, now: LocalMicros) -> bool {
        cost <= self.units && now <= self.until
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
    /// Returns the status of a pair that was granted from a lease: `since` after the reply, with this remaining quota. The reset may be
    /// later than stated by `more`.
    fn status_after(&self, pair: &Pair, remaining: u32, since: LocalMicros, more: LocalMicros) -> Status {
        let later = |wait: Duration| wait.saturating_sub(Duration::from_micros(since));
        let reset_after = later(self.status.reset_after().saturating_add(Duration::from_micros(more)));
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
