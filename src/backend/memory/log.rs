//! The count of the sliding log and the sliding buckets: one record for each charge, or for each bucket.
//!
//! Each record has its instant and the *running total* of all units before it. So the usage, and the units that must expire before
//! a cost fits, are differences of two totals, found by bisection.

use std::marker::PhantomData;

use super::{
    count::{Count, Forecast, UsageReading, monotonic_instant},
    records::Records,
};
use crate::{
    backend::generation::{Generation, Generations},
    check::Receipt,
    policy::{MAX_LOG_CHARGES, Policy},
};

/// The usage saturates here. Only overages beyond a quota can reach it.
const MAX_USED: u64 = 1 << 39;

/// How a type records charges.
pub(super) trait Recording {
    /// Whether charges that are recorded at the same instant share a record.
    const IS_SHARED: bool;

    /// Returns the instant of the record of a charge: from this instant on, it counts for one window.
    fn recorded_at(now: u64, policy: &Policy) -> u64;
}

/// The charges of one partition key under one policy, oldest first. The newest record always holds units.
pub(super) struct Log<R> {
    /// That of the charges since the usage was 0.
    generation: Generation,
    /// The instant of the last charge. It stays after a refund.
    last: u64,
    records: Records,
    recording: PhantomData<R>,
}

/// A log at one instant.
pub(super) struct LogReading<'a> {
    records: &'a Records,
    window: u64,
    span: Span,
}

/// The part of a log that counts at one instant.
#[derive(Clone, Copy)]
pub(super) struct Span {
    /// The instant of the pair: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    /// How many of the oldest records have expired.
    expired: usize,
    /// The running total before the oldest record that counts.
    before: u64,
    /// The instant of the record of a charge now.
    recorded_at: u64,
}

impl<R: Recording> Log<R> {
    #[inline]
    fn span(&self, clock: u64, policy: &Policy) -> Span {
        let window = policy.window_micros();
        let span =
            |now, expired, before| Span { now, expired, before, recorded_at: R::recorded_at(now, policy) };
        let Some(now) = monotonic_instant(clock, self.last, window) else {
            return span(clock, self.records.len(), self.records.total());
        };
        let mut span = match self.records.get(0) {
            None => return span(now, 0, self.records.total()),
            Some(oldest) if oldest.at + window > now => span(now, 0, oldest.start),
            Some(_) => {
                let expired = self.records.partition_point(|at| at + window <= now);
                span(now, expired, self.records.start(expired))
            }
        };
        if R::IS_SHARED
            && let Some(newest) = self.records.newest()
        {
            // A charge of the next bucket was before: the records stay in order.
            span.recorded_at = span.recorded_at.max(newest.at);
        }
        span
    }

    fn index_of(&self, receipt: Receipt) -> Option<usize> {
        let first = self.records.partition_point(|at| at < receipt.at_micros);
        let index = first + receipt.ordinal as usize;
        self.records.get(index).is_some_and(|record| record.at == receipt.at_micros).then_some(index)
    }

    /// Returns the index of the newest record among those of its instant.
    fn newest_ordinal(&self) -> u32 {
        let Some(newest) = self.records.newest() else { return 0 };
        let others = self.records.len() - 1;
        // The usual case: the charge before it is older.
        let last = others.checked_sub(1).and_then(|last| self.records.get(last));
        if last.is_none_or(|last| last.at < newest.at) {
            return 0;
        }
        // At most 2^20.
        (others - self.records.partition_point(|at| at < newest.at)) as u32
    }

    /// Drops expired records. If nothing is used, a generation begins.
    #[inline(never)]
    fn drop_expired(&mut self, expired: usize, used: u64) {
        // All records of an instant expire together.
        self.records.drop_oldest(expired);
        if used == 0 {
            self.generation = Generation::NONE;
            self.records.drop_oldest(self.records.len());
        }
    }

    /// Drops the records without units at both ends. The oldest records of one instant stay until none of them holds units, because
    /// a receipt states the ordinal of its record among them.
    fn drop_empty_ends(&mut self) {
        while self.records.newest().is_some_and(|newest| newest.start == self.records.total()) {
            self.records.drop_newest();
        }
        while let Some(oldest) = self.records.get(0) {
            let same = self.records.partition_point(|at| at <= oldest.at);
            if self.records.start(same) != oldest.start {
                break;
            }
            self.records.drop_oldest(same);
        }
    }
}

impl<R: Recording> Count for Log<R> {
    const EMPTY: Self =
        Self { generation: Generation::NONE, last: 0, records: Records::EMPTY, recording: PhantomData };

    type Reading<'a>
        = LogReading<'a>
    where
        R: 'a;
    type Instant = Span;

    #[inline]
    fn read(&self, clock: u64, policy: &Policy) -> LogReading<'_> {
        let span = self.span(clock, policy);
        LogReading { records: &self.records, window: policy.window_micros(), span }
    }

    fn read_ahead(&self, clock: u64, policy: &Policy) -> LogReading<'_> {
        let mut reading = self.read(clock, policy);
        let bucket = policy.properties().next_bucket_micros().unwrap_or(0);
        let ahead = R::recorded_at(reading.span.now, policy) + bucket;
        reading.span.recorded_at = reading.span.recorded_at.max(ahead);
        reading
    }

    #[inline]
    fn instant(reading: &LogReading<'_>) -> Span {
        reading.span
    }

    #[inline(always)]
    fn charge(&mut self, Span { now, expired, before, recorded_at }: Span, cost: u32) {
        let used = self.records.total().wrapping_sub(before);
        if expired > 0 || used == 0 {
            self.drop_expired(expired, used);
        }
        // At most the cost.
        let units = u64::from(cost).min(MAX_USED.saturating_sub(used)) as u32;
        if units > 0 {
            self.last = now;
            let is_newest = || self.records.newest().is_some_and(|newest| newest.at == recorded_at);
            if R::IS_SHARED && is_newest() {
                self.records.add_to_newest(units);
            } else {
                self.records.push(recorded_at, units);
            }
        }
    }

    fn receipt(&mut self, span: Span, generations: &Generations) -> Receipt {
        let (generation, at_micros) = (self.generation.get(generations), span.recorded_at);
        Receipt { generation, at_micros, ordinal: self.newest_ordinal() }
    }

    fn refund(&mut self, clock: u64, policy: &Policy, receipt: Receipt, units: u32) {
        let window = policy.window_micros();
        let now = monotonic_instant(clock, self.last, window);
        let counts = now.is_some_and(|now| now < receipt.at_micros + window);
        if !counts || !self.generation.is(receipt.generation) {
            return;
        }
        let Some(index) = self.index_of(receipt) else { return };
        self.records.refund(index, units);
        self.drop_empty_ends();
    }

    fn idle_at(&self, policy: &Policy) -> u64 {
        self.records.newest().map_or(self.last, |newest| newest.at + policy.window_micros())
    }

    /// Packs a log of one record, which is that of the last charge.
    #[inline]
    fn pack(&self, _: &Policy) -> Option<[u64; 2]> {
        let units = self.records.only_units().filter(|_| self.generation == Generation::NONE)?;
        Some([self.last, u64::from(units)])
    }

    #[inline]
    fn unpack([last, units]: [u64; 2], policy: &Policy) -> Self {
        // It was packed as 32 bits.
        let records = Records::one(R::recorded_at(last, policy), units as u32);
        Self { generation: Generation::NONE, last, records, recording: PhantomData }
    }
}

impl UsageReading for LogReading<'_> {
    #[inline]
    fn used(&self) -> u64 {
        self.records.total().wrapping_sub(self.span.before)
    }

    #[inline]
    fn has_room(&self) -> bool {
        // A window has far fewer buckets than this.
        self.records.len() - self.span.expired < MAX_LOG_CHARGES as usize
    }

    fn falls_to(&self, units: u64) -> u64 {
        match self.used().checked_sub(units) {
            None | Some(0) => self.span.now,
            Some(excess) => self.expires_at(excess),
        }
    }

    #[inline(always)]
    fn forecast(&self, units: u64, quota: u64) -> Forecast {
        let used = self.used();
        let added = units.min(MAX_USED.saturating_sub(used));
        let newest = self.span.recorded_at + self.window;
        // Usually, one unit must expire. If more than the quota is used, so must the units beyond it.
        let beyond = (used + added).saturating_sub(quota);
        let next = if used > beyond { self.expires_at(beyond + 1) } else { newest };
        let last = || self.records.newest().map_or(self.span.now, |last| last.at + self.window);
        let reset = if added > 0 { newest } else { last() };
        Forecast { used: used + added, next, reset }
    }
}

impl LogReading<'_> {
    /// Returns the instant at which `units` of the usage have expired.
    #[inline(always)]
    fn expires_at(&self, units: u64) -> u64 {
        // The expired records come first. Usually the oldest of the others holds enough units.
        let oldest = self.span.expired;
        let index = if self.units_until(oldest) >= units { oldest } else { self.bisect(units) };
        self.records.get(index).map_or(self.span.now, |record| record.at + self.window)
    }

    /// Returns the index of the oldest record with which `units` of the usage have expired.
    #[inline(never)]
    fn bisect(&self, units: u64) -> usize {
        let (mut low, mut high) = (self.span.expired, self.records.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.units_until(middle) < units {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the units of the usage in the records up to this one.
    #[inline]
    fn units_until(&self, index: usize) -> u64 {
        self.records.start(index + 1).wrapping_sub(self.span.before)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::sliding_log::SlidingLog, *};

    #[test]
    fn receipt_counts_earlier_charges_of_its_instant() {
        let generations = Generations::new();
        let policy = Policy::new("p", 100, Duration::from_millis(1)).unwrap();
        for earlier in 0..20 {
            let mut log = SlidingLog::EMPTY;
            let mut charge = |at| {
                let span = log.read(at, &policy).span;
                log.charge(span, 1);
                log.receipt(span, &generations)
            };
            for at in 1..=earlier {
                assert_eq!(charge(at).ordinal, 0);
            }
            for ordinal in 0..70 {
                let receipt = charge(earlier + 1);
                assert_eq!((receipt.at_micros, receipt.ordinal), (earlier + 1, ordinal));
            }
        }
    }
}
