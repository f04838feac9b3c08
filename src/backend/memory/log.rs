//! Sliding log and sliding buckets: a record for every charge, or for all charges of one bucket.
//!
//! A record holds its instant and the *running total* of all units before it. So what is used, and what has to leave
//! before a cost fits, are differences of two totals, found by bisection. Units of a record are given back by raising
//! the totals up to it or by lowering those behind it, whichever are fewer.
//!
//! A bucket's record stands at the bucket's end, and so both are the same from there on.

use std::collections::VecDeque;

use super::tally::{After, stands_at};
use crate::check::Receipt;

/// A log holds at most this many records.
const MAX_RECORDS: usize = 1 << 20;

/// What is used saturates here. Only what is charged beyond a quota can come so far.
const MAX_USED: u64 = 1 << 39;

/// The charges of one partition key under one policy, oldest first. The newest record always holds units.
pub(super) struct Log {
    /// The instant of the first charge since nothing was used.
    generation: u64,
    /// The instant of the last charge. It stays although what was charged may have been given back.
    last: u64,
    records: VecDeque<Record>,
    /// The running total after the newest record. Totals wrap, and only their differences mean anything.
    total: u64,
    /// How many records of the oldest one's instant came before it and are gone.
    passed: u32,
}

#[derive(Clone, Copy)]
struct Record {
    at: u64,
    /// The running total before it.
    start: u64,
}

/// What a log says at one instant.
pub(super) struct Reading<'a> {
    log: &'a Log,
    /// The clock as read.
    pub(super) clock: u64,
    /// The instant for which this is true: the clock, or the last charge's instant while the clock is behind it.
    now: u64,
    window: u64,
    precision: u64,
    /// How many of the oldest records have left.
    left: usize,
    /// The running total before the oldest record that counts.
    before: u64,
}

impl Log {
    pub(super) const EMPTY: Self =
        Self { generation: 0, last: 0, records: VecDeque::new(), total: 0, passed: 0 };

    /// Reads the log at `clock`, in microseconds like the others.
    pub(super) fn read(&self, clock: u64, window: u64, precision: u64) -> Reading<'_> {
        let reading = |now, left, before| Reading { log: self, clock, now, window, precision, left, before };
        let Some(now) = stands_at(clock, self.last, window) else {
            return reading(clock, self.records.len(), self.total);
        };
        let has_left = |record: &Record| record.at + window <= now;
        let left = match self.records.front() {
            Some(oldest) if has_left(oldest) => self.records.partition_point(has_left),
            _ => 0,
        };
        reading(now, left, self.start(left))
    }

    /// Records a charge, and drops what has left.
    pub(super) fn charge(&mut self, clock: u64, window: u64, precision: u64, cost: u32) -> Receipt {
        let Reading { now, left, before, .. } = self.read(clock, window, precision);
        if left > 0 {
            // All records of an instant leave together.
            self.records.drain(..left);
            self.passed = 0;
        }
        let used = self.total.wrapping_sub(before);
        if used == 0 {
            self.generation = now;
            self.records.clear();
            self.passed = 0;
        }
        let at = recorded_at(now, precision);
        let units = u64::from(cost).min(MAX_USED.saturating_sub(used));
        if units > 0 {
            self.last = now;
            let joins = precision > 0 && self.records.back().is_some_and(|newest| newest.at == at);
            if !joins {
                self.records.push_back(Record { at, start: self.total });
            }
            self.total = self.total.wrapping_add(units);
        }
        if self.records.capacity() > 64 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
        }
        Receipt { generation: self.generation, at_micros: at, ordinal: self.newest_ordinal() }
    }

    /// Gives units back to the record of a charge, no more than it holds, if it still counts.
    pub(super) fn refund(&mut self, clock: u64, window: u64, receipt: Receipt, units: u32) {
        let now = stands_at(clock, self.last, window);
        let counts = now.is_some_and(|now| now < receipt.at_micros + window);
        if !counts || receipt.generation != self.generation {
            return;
        }
        let Some(index) = self.index_of(receipt) else { return };
        let held = self.start(index + 1).wrapping_sub(self.start(index));
        let units = u64::from(units).min(held);
        if index < self.records.len() / 2 {
            for record in self.records.range_mut(..=index) {
                record.start = record.start.wrapping_add(units);
            }
        } else {
            for record in self.records.range_mut(index + 1..) {
                record.start = record.start.wrapping_sub(units);
            }
            self.total = self.total.wrapping_sub(units);
        }
        self.drop_empty_ends();
    }

    /// The instant from which on nothing counts of what is recorded here.
    pub(super) fn idle_at(&self, window: u64) -> u64 {
        self.records.back().map_or(self.last, |newest| newest.at + window)
    }

    /// The running total before a record, or after all of them.
    fn start(&self, index: usize) -> u64 {
        self.records.get(index).map_or(self.total, |record| record.start)
    }

    fn index_of(&self, receipt: Receipt) -> Option<usize> {
        let first = self.records.partition_point(|record| record.at < receipt.at_micros);
        let passed = if first == 0 { self.passed } else { 0 };
        let index = first + receipt.ordinal.checked_sub(passed)? as usize;
        self.records.get(index).is_some_and(|record| record.at == receipt.at_micros).then_some(index)
    }

    /// The place of the newest record among those of its instant.
    fn newest_ordinal(&self) -> u32 {
        let Some(newest) = self.records.back() else { return 0 };
        let others = self.records.len() - 1;
        // Most often it is alone.
        let first = match others.checked_sub(1).map(|index| self.records[index].at) {
            Some(at) if at == newest.at => self.records.partition_point(|record| record.at < newest.at),
            _ => others,
        };
        let passed = if first == 0 { self.passed } else { 0 };
        // At most 2^20.
        (others - first) as u32 + passed
    }

    fn drop_empty_ends(&mut self) {
        while self.records.back().is_some_and(|newest| newest.start == self.total) {
            self.records.pop_back();
        }
        while !self.records.is_empty() && self.start(0) == self.start(1) {
            let gone = self.records.pop_front().map(|record| record.at);
            let same = gone == self.records.front().map(|record| record.at);
            self.passed = if same { self.passed + 1 } else { 0 };
        }
    }
}

impl Reading<'_> {
    /// What is used, in quota units.
    pub(super) fn used(&self) -> u64 {
        self.log.total.wrapping_sub(self.before)
    }

    /// Whether one more charge can be recorded.
    pub(super) fn has_room(&self) -> bool {
        // In a window there are far fewer buckets.
        self.log.records.len() - self.left < MAX_RECORDS
    }

    /// The first instant at which no more than `units` are used.
    pub(super) fn falls_to(&self, units: u64) -> u64 {
        match self.used().checked_sub(units) {
            None | Some(0) => self.now,
            Some(wanting) => self.leave_at(wanting),
        }
    }

    /// What is used after a charge of so many units, now.
    pub(super) fn after(&self, units: u64) -> After {
        let used = self.used();
        let added = units.min(MAX_USED.saturating_sub(used));
        let newest = recorded_at(self.now, self.precision) + self.window;
        After {
            used: used + added,
            next: if used > 0 { self.leave_at(1) } else { newest },
            reset: if added > 0 { newest } else { self.leave_at(used) },
        }
    }

    /// The instant at which `units` of those that are used have left.
    fn leave_at(&self, units: u64) -> u64 {
        // Those that have left come first: bisect among the others.
        let (mut low, mut high) = (self.left, self.log.records.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.log.start(middle + 1).wrapping_sub(self.before) < units {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.log.records.get(low).map_or(self.now, |record| record.at + self.window)
    }
}

/// Where a charge at this instant is recorded: there, or at the end of its bucket.
fn recorded_at(now: u64, precision: u64) -> u64 {
    // Without a precision every instant is the end of a bucket of its own.
    now.checked_div(precision).map_or(now, |bucket| (bucket + 1) * precision)
}
